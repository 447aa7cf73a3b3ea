"""What a producer has taken in and not yet seen the end of: its bytes, its batches, their failures.

Every record's bytes leave `room` when it is taken in and come back when its batch is done; who
finds no room waits here in turn. Failures that nobody waits for are kept until the next flush.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from headrace.protocol.errors import Closed, HeadraceError
from headrace.sdk.core.accumulator import Batch

log = logging.getLogger("headrace.sdk.producer")


class Buffer:
    """Records between the program's call and their batch's end; one loop.

    `room` goes below 0 for a record that is larger than the whole buffer: it goes alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.room = bytes_max
        self.now_ms = 0
        self.is_closed = False
        self.loop = asyncio.get_running_loop()
        self.unfinished: set[Batch] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._unseen_error: HeadraceError | None = None
        self._unseen_count = 0

    def stamp(self) -> int:
        """The time for records without one, ms; read from the clock once per turn of the loop."""
        self.now_ms = int(time.time() * 1000)
        self.loop.call_soon(self._forget_stamp)
        return self.now_ms

    def _forget_stamp(self) -> None:
        self.now_ms = 0

    def check_open(self) -> None:
        """Raises Closed after the producer's close."""
        if self.is_closed:
            raise Closed("the producer is closed")

    # --- room ------------------------------------------------------------------------------------

    async def wait_for_room(self, size: int) -> None:
        """Returns once `size` bytes (or the whole buffer, if that is less) are free, in turn."""
        size = min(size, self.bytes_max)
        while self.room < size:
            self.check_open()
            waiter = self.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def wake_waiters(self) -> None:
        """Lets all who wait for room look again; they do so in the order in which they came."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # --- ends of batches -------------------------------------------------------------------------

    def delivered(self, batch: Batch, *, base_offset: int, append_time_ms: int) -> None:
        """The batch is in the log (or, under acks=0, out of our hands)."""
        if not batch.is_done:
            batch.deliver(base_offset, append_time_ms)
            self._release(batch)

    def failed(self, batch: Batch, error: HeadraceError) -> None:
        """The batch won't be delivered."""
        if batch.is_done:
            return
        batch.fail(error)
        if not batch.was_observed:
            log.error("%d records of %s were not delivered: %s", batch.count, batch.topic, error)
            self.note_unseen(error, batch.count)
        self._release(batch)

    def _release(self, batch: Batch) -> None:
        self.unfinished.discard(batch)
        self.room += batch.size_bytes
        self.wake_waiters()

    def note_unseen(self, error: HeadraceError, count: int) -> None:
        """Keeps a failure that nobody waits for, for `flush` to raise."""
        self._unseen_error = self._unseen_error or error
        self._unseen_count += count

    def raise_unseen(self) -> None:
        """Raises, once, the first failure that nobody was told of."""
        error, self._unseen_error = self._unseen_error, None
        count, self._unseen_count = self._unseen_count, 0
        if error is not None:
            error.add_note(f"{count} enqueued records that nobody awaited were not delivered")
            raise error
