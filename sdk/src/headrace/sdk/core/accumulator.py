"""Records on their way out: appended to a partition's open batch, closed when full, taken in order.

A batch is columns from the start (hot path: nothing is made per record but a list entry). Sequence
numbers are given when a batch is sealed, which happens only when nothing else of the partition is
in flight; a sealed batch keeps its bytes, so a retry sends the very same.

Invariants: at most one batch of a queue is in flight; batches leave in the order of their records;
a batch's estimated size is never below its encoded size without compression.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from headrace.protocol import batch as batches
from headrace.protocol import limits
from headrace.protocol.compression import Codec
from headrace.protocol.errors import HeadraceError, RecordTooLarge
from headrace.protocol.ids import TopicId
from headrace.protocol.record import Headers, RecordMetadata

T = TypeVar("T")

RECORD_OVERHEAD_BYTES = 20
"""More than a record can cost beside its key, value and headers: two length prefixes of 5 bytes, a
timestamp of 9, an absent header of 1."""

BATCH_OVERHEAD_BYTES = batches.HEADER_BYTES + 32
"""Header and the columns' own prefixes."""

_SEQUENCE_MASK = 0x7FFFFFFF
_encoder = msgspec.msgpack.Encoder()


def headers_size(headers: Headers) -> int:
    """An upper bound of a header column's entry, bytes."""
    size = 5
    for name, value in headers.items():
        size += len(name.encode()) + len(value or b"") + 10
    return size


class Batch:
    """One batch from its first record to its acknowledgement.

    `stamps` are runs: (index of the first record, timestamp). `keys` and `headers` may be shorter
    than `values`: what is missing at the end is None. `may_be_written`: a try's end is unknown.
    `was_observed`: somebody waits or asked, so a failure isn't news to nobody."""

    __slots__ = (
        "append_time_ms", "attempts", "base_offset", "base_sequence", "count", "data", "deadline",
        "error", "headers", "is_done", "keys", "last_error", "last_stamp", "may_be_written",
        "observers", "opened_at", "partition", "room", "size_bytes", "stamps", "topic",
        "values", "was_observed",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, *, room: int, opened_at: float, deadline: float
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.room = room
        self.size_bytes = 0
        self.opened_at = opened_at
        self.deadline = deadline
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Headers | None] = []
        self.stamps: list[tuple[int, int]] = []
        self.last_stamp: int | None = None
        self.count = 0
        self.data: bytearray | None = None
        self.base_sequence = -1
        self.attempts = 0
        self.may_be_written = False
        self.last_error: HeadraceError | None = None
        self.is_done = False
        self.error: HeadraceError | None = None
        self.base_offset = -1
        self.append_time_ms = -1
        self.observers: list[Callable[[], None]] = []
        self.was_observed = False

    def append(
        self, value: bytes | None, key: bytes | None, headers: Headers | None, stamp: int, size: int
    ) -> int:
        """Adds one record of an estimated `size`; its index. The caller has checked the room."""
        values = self.values
        index = len(values)
        values.append(value)
        self.room -= size
        self.size_bytes += size
        if stamp != self.last_stamp:
            self.stamps.append((index, stamp))
            self.last_stamp = stamp
        if key is not None:
            _put_at(self.keys, index, key)
        if headers:
            _put_at(self.headers, index, headers)
        return index

    def extend(
        self,
        values: Sequence[bytes | None],
        stamp: int,
        size: int,
        keys: Sequence[bytes | None] | None = None,
    ) -> int:
        """Adds records without headers, and without keys unless given; the index of the first."""
        index = len(self.values)
        self.values.extend(values)
        if keys is not None:
            self.keys.extend([None] * (index - len(self.keys)))
            self.keys.extend(keys)
        self.room -= size
        self.size_bytes += size
        if stamp != self.last_stamp:
            self.stamps.append((index, stamp))
            self.last_stamp = stamp
        return index

    def stamp_of(self, index: int) -> int:
        """The timestamp of a record, ms."""
        return self.stamps[bisect_right(self.stamps, (index, limits.TIMESTAMP_MS_MAX + 1)) - 1][1]

    def metadata_of(self, index: int) -> RecordMetadata:
        """Where a delivered record is."""
        offset = -1 if self.base_offset < 0 else self.base_offset + index
        return RecordMetadata(self.topic, self.partition, offset, self.stamp_of(index))

    def seal(self, codec: Codec, *, producer_id: int, base_sequence: int) -> bytearray:
        """Encodes the batch for good; the bytes are kept until it is done.

        Raises:
            RecordTooLarge: beyond what any batch may be.
        """
        self.count = len(self.values)
        data = self._encode(codec, producer_id=producer_id, base_sequence=base_sequence)
        plain_bytes = batches.HEADER_BYTES + batches.read_header(data).uncompressed_length
        if codec is not Codec.NONE and len(data) > plain_bytes:
            # Compression enlarged it: readers shall not pay for nothing either.
            data = self._encode(Codec.NONE, producer_id=producer_id, base_sequence=base_sequence)
        self.data = data
        self.base_sequence = base_sequence
        return data

    def _encode(self, codec: Codec, *, producer_id: int, base_sequence: int) -> bytearray:
        count, stamps = len(self.values), self.stamps
        first = stamps[0][1]
        deltas: list[int] | None = None
        latest = first
        if len(stamps) > 1:
            deltas = []
            ends = [index for index, _ in stamps[1:]] + [count]
            for (start, stamp), end in zip(stamps, ends, strict=True):
                deltas += [stamp - first] * (end - start)
            latest = max(stamp for _, stamp in stamps)
        return batches.encode(
            keys=_padded(self.keys, count),
            values=self.values,
            timestamps=deltas,
            headers=_padded(self.headers, count),
            record_count=count,
            first_timestamp_ms=first,
            max_timestamp_ms=latest,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=base_sequence,
        )

    def deliver(self, base_offset: int, append_time_ms: int) -> None:
        """The batch is in the log (or, under acks=0, out of our hands)."""
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self._finish()

    def fail(self, error: HeadraceError) -> None:
        """The batch won't be delivered by us."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.count = self.count or len(self.values)
        # Handles may keep a batch alive for long; its bytes they don't need.
        self.values, self.keys, self.headers, self.data = [], [], [], None
        self.notify()

    def notify(self) -> None:
        """Calls and forgets all observers."""
        observers, self.observers = self.observers, []
        for observer in observers:
            observer()


def _put_at(column: list[T | None], index: int, entry: T) -> None:
    missing = index - len(column)
    if missing:
        column.extend([None] * missing)
    column.append(entry)


def _padded(column: list[T | None], count: int) -> list[T | None] | None:
    if not column:
        return None
    column.extend([None] * (count - len(column)))
    return column


def check_single(
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    *,
    bytes_max: int,
    compressed: bool,
) -> None:
    """Refuses a record that can't be in any batch of its topic. Called only where the estimate is
    above the limit, since it encodes the record.

    Raises:
        RecordTooLarge: alone in a batch it is larger than `bytes_max` (under compression only what
            is beyond every limit is known to be; the rest shows when the batch is sealed).
    """
    columns = ([key] if key is not None else None, [value], None, [headers or None], None)
    size = batches.HEADER_BYTES + len(_encoder.encode(columns))
    if size > (limits.UNCOMPRESSED_BYTES_MAX if compressed else bytes_max):
        raise too_large(topic, size, bytes_max)


def too_large(topic: str, size_bytes: int, bytes_max: int) -> RecordTooLarge:
    """The error for a record or batch over the topic's limit."""
    return RecordTooLarge(
        f"{size_bytes:,} bytes are over the limit of topic {topic!r}, {bytes_max:,}; send less at"
        " once or raise the topic's max.message.bytes",
        details={"size_bytes": size_bytes, "max_message_bytes": bytes_max},
    )


class PartitionQueue:
    """The batches of one partition: one in flight, those closed, the one still open.

    `producer_id` and `next_sequence` are the partition's own: after a batch that failed with its
    fate unknown, a new id begins at sequence 0 and nothing of the old one can get in the way."""

    __slots__ = (
        "batch_bytes", "closed", "in_flight", "next_sequence", "open", "partition", "producer_id",
        "retry_at", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: TopicId,
        partition: int,
        *,
        batch_bytes: int,
        producer_id: int,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.batch_bytes = batch_bytes
        self.producer_id = producer_id
        self.next_sequence = 0
        self.open: Batch | None = None
        self.closed: deque[Batch] = deque()
        self.in_flight: Batch | None = None
        self.retry_at = 0.0

    def open_batch(self, size: int, *, now: float, delivery_timeout: float) -> Batch:
        """A new open batch with room for at least `size` bytes; the one before is closed."""
        self.close_open()
        room = max(self.batch_bytes - BATCH_OVERHEAD_BYTES, size)
        deadline = now + delivery_timeout
        self.open = Batch(self.topic, self.partition, room=room, opened_at=now, deadline=deadline)
        return self.open

    def close_open(self) -> None:
        """No more records for the open batch."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None

    @property
    def has_records(self) -> bool:
        """Whether anything waits to be sent (what is in flight doesn't)."""
        return bool(self.closed) or self.open is not None

    def ready_at(self, *, linger_s: float) -> float:
        """When the next batch may leave; a queue with one in flight or without records: never."""
        if self.in_flight is not None or not self.has_records:
            return float("inf")
        if self.closed:
            return self.retry_at
        assert self.open is not None
        return max(self.retry_at, self.open.opened_at + linger_s)

    @property
    def is_retrying(self) -> bool:
        """Whether the next batch has been tried before."""
        return bool(self.closed) and self.closed[0].attempts > 0

    def take(self) -> Batch:
        """The next batch, which is in flight from now on. The caller has checked `ready_at`."""
        assert self.in_flight is None
        if not self.closed:
            self.close_open()
        self.in_flight = self.closed.popleft()
        return self.in_flight

    def seal(self, batch: Batch, codec: Codec) -> bytearray:
        """The batch's bytes: those of its first try, or encoded now with the next sequences."""
        if batch.data is not None:
            return batch.data
        if self.producer_id < 0:
            return batch.seal(codec, producer_id=batches.NO_PRODUCER, base_sequence=-1)
        sequence = self.next_sequence
        data = batch.seal(codec, producer_id=self.producer_id, base_sequence=sequence)
        # Wraps to 0 after 2^31 - 1, as Kafka's sequence numbers do.
        self.next_sequence = (sequence + batch.count) & _SEQUENCE_MASK
        return data

    def put_back(self, retry_at: float) -> None:
        """The batch in flight will be tried again, before all others."""
        assert self.in_flight is not None
        self.closed.appendleft(self.in_flight)
        self.in_flight = None
        self.retry_at = retry_at

    def settle(self) -> None:
        """The batch in flight is done."""
        self.in_flight = None
        self.retry_at = 0.0

    def new_identity(self, producer_id: int) -> None:
        """Sequences start over under another id: after a failure that left a gap."""
        self.producer_id = producer_id
        self.next_sequence = 0

    def seal_again(self, producer_id: int, retry_at: float) -> None:
        """The batch in flight was certainly not written and will be tried under a new id."""
        assert self.in_flight is not None
        assert not self.in_flight.may_be_written
        self.new_identity(producer_id)
        self.in_flight.data = None
        self.put_back(retry_at)

    def drop_all(self) -> list[Batch]:
        """Everything that waits, taken out (the topic is gone, or the producer closes)."""
        self.close_open()
        dropped = list(self.closed)
        self.closed.clear()
        return dropped
