"""Background tasks that are never silently dead: a crash is logged, counted, then they start again.

Not for request handling; for the loops of a broker (retention, checkpoints, renewals).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from headrace.protocol.errors import HeadraceError

log = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0
"""Pause before a crashed task starts again, so that a lasting fault doesn't burn a core."""


class TaskGroup:
    """Owns background tasks of one broker; `stop` ends them all and waits."""

    def __init__(self, failures: Counter[str] | None = None) -> None:
        """`failures`: to count in together with other groups."""
        self.failures: Counter[str] = Counter() if failures is None else failures
        """How often each task failed, by name, for metrics."""
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their start
        self._is_stopped = False

    def every(self, seconds: float, work: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Runs `work` again and again, `seconds` after it last ended."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await work()
                except Exception as error:
                    self._failed(name, error, "it runs again")

        self._spawn(loop(), name)

    def forever(self, work: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Runs `work`, which has a loop of its own, until it returns; when it fails it is started
        again after `RESTART_DELAY_S`. So it must be able to begin anew from whatever it left."""

        async def loop() -> None:
            while True:
                try:
                    await work()
                    return
                except Exception as error:
                    self._failed(name, error, "it starts again")
                await asyncio.sleep(RESTART_DELAY_S)

        self._spawn(loop(), name)

    def once(self, work: Awaitable[None], *, name: str) -> asyncio.Task[None]:
        """Runs `work` once; an error is logged."""
        if self._is_stopped and asyncio.iscoroutine(work):
            work.close()

        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._failed(name, error, "it isn't tried again")

        return self._spawn(run(), name)

    def _failed(self, name: str, error: Exception, what_next: str) -> None:
        self.failures[name] += 1
        if isinstance(error, HeadraceError):
            log.warning("background task %s: %s; %s", name, error, what_next)
        else:
            log.error("background task %s failed; %s", name, what_next, exc_info=error)

    def _spawn(self, coroutine: Awaitable[None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        task.set_name(name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if self._is_stopped:
            task.cancel()
        return task

    async def stop(self) -> None:
        """Cancels what runs and waits for its end; what is begun later ends at once."""
        self._is_stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
