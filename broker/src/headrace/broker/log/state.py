"""What a log is at one moment: its bounds, its segments, its health. `Log` is this plus operations.

The parts that read (reader.py), cut (cutter.py, retention.py), sync (syncing.py) and keep producers
(snapshots.py) work on a LogState and don't know each other's insides. Which segments there are is
changed by SegmentList alone; the bounds are written by the operation that moves them.
"""

from __future__ import annotations

import errno
import os

from headrace.broker.core.compaction import Cleaned
from headrace.broker.log import swap
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.epochs import EpochCache
from headrace.broker.log.index import BrokenBatch
from headrace.broker.log.producers import ProducerState
from headrace.broker.log.restore import Extent
from headrace.broker.log.segment import Segment
from headrace.broker.log.segments import SegmentList, place_of
from headrace.protocol.errors import HeadraceError, PartitionOffline, StorageFull
from headrace.protocol.ids import TopicIdPartition

FAILED_FILE = "failed"
"""In a log's directory: why it went offline; there until the directory is replaced."""

DIVERGED = "another history"
"""In the reason of a log that went offline because its leader contradicts what was committed: never
replaced by itself (R15)."""

ATTEMPTS_MAX = 5
"""How often a question is put again when retention or truncation changed the log under it."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FATAL = frozenset(
    {errno.EIO, errno.EROFS, errno.ENOENT, errno.EBADF, errno.ESTALE, errno.ENXIO, errno.ENODEV}
)


class LogState:
    """One partition's log as data.

    Invariants: start_offset <= high_watermark <= end_offset; flushed_offset <= end_offset;
    `failure` set means nothing is written any more.
    """

    def __init__(
        self,
        partition_id: TopicIdPartition,
        directory: str,
        *,
        checkpoint: Checkpoint,
        config: LogConfig,
        context: LogContext,
    ) -> None:
        """As `checkpoint` describes it; reads nothing."""
        self.partition_id = partition_id
        self.directory = directory
        self.config = config
        self.context = context
        self.files = context.files
        self.disk = context.files.disk
        self.start_offset = checkpoint.start_offset
        self.end_offset = checkpoint.end_offset
        """Offset of the next record (LEO)."""
        self.flushed_offset = checkpoint.recovery_point
        """Everything below is on the disk."""
        self.high_watermark = checkpoint.high_watermark
        """Written by the partition layer; bounds retention, goes to the checkpoint."""
        self.segments = SegmentList(directory, checkpoint, context, config.index_interval_bytes)
        self.last_append_time_ms = checkpoint.last_append_ms
        self.epochs = EpochCache(self.disk, directory)
        self.last_epoch = checkpoint.last_epoch
        """Leader epoch of the last batch, -1 in a log without any."""
        self.failure: PartitionOffline | None = None
        if checkpoint.failure:
            self.failure = PartitionOffline(checkpoint.failure)
        self.producers: ProducerState | None = None
        """State of idempotent producers, None until `load_producers`."""
        self.has_producers = checkpoint.has_producers
        """Whether the log may hold batches of idempotent producers, told without the state."""
        if not checkpoint.has_producers:
            self.producers = self.new_producers(complete=True)
        self.is_dirty = self.flushed_offset < self.end_offset
        """Whether bytes were appended that are not on the disk."""
        self.directory_dirty = False
        """Whether files were made or removed since the directory was synced."""
        self.cleaned: Cleaned | None = None
        """What cleaning has done, None until it was read (cleaning.py)."""
        self._has_holes: bool | None = None
        self.truncations = checkpoint.truncations
        """How often the log was truncated; see truncations.py."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.segments.size_bytes

    def new_producers(self, *, complete: bool) -> ProducerState:
        """An empty state; `complete` when no producer can have been forgotten."""
        return ProducerState(
            complete=complete,
            expiry_ms=self.context.producer_expiry_ms,
            producers_max=self.context.producers_max,
        )

    @property
    def has_holes(self) -> bool:
        """Whether offsets may be missing between batches: the log is cleaned, or once was, or was
        copied from one that was. Looks at the directory once."""
        if self.config.cleaning.cleans:
            return True
        if self._has_holes is None:
            self._has_holes = swap.has_holes(self.disk, self.directory)
        return self._has_holes

    def note_holes(self) -> None:
        """Remembers on disk that the log has holes, before the first batch behind one is written.

        Raises:
            StorageFull, PartitionOffline: it can't be noted.
        """
        try:
            swap.note_holes(self.disk, self.directory)
        except OSError as error:
            raise self.translated(error) from error
        self._has_holes = True

    def older_segments(self) -> list[Segment]:
        """All but the active segment, listed at first need.

        Raises:
            PartitionOffline: the first ones are missing.
        """
        older = self.segments.older(self.start_offset)
        first = older[0] if older else self.segments.active
        if first.base_offset > self.start_offset:
            self.fail(f"the log should start at {self.start_offset}, files at {first.base_offset}")
            self.check_alive()
        return older

    def end_of(self, segment: Segment) -> int:
        """Offset after the segment's last record."""
        active = self.segments.active
        if segment is active:
            return self.end_offset
        older = self.older_segments()
        place = place_of(older, segment.base_offset)
        return older[place + 1].base_offset if place + 1 < len(older) else active.base_offset

    def extents(self) -> list[Extent]:
        """All segments as they are now, for work in a thread. Raises PartitionOffline."""
        self.check_alive()
        segments = [*self.older_segments(), self.segments.active]
        ends = [segment.base_offset for segment in segments[1:]] + [self.end_offset]
        return [
            Extent(segment.stem, segment.base_offset, segment.size_bytes, end)
            for segment, end in zip(segments, ends, strict=True)
        ]

    def change(self) -> None:
        """Bytes are about to go: what threads and readers found is void, producers are too."""
        self.segments.void()
        self.has_producers = self.has_producers or bool(self.producers)
        self.producers = None

    def check_alive(self) -> None:
        """Raises PartitionOffline when the log failed."""
        if self.failure is not None:
            raise PartitionOffline(self.failure.message)

    def fail(self, reason: str) -> None:
        """Takes the log offline until its directory is replaced (R23); remembered on disk as far as
        that still works. Crash after: the next start finds the note, or the damage again."""
        if self.failure is not None:
            return
        self.failure = PartitionOffline(f"partition offline: {reason}")
        disk, path = self.disk, os.path.join(self.directory, FAILED_FILE)
        text = self.failure.message.encode()

        def remember() -> None:
            try:
                disk.replace_file(path, text, sync=True)
            except OSError:
                pass

        self.files.workers.submit(remember)

    def translated(self, error: OSError) -> HeadraceError:
        """What to raise for it; the log fails if there is no going on."""
        if error.errno in _FULL:
            return StorageFull(f"the disk is full: {error.strerror}")
        if error.errno in _FATAL:
            self.fail(f"{error.strerror} ({error.filename or self.directory})")
        return PartitionOffline(f"the log can't be written or read: {error}")

    def damaged(self, segment: Segment, error: BrokenBatch) -> PartitionOffline:
        """A batch boundary that holds no batch: the partition can't go on with this file."""
        self.fail(f"{segment.file.path} is damaged: {error}")
        return PartitionOffline(f"{segment.file.path} is damaged: {error}")

    def settle(self, error: BrokenBatch | OSError, generation: int) -> None:
        """After a thread's failure: nothing when the log changed under it, else what it means."""
        if generation != self.segments.generation:
            return
        if isinstance(error, OSError):
            raise self.translated(error) from error
        self.fail(f"{self.directory} is damaged: {error}")
        self.check_alive()
