"""Background tasks that are never silently dead: a crash is logged and the task started again.

Not for request handling; for the loops of a broker (retention, checkpoints, renewals).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0
"""Pause before a crashed task starts again, so that a lasting fault doesn't burn a core."""


class TaskGroup:
    """Owns the background tasks of one broker; `stop` ends them all and waits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def every(self, seconds: float, work: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Runs `work` again and again, `seconds` after it last ended."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await work()
                except Exception:
                    log.exception("background task %s failed; it runs again", name)

        self._spawn(loop(), name)

    def once(self, work: Awaitable[None], *, name: str) -> asyncio.Task[None]:
        """Runs `work` once; an error is logged."""

        async def run() -> None:
            try:
                await work
            except Exception:
                log.exception("background task %s failed", name)

        return self._spawn(run(), name)

    def _spawn(self, coroutine: Awaitable[None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Cancels what runs and waits for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
