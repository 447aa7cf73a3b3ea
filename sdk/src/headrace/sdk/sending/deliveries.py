"""What `enqueue` and `send_many` hand back: cheap views of batches on their way.

A `Handle` is two words, untracked by the garbage collector: a million of them may be alive. What
is known of a record is computed from its batch when somebody asks.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import overload

import msgspec

from headrace.protocol.record import RecordMetadata
from headrace.sdk.core.accumulator import Batch
from headrace.sdk.errors import fresh

Span = tuple[Batch, int, int]
"""Records of one call that follow each other in one batch: the batch, the first's index, count."""


async def wait_done(batch: Batch) -> None:
    """Returns once the batch is done or its records have moved to another one."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    batch.observers.append(lambda: None if future.done() else future.set_result(None))
    await future


class Handle(msgspec.Struct, gc=False, eq=False):
    """One enqueued record: await it, now or later, for its `RecordMetadata`.

    Cancelling the wait doesn't take the record back."""

    batch: Batch
    index: int

    def done(self) -> bool:
        """Whether the record is delivered or has failed."""
        return self.batch.is_done

    def result(self) -> RecordMetadata:
        """Where the record is.

        Raises:
            asyncio.InvalidStateError: it is still on its way; await it instead.
            HeadraceError: it was not delivered.
        """
        batch = self.batch
        if not batch.is_done:
            raise asyncio.InvalidStateError("the record is still on its way; await it instead")
        batch.was_observed = True
        if batch.error is not None:
            raise fresh(batch.error) from batch.error.__cause__
        return batch.metadata_of(self.index)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        while not self.batch.is_done:
            self.batch.was_observed = True
            yield from wait_done(self.batch).__await__()
        return self.result()


class Deliveries(Sequence[RecordMetadata]):
    """The `RecordMetadata` of many delivered records, in their order, made when looked at."""

    __slots__ = ("_ends", "_spans")

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._ends: list[int] = []
        end = 0
        for _, _, count in spans:
            end += count
            self._ends.append(end)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordMetadata]: ...
    def __getitem__(self, index: int | slice) -> RecordMetadata | list[RecordMetadata]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        span = bisect_right(self._ends, at)
        batch, start, count = self._spans[span]
        return batch.metadata_of(start + at - (self._ends[span] - count))

    def __repr__(self) -> str:
        return f"<Deliveries of {len(self)} records>"
