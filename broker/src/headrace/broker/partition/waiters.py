"""Who waits for a partition to move: producers for an offset to be committed, readers for news."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from headrace.protocol.errors import HeadraceError


class CommitWaiters:
    """Producers (and committers of offsets) that wait until the high watermark passes an offset.

    Those who gave up waiting are swept out whenever the heap has doubled, so that it stays
    within twice the number of those who still wait.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._sweep_at = 64

    def wait(self, offset: int) -> asyncio.Future[None]:
        """A future that is done once the high watermark is above `offset`."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._sweep_at = max(64, 2 * len(self._heap))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (offset, next(self._order), future))
        return future

    def advance(self, high_watermark: int) -> None:
        """Wakes all whose offset is now below the high watermark."""
        heap = self._heap
        while heap and heap[0][0] < high_watermark:
            future = heapq.heappop(heap)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: HeadraceError) -> None:
        """Wakes all with `error`: leadership is gone or the log is."""
        waiting, self._heap = self._heap, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever gave up waiting need not hear of it


class ReadWaiter:
    """One long poll; sleeps until any of its partitions has news. News that comes while the poll
    is looking (not sleeping) is kept, so none is slept over."""

    __slots__ = ("_future", "_news")

    def __init__(self) -> None:
        self._future: asyncio.Future[bool] | None = None
        self._news = False

    def wake(self) -> None:
        """There is something to look at."""
        self._news = True
        if self._future is not None and not self._future.done():
            self._future.set_result(True)

    def looking(self) -> None:
        """The poll looks now: older news is taken in."""
        self._news = False

    async def wait(self, seconds: float) -> bool:
        """Whether there was news within `seconds`. One timer handle and no task: a thousand of
        these sleep at once."""
        if self._news:
            return True
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, self._give_up)
        try:
            return await self._future
        finally:
            timer.cancel()
            self._future = None

    def _give_up(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(False)
