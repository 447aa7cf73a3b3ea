"""The time that coordination runs on: a port, so that a simulation can bring its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeSource:
    """`monotonic` gives seconds that only grow, `sleep` waits for some."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Until the event is set, but no longer than that."""

        async def timer() -> None:
            await self.sleep(seconds)

        tasks = [asyncio.ensure_future(timer()), asyncio.ensure_future(event.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


SYSTEM_TIME = TimeSource()
