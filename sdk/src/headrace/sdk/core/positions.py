"""Where a consumer stands in each partition, what it holds of it, and what to fetch next.

Three offsets a partition, never in another order:

    finished  <=  position  <=  fetch_offset
    what may be    next to be     next to be
    committed      handed out     fetched

What lies between position and fetch_offset is in `buffer` (whole batches, not decoded) and in the
handout that is being read. A seek raises `version`; answers to questions of an older version are
thrown away, so that a seek or a new assignment takes effect at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import length_hint
from typing import Any, NamedTuple

from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicId, TopicPartition
from headrace.protocol.record import Record
from headrace.protocol.requests import FetchPart


class RawBatch(NamedTuple):
    """One batch as the broker sent it. Its first records may lie before `first_offset`, the offset
    that was asked for: they are to be skipped."""

    topic: str
    partition: int
    header: BatchHeader
    data: memoryview
    first_offset: int


class PartitionState:
    """One assigned partition. `failure` stopped it until a seek, `problem` only delays it; the
    program pauses it (`is_paused`), the group holds it while it comes or goes (`is_held`)."""

    __slots__ = (
        "attempts", "buffer", "buffered_bytes", "failure", "fetch_offset", "finished", "has_raised",
        "high_watermark", "is_fetching", "is_held", "is_paused", "log_start_offset", "owner",
        "position", "problem", "retry_at", "start", "topic_id", "turn", "version",
    )  # fmt: skip

    def __init__(self, owner: TopicPartition, topic_id: TopicId, start: Any) -> None:
        self.owner = owner
        self.topic_id = topic_id
        self.start = start
        self.position: int | None = None
        self.finished: int | None = None
        self.fetch_offset: int | None = None
        self.buffer: deque[RawBatch] = deque()
        self.buffered_bytes = 0
        self.version = 0
        self.is_fetching = False
        self.is_paused = False
        self.is_held = False
        self.retry_at = 0.0
        self.attempts = 0
        self.turn = 0
        self.high_watermark = -1
        self.log_start_offset = -1
        self.problem: HeadraceError | None = None
        self.failure: Exception | None = None
        self.has_raised = False

    def move(self, offset: int) -> None:
        """Goes on at `offset`; whatever was fetched or asked for is forgotten."""
        self.forget()
        self.start = None
        self.position = self.finished = self.fetch_offset = offset

    def forget(self) -> None:
        """Drops what was fetched and makes answers under way worthless."""
        self.version += 1
        self.is_fetching = False
        self.fetch_offset = self.position
        self.buffer.clear()
        self.buffered_bytes = 0
        self.retry_at = 0.0
        self.attempts = 0
        self.problem = None
        self.failure = None
        self.has_raised = False

    def add(self, header: BatchHeader, data: memoryview) -> None:
        """Takes in the next fetched batch; one that lies wholly before the position is dropped."""
        assert self.fetch_offset is not None
        if header.next_offset <= self.fetch_offset:
            return
        self.buffer.append(RawBatch(*self.owner, header, data, self.fetch_offset))
        self.buffered_bytes += len(data)
        self.fetch_offset = header.next_offset

    def take(self) -> RawBatch:
        """The next fetched batch."""
        batch = self.buffer.popleft()
        self.buffered_bytes -= len(batch.data)
        return batch

    def put_back(self, batch: RawBatch) -> None:
        """Returns a batch that was taken and not (wholly) handed out."""
        self.buffer.appendleft(batch)
        self.buffered_bytes += len(batch.data)

    def fail(self, error: Exception) -> None:
        """Stops the partition until it is moved."""
        self.forget()
        self.failure = error

    @property
    def can_hand_out(self) -> bool:
        """Whether a batch is there that the program wants."""
        return bool(self.buffer) and not self.is_paused and not self.is_held

    def check_invariants(self) -> None:
        """Asserts the order of the three offsets and the byte count."""
        if self.position is not None and self.fetch_offset is not None:
            assert self.finished is not None
            assert self.finished <= self.position <= self.fetch_offset
        assert self.buffered_bytes == sum(len(batch.data) for batch in self.buffer)


class Handout:
    """Records of one batch on their way to the program, one by one, at no cost per record.

    The list's own iterator knows how far it is, so nothing has to be counted; taking the rest back
    (a seek, a pause) cuts the list, and whoever iterates simply comes to its end.

    `after` is the position behind the records; with an `error`, it is that of the record which
    can't be handed out."""

    __slots__ = ("_records", "after", "batch", "error", "iterator", "state", "version")

    def __init__(self, state: PartitionState, batch: RawBatch, records: list[Any]) -> None:
        self.state = state
        self.batch = batch
        self.version = state.version
        self.after = batch.header.next_offset
        self.error: Exception | None = None
        self._records = records
        self.iterator: Iterator[Any] = iter(records)

    @property
    def handed_count(self) -> int:
        """How many records the program has got."""
        return len(self._records) - length_hint(self.iterator)

    @property
    def is_over(self) -> bool:
        """Whether all records are handed out."""
        return not length_hint(self.iterator)

    @property
    def position(self) -> int:
        """The next offset to hand out."""
        count = self.handed_count
        if count == len(self._records):
            return self.after
        offset: int = self._records[count].offset
        return offset

    @property
    def in_hand(self) -> int | None:
        """The offset of the record handed out last; None before the first."""
        count = self.handed_count
        return self._records[count - 1].offset if count else None

    def cut(self) -> None:
        """Hands out nothing more."""
        count = self.handed_count
        if count < len(self._records):
            self.after = self._records[count].offset
            del self._records[count:]


class FetchPlan(NamedTuple):
    """The partitions to ask one broker about, and the request's parts for them."""

    states: list[PartitionState]
    parts: list[FetchPart]


def is_fetchable(state: PartitionState, *, now: float, partition_bytes: int) -> bool:
    """Whether the partition wants data, may ask for it now, and has room."""
    return (
        not state.is_fetching
        and not state.is_paused
        and not state.is_held
        and state.failure is None
        and state.fetch_offset is not None
        and state.retry_at <= now
        and state.buffered_bytes < partition_bytes
    )


def plan_fetch(
    states: Sequence[PartitionState], *, partition_bytes: int, fetch_bytes: int
) -> FetchPlan:
    """One request for all of `states`, in fair turns: who was served longest ago comes first, since
    an answer is cut off at its end; shares shrink when not all whole ones fit."""
    ordered = sorted(states, key=lambda state: state.turn)
    share = max(min(partition_bytes, fetch_bytes // max(len(ordered), 1)), 1)
    parts = [
        FetchPart(state.topic_id, state.owner.partition, state.fetch_offset or 0, share)
        for state in ordered
    ]
    return FetchPlan(ordered, parts)


def next_to_hand_out(states: Iterable[PartitionState]) -> PartitionState | None:
    """Whose batch comes next: the partition that was served longest ago."""
    ready = [state for state in states if state.can_hand_out]
    return min(ready, key=lambda state: state.turn) if ready else None


def records_from(records: list[Record], first_offset: int) -> list[Record]:
    """The records of a batch without those before `first_offset`."""
    if records and records[0].offset < first_offset:
        return [record for record in records if record.offset >= first_offset]
    return records


class InOrder:
    """How far one partition is finished when records end in any order: up to the first gap."""

    __slots__ = ("_done", "_waiting", "finished")

    def __init__(self, position: int) -> None:
        self.finished = position
        self._waiting: deque[int] = deque()
        self._done: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether nothing is in anybody's hands."""
        return not self._waiting

    def begin(self, offset: int) -> None:
        """A record has been handed to somebody."""
        self._waiting.append(offset)

    def end(self, offset: int) -> None:
        """It is finished. Moves `finished` past all that are, without a gap."""
        self._done.add(offset)
        while self._waiting and self._waiting[0] in self._done:
            first = self._waiting.popleft()
            self._done.discard(first)
            self.finished = first + 1
