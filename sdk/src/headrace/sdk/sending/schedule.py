"""When the producer looks at its queues: once per turn of the loop, or when a wait is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.sdk.core.accumulator import PartitionQueue


class Schedule:
    """The queues that wait for their next batch to leave; `dispatch` is called to look at them."""

    def __init__(self, dispatch: Callable[[], None]) -> None:
        self.waiting: dict[PartitionQueue, None] = {}
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._is_planned = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, queue: PartitionQueue) -> None:
        """The queue has something to send."""
        self.waiting[queue] = None
        self.soon()

    def discard(self, queue: PartitionQueue) -> None:
        """The queue has nothing to send, or a batch of it is leaving."""
        self.waiting.pop(queue, None)

    def soon(self) -> None:
        """Plans a look for the loop's next turn, once."""
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._look)

    def at(self, time: float) -> None:
        """Plans a look for a time of the loop, unless one comes before it."""
        self._timer = self._loop.call_at(time, self.soon)

    def _look(self) -> None:
        self._is_planned = False
        self.stop()
        self._dispatch()

    def stop(self) -> None:
        """Forgets the look that was planned for later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def has_full_batch(self) -> bool:
        """Whether a full batch waits for the loop's next turn to be sent."""
        return self._is_planned and any(queue.closed for queue in self.waiting)
