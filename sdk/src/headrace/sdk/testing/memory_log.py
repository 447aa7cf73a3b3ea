"""One partition of the in-memory cluster: whole batches in a list, and its producers' sequences."""

from __future__ import annotations

from bisect import bisect_right

from headrace.protocol import batch as batches
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    Fenced,
    InvalidRequest,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordTooLarge,
)
from headrace.protocol.record import Record

BATCHES_KEPT = 5
"""Batches of a producer whose retry is recognised, as brokers do."""

_SEQUENCES = 1 << 31


class MemoryLog:
    """Invariant: `_bases[i]` is the base offset of `_batches[i]`; offsets are dense from the first
    batch to `end_offset`."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start_offset = 0
        self.end_offset = 0
        self._batches: list[bytes] = []
        self._bases: list[int] = []
        self._producers: dict[int, tuple[int, list[tuple[int, int, int, int]]]] = {}

    def append(self, data: Buffer, *, now_ms: int, bytes_max: int) -> tuple[int, int]:
        """Checks and appends one sealed batch; its base offset and append time (of its first
        arrival, if it is a retry).

        Raises:
            CorruptBatch, UnsupportedFormat, InvalidRequest, RecordTooLarge: not a batch to take.
            Fenced, OutOfOrderSequence: not what its producer may send.
        """
        header = batches.read_header(data)
        batches.check_shape(header, len(data))
        batches.check_sealed_crc(data, header)
        if not header.record_count:
            raise InvalidRequest("a batch holds at least one record")
        if len(data) > bytes_max:
            raise RecordTooLarge(f"{len(data):,} bytes are over max.message.bytes={bytes_max:,}")
        batches.check_timestamps(header.first_timestamp_ms, header.max_timestamp_ms)
        known = self._check_sequence(header)
        if known is not None:
            return known
        base = self.end_offset
        assigned = batches.assigned_bytes(
            len(data), base_offset=base, append_time_ms=now_ms, leader_epoch=0
        )
        self._batches.append(assigned + bytes(memoryview(data)[batches.ASSIGNED_BYTES :]))
        self._bases.append(base)
        self.end_offset = base + header.last_offset_delta + 1
        if header.producer_id >= 0:
            last = (header.base_sequence + header.record_count - 1) % _SEQUENCES
            _, kept = self._producers.setdefault(header.producer_id, (header.producer_epoch, []))
            kept.append((header.base_sequence, last, base, now_ms))
            self._producers[header.producer_id] = (header.producer_epoch, kept[-BATCHES_KEPT:])
        return base, now_ms

    def _check_sequence(self, header: batches.BatchHeader) -> tuple[int, int] | None:
        if header.producer_id < 0:
            return None
        epoch, kept = self._producers.get(header.producer_id, (header.producer_epoch, []))
        if header.producer_epoch < epoch:
            raise Fenced(f"producer {header.producer_id} has epoch {epoch} by now")
        if header.producer_epoch > epoch:
            kept = []
        last = (header.base_sequence + header.record_count - 1) % _SEQUENCES
        for base_sequence, last_sequence, base_offset, append_time_ms in kept:
            if (base_sequence, last_sequence) == (header.base_sequence, last):
                return base_offset, append_time_ms
        expected = (kept[-1][1] + 1) % _SEQUENCES if kept else 0
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence},"
                f" expected {expected}"
            )
        return None

    def forget_producers(self) -> None:
        """As after a day of silence: their next batch must begin at sequence 0."""
        self._producers.clear()

    def read(self, offset: int, *, bytes_max: int, until: int = -1) -> list[bytes]:
        """Whole batches from the one with `offset` on, about `bytes_max` bytes, at least one.

        Raises:
            OffsetOutOfRange: before the start or after the end.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"{self.topic}/{self.partition}: offset {offset} is not between"
                f" {self.start_offset} and {self.end_offset}",
                details={"log_start_offset": self.start_offset, "high_watermark": self.end_offset},
            )
        found: list[bytes] = []
        size = 0
        if offset == self.end_offset:
            return found
        for index in range(bisect_right(self._bases, offset) - 1, len(self._bases)):
            data = self._batches[index]
            if found and size + len(data) > bytes_max or 0 <= until <= self._bases[index]:
                break
            found.append(data)
            size += len(data)
        return found

    def delete_before(self, offset: int) -> int:
        """Moves the start; the new one."""
        if offset > self.end_offset:
            raise OffsetOutOfRange(
                f"{self.topic}/{self.partition} ends at {self.end_offset}, before offset {offset}"
            )
        self.start_offset = max(self.start_offset, offset)
        return self.start_offset

    def records(self) -> list[Record]:
        """All records that a consumer could read."""
        found: list[Record] = []
        for data in self._batches:
            header = batches.read_header(data)
            found += batches.records(self.topic, self.partition, data, header)
        return [record for record in found if record.offset >= self.start_offset]

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after a time."""
        for record in self.records():
            if record.timestamp_ms >= timestamp_ms:
                return record.offset, record.timestamp_ms
        return None

    def offset_after_bytes(self, offset: int, size_bytes: int) -> int:
        """The first batch border so that `size_bytes` lie between it and `offset`."""
        size = 0
        for index in range(max(bisect_right(self._bases, offset) - 1, 0), len(self._bases)):
            if size >= size_bytes and self._bases[index] > offset:
                return self._bases[index]
            size += len(self._batches[index])
        return self.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(map(len, self._batches))

    def damage(self, index: int) -> None:
        """Flips a bit in the payload of batch number `index`, as a bad disk would."""
        data = bytearray(self._batches[index])
        data[-1] ^= 1
        self._batches[index] = bytes(data)
