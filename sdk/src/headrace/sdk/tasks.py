"""Background tasks of one client: kept alive while they run, cancelled together at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """The tasks that an object has started and that still run."""

    def __init__(self) -> None:
        # In the order of their start: a set's would differ from run to run.
        self._running: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts `work` on the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def wait(self) -> None:
        """Returns when all that run now have ended, whatever their end."""
        if self._running:
            await asyncio.wait(list(self._running))

    async def cancel(self) -> None:
        """Cancels all and waits for their end."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
