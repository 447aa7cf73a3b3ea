"""The log of one partition: ordered segments, appended at the end, read anywhere, cut at both ends.

SIGNATURES FIRST: bodies follow in the next commits; names and meanings stay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.broker.log.config import LogConfig
from headrace.protocol.batch import BatchHeader
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import PartitionOffline
from headrace.protocol.ids import TopicIdPartition


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    last_offset: int
    append_time_ms: int


class TimeHit(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int


class LogSlice:
    """Whole batches of one segment: bytes to send. Close it (or use `with`) when sent."""

    position: int
    length: int
    base_offset: int
    """Offset of the first record of the first batch (may be below the offset asked for)."""
    next_offset: int
    """Offset after the last batch."""

    def read_nowait(self) -> bytes | None:
        """All bytes if they are in the page cache, else None. Never blocks. For small slices."""
        raise NotImplementedError

    async def read(self) -> bytes:
        """All bytes; the parts that are not in the page cache by a thread."""
        raise NotImplementedError

    def pieces(self, piece_bytes: int = 256 << 10) -> AsyncIterator[bytes]:
        """The bytes in pieces. Raises Conflict when the log was truncated under the reader."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of the file; may be called twice."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What opening found: `cut_bytes` > 0 when a tail was cut, `power_lost` when that tail (or
    any) may have been acknowledged (another boot id: the caller raises power_gen)."""

    scanned_bytes: int = 0
    cut_bytes: int = 0


class Log:
    """One partition's log. Everything not `async` is for the loop's thread and doesn't block."""

    partition_id: TopicIdPartition
    config: LogConfig
    start_offset: int
    end_offset: int
    flushed_offset: int
    high_watermark: int
    """Written by the partition layer; bounds retention, goes to the checkpoint."""
    size_bytes: int
    last_append_time_ms: int
    last_epoch: int
    """Leader epoch of the last batch, -1 in an empty log."""
    failure: PartitionOffline | None
    """Why the log takes no more appends or reads; None while it is well."""

    def append(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Appends one sealed batch. Raises StorageFull, PartitionOffline."""
        raise NotImplementedError

    def append_replicated(self, data: Buffer) -> Appended:
        """Appends whole batches as another replica assigned them. Raises CorruptBatch."""
        raise NotImplementedError

    def locate(self, offset: int, *, max_bytes: int, end_offset: int) -> LogSlice | None:
        """The slice from the batch with `offset` on, without blocking; None when there is nothing
        below `end_offset`. Raises OffsetOutOfRange; BlockingIOError when the disk must be asked:
        then `await locate_cold(...)`."""
        raise NotImplementedError

    async def locate_cold(self, offset: int, *, max_bytes: int, end_offset: int) -> LogSlice | None:
        """As `locate`, with threads for what is not in memory."""
        raise NotImplementedError

    async def offset_for_time(self, timestamp_ms: int, *, end_offset: int) -> TimeHit | None:
        """The first record below `end_offset` with a timestamp of at least `timestamp_ms`."""
        raise NotImplementedError

    async def offset_after_bytes(self, offset: int, size_bytes: int, *, end_offset: int) -> int:
        """The offset of the batch that starts at least `size_bytes` after `offset`'s batch, or
        `end_offset`: what a consumer passes to split a partition in equal parts."""
        raise NotImplementedError

    def truncate_to(self, offset: int) -> None:
        """Drops all batches with records at or above `offset`; epochs and producers follow."""
        raise NotImplementedError

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log is empty and starts and ends at `offset`."""
        raise NotImplementedError

    def advance_start(self, offset: int) -> None:
        """delete-records: the log starts at `offset` (at most the high watermark). Durable only
        after the volume's next checkpoint."""
        raise NotImplementedError

    async def apply_retention(self, now_ms: int) -> int:
        """Rolls and deletes what the policy says; answers how many segments went."""
        raise NotImplementedError

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """`(greatest epoch <= epoch, its end offset)`, `(-1, start_offset)` when there is none."""
        raise NotImplementedError

    def configure(self, config: LogConfig) -> None:
        """Takes a changed configuration, from the next append on."""
        raise NotImplementedError


Progress = Callable[[int, int], None]
