"""The log of one partition: ordered segments, appended at the end, read anywhere, cut at both ends.

Everything not `async` is for the loop's thread. Appending is one pwritev in the loop with nothing
buffered in the process (replication.md R13); finding needs memory and the page cache only, or says
so; syncing is the flusher's. Knows nothing of leaders, waiting or clocks: epochs and times come in.

    append -> active segment -> (roll) -> older segments -> retention, delete-records
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.core.retention import RetentionPolicy, SegmentInfo, deletable, is_expired
from headrace.broker.log import index as index_files
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.epochs import EpochCache
from headrace.broker.log.files import Disk, LogFile
from headrace.broker.log.index import BrokenBatch, Place, SegmentIndex, file_reader
from headrace.broker.log.lookups import (
    SegmentLook,
    TimeHit,
    offset_after_bytes,
    offset_for_time,
)
from headrace.broker.log.producers import ProducerState
from headrace.broker.log.restore import Extent, drop_snapshots, replay, restore, snapshot_path
from headrace.broker.log.segment import (
    Query,
    Segment,
    Span,
    find,
    last_header_before,
    list_files,
    load_index,
    plan,
)
from headrace.broker.log.slices import LogSlice
from headrace.broker.log.truncations import Truncation, note
from headrace.protocol.batch import (
    HEADER_BYTES,
    BatchHeader,
    assigned_bytes,
    check_sealed_crc,
    check_shape,
    is_assigned_crc_good,
    read_header,
)
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    Conflict,
    CorruptBatch,
    HeadraceError,
    OffsetOutOfRange,
    PartitionOffline,
    StorageFull,
)
from headrace.protocol.ids import TopicIdPartition

FAILED_FILE = "failed"
"""In a log's directory: why it went offline; there until the directory is replaced."""

HINTS_MAX = 64
"""Ends of recent reads remembered in one log, so that tail readers need no search."""

ATTEMPTS_MAX = 5
"""How often a question is put again when retention or truncation changed the log under it."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FATAL = frozenset(
    {errno.EIO, errno.EROFS, errno.ENOENT, errno.EBADF, errno.ESTALE, errno.ENXIO, errno.ENODEV}
)


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    last_offset: int
    append_time_ms: int


class ColdRead(BlockingIOError):
    """The answer is not in memory: ask again with `locate_cold`."""


class SyncJob(NamedTuple):
    """What one fdatasync round covers; made on the loop's thread, run in another."""

    end_offset: int
    generation: int
    files: tuple[tuple[LogFile, int], ...]
    rolled: tuple[Segment, ...]
    epochs_path: str | None
    directory: str | None

    def run(self, disk: Disk) -> None:
        """Syncs epochs, then data, then names. Crash within: the recovery point stays where it
        was, as it is moved only after all of it. Raises OSError."""
        if self.epochs_path is not None:
            fd = disk.open(self.epochs_path, create=True)
            try:
                disk.sync(fd)
            finally:
                disk.close(fd)
        for _file, fd in self.files:
            disk.sync(fd)
        if self.directory is not None:
            disk.sync_directory(self.directory)


class Log:
    """One partition's log.

    Invariants: start_offset <= high_watermark <= end_offset; flushed_offset <= end_offset; the
    last segment is the only one written to; `failure` set means nothing is written any more.
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
        """A log as `checkpoint` describes it; reads nothing. See `recovery.open_log`."""
        self.partition_id = partition_id
        self.directory = directory
        self.config = config
        self._context = context
        self._files = context.files
        self._disk = context.files.disk
        self.start_offset = checkpoint.start_offset
        self.end_offset = checkpoint.end_offset
        """Offset of the next record (LEO)."""
        self.flushed_offset = checkpoint.recovery_point
        """Everything below is on the disk."""
        self.high_watermark = checkpoint.high_watermark
        """Written by the partition layer; bounds retention, goes to the checkpoint."""
        self.size_bytes = checkpoint.size_bytes
        self.last_append_time_ms = checkpoint.last_append_ms
        self.last_epoch = checkpoint.last_epoch
        """Leader epoch of the last batch, -1 in a log without any."""
        self.failure: PartitionOffline | None = None
        if checkpoint.failure:
            self.failure = PartitionOffline(checkpoint.failure)
        self.producers: ProducerState | None = None
        """State of idempotent producers, None until `load_producers`."""
        self._has_producers = checkpoint.has_producers
        if not checkpoint.has_producers:
            self.producers = self._new_producers(complete=True)
        self.epochs = EpochCache(self._disk, directory)
        self._active = Segment(directory, checkpoint.active_base, checkpoint.active_bytes)
        self._active.first_append_ms = checkpoint.active_first_append_ms
        self._active.last_append_ms = checkpoint.last_append_ms
        self._active.index = SegmentIndex(
            interval_bytes=config.index_interval_bytes,
            start_position=checkpoint.active_bytes,
            max_timestamp_ms=checkpoint.active_max_timestamp_ms,
        )
        self._older: list[Segment] | None = None if checkpoint.older_segments else []
        self._older_count = checkpoint.older_segments
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._rolled: list[Segment] = []
        self._directory_dirty = False
        self._is_dirty = self.flushed_offset < self.end_offset
        self._generation = 0
        self._truncations = checkpoint.truncations
        self._snapshot_offset = -1
        self._snapshot_due = self.size_bytes + context.snapshot_bytes

    def __repr__(self) -> str:
        topic_id, partition = self.partition_id
        return f"<Log {topic_id.hex()}/{partition} {self.start_offset}..{self.end_offset}>"

    # ---------------------------------------------------------------- appending

    def append(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Appends one sealed batch (validated by the caller; `header` is its header), giving it its
        offset and append time. The append time never goes back, even if the clock does.

        Crash after: as `Disk.writev`; a torn batch is cut by recovery.

        Raises:
            StorageFull: nothing was appended; the log is as before.
            PartitionOffline: nothing was appended; see `failure`.
        """
        self._check_alive()
        last = self.last_append_time_ms
        append_time_ms = now_ms if now_ms > last else last
        length = header.length
        active = self._active_for(length, append_time_ms)
        if leader_epoch != self.last_epoch:
            self._begin_epoch(leader_epoch, self.end_offset)
        base_offset = self.end_offset
        assigned = assigned_bytes(
            length,
            base_offset=base_offset,
            append_time_ms=append_time_ms,
            leader_epoch=leader_epoch,
        )
        self._write(active, (assigned, memoryview(batch)[32:length]), length)
        if not self._is_dirty:
            self._become_dirty()
        next_offset = base_offset + header.last_offset_delta + 1
        self._count(active, base_offset, header, append_time_ms)
        self.end_offset = next_offset
        if self.producers is not None:
            self.producers.update(header, base_offset, append_time_ms)
            if self.size_bytes >= self._snapshot_due:
                self._save_snapshot()
        elif header.producer_id >= 0:
            self._has_producers = True
        return Appended(base_offset, next_offset - 1, append_time_ms)

    def append_replicated(self, data: Buffer) -> Appended:
        """Appends whole batches as another replica assigned them: the first must begin at this
        log's end, offsets without gap, epochs not falling, all checksums good (R15).

        Answers the base offset of the first, last offset and append time of the last batch. On an
        error nothing was appended.

        Raises:
            CorruptBatch: the bytes are not that.
            StorageFull, PartitionOffline: as `append`.
        """
        self._check_alive()
        headers = self._check_replicated(data)
        active = self._active_for(len(data), headers[-1][1].append_time_ms)
        for _position, header in headers:
            if header.leader_epoch != self.last_epoch:
                self._begin_epoch(header.leader_epoch, header.base_offset)
        first_offset = self.end_offset
        self._write(active, (data,), len(data))
        if not self._is_dirty:
            self._become_dirty()
        for _position, header in headers:
            stamp = max(header.append_time_ms, self.last_append_time_ms)
            self._count(active, header.base_offset, header, stamp)
            if self.producers is not None:
                self.producers.update(header, header.base_offset, header.append_time_ms)
            elif header.producer_id >= 0:
                self._has_producers = True
        self.end_offset = headers[-1][1].next_offset
        if self.producers is not None and self.size_bytes >= self._snapshot_due:
            self._save_snapshot()
        return Appended(first_offset, self.end_offset - 1, headers[-1][1].append_time_ms)

    def _check_replicated(self, data: Buffer) -> list[tuple[int, BatchHeader]]:
        found: list[tuple[int, BatchHeader]] = []
        view = memoryview(data)
        position, expected, epoch = 0, self.end_offset, self.last_epoch
        while position < len(view):
            header = read_header(view, position)
            batch = view[position : position + header.length]
            check_shape(header, len(batch))
            if not is_assigned_crc_good(batch):
                raise CorruptBatch("the checksum over a batch's offset and epoch is wrong")
            check_sealed_crc(batch, header)
            if header.base_offset != expected or header.leader_epoch < epoch:
                raise CorruptBatch(
                    f"expected a batch at offset {expected} of epoch {epoch} or later, got"
                    f" {header.base_offset} of epoch {header.leader_epoch}"
                )
            found.append((position, header))
            position, expected = position + header.length, header.next_offset
            epoch = header.leader_epoch
        if not found:
            raise CorruptBatch("no batch to append")
        return found

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise PartitionOffline(self.failure.message)

    def _active_for(self, length: int, append_time_ms: int) -> Segment:
        """The segment to append `length` bytes to, after rolling if it is due."""
        active = self._active
        size = active.size_bytes
        if size == 0:
            active.first_append_ms = append_time_ms
        elif (
            size + length > self.config.segment_bytes
            or append_time_ms - active.first_append_ms >= self.config.segment_ms
        ):
            self.roll()
            active = self._active
            active.first_append_ms = append_time_ms
        return active

    def _begin_epoch(self, epoch: int, start_offset: int) -> None:
        if epoch < self.last_epoch:
            raise PartitionOffline(
                f"an append under epoch {epoch} came after one under {self.last_epoch}"
            )
        try:
            self.epochs.begin(epoch, start_offset)
        except OSError as error:
            raise self._translated(error) from error
        self.last_epoch = epoch
        self._directory_dirty = True

    def _forget_epochs(self) -> None:
        """After a failed append: no epoch may seem to have batches that it hasn't."""
        if self.failure is None:
            self.epochs.forget(self.end_offset)
            self.last_epoch = self.epochs.epoch_at(self.end_offset - 1)

    def _write(self, active: Segment, buffers: Sequence[Buffer], length: int) -> None:
        try:
            fd = self._files.fd(active.file, create=active.size_bytes == 0)
            written = self._disk.writev(fd, buffers, active.size_bytes)
        except OSError as error:
            self._undo_write(active)
            raise self._translated(error) from error
        if written != length:
            self._undo_write(active)
            raise StorageFull(f"the disk took {written} of {length} bytes: it is full")

    def _undo_write(self, active: Segment) -> None:
        """Takes back half a batch. Crash before: recovery cuts it."""
        self._forget_epochs()
        if active.file.fd is None:
            return
        try:
            self._disk.truncate(active.file.fd, active.size_bytes)
        except OSError as error:
            self.fail(f"half a batch could not be taken back: {error}")

    def _translated(self, error: OSError) -> HeadraceError:
        if error.errno in _FULL:
            return StorageFull(f"the disk is full: {error.strerror}")
        if error.errno in _FATAL:
            self.fail(f"{error.strerror} ({error.filename or self.directory})")
        return PartitionOffline(f"the log can't be written or read: {error}")

    def _count(
        self, active: Segment, base_offset: int, header: BatchHeader, append_time_ms: int
    ) -> None:
        """Takes in a batch just written at the segment's end, but for the end offset."""
        index = active.index
        assert index is not None
        position = active.size_bytes
        if position >= index.next_position:
            index.add(base_offset, position)
            if len(index.offsets) - index.saved_rows >= index_files.SAVE_ROWS:
                self._save_index(active)
        if header.max_timestamp_ms > index.max_timestamp_ms:
            index.max_timestamp_ms = header.max_timestamp_ms
        active.size_bytes = position + header.length
        self.size_bytes += header.length
        active.last_append_ms = self.last_append_time_ms = append_time_ms

    def roll(self) -> None:
        """Closes the active segment and begins the next one at the log's end; the closed one is
        synced off the loop. An empty active segment stays.

        Crash after: two segments, the second empty or missing; recovery takes either.
        """
        closed = self._active
        if closed.size_bytes == 0:
            return
        following = Segment(self.directory, self.end_offset)
        following.index = SegmentIndex(interval_bytes=self.config.index_interval_bytes)
        try:
            self._files.fd(following.file, create=True)
        except OSError as error:
            raise self._translated(error) from error
        self._save_index(closed)
        if self.producers is not None:
            self._save_snapshot()
        if closed.index is not None and closed.index.start_position == 0:
            self._context.indexes.put(closed.stem, closed.index)
        closed.index = None
        self._directory_dirty = True
        self._rolled.append(closed)
        if self._older is not None:
            self._older.append(closed)
        self._older_count += 1
        self._active = following
        self._context.events.wants_sync(self)

    def _save_index(self, segment: Segment) -> None:
        """Best effort: a missing or torn index file is made again from the log."""
        index = segment.index
        if index is None or not index.unsaved_rows:
            return
        try:
            index_files.save(self._disk, segment.stem, index)
        except OSError:
            index.saved_rows = len(index.offsets)

    def _save_snapshot(self) -> None:
        """Best effort: without it more of the log is walked when the state is loaded."""
        assert self.producers is not None
        self._snapshot_due = self.size_bytes + self._context.snapshot_bytes
        offset, before = self.end_offset, self._snapshot_offset
        if offset == before:
            return
        path = snapshot_path(self.directory, offset)
        try:
            self._disk.replace_file(path, self.producers.snapshot(offset), sync=False)
        except OSError:
            return
        if before > self._active.base_offset:
            self._disk.unlink(snapshot_path(self.directory, before))
        self._snapshot_offset = offset

    def _new_producers(self, *, complete: bool) -> ProducerState:
        return ProducerState(
            complete=complete,
            expiry_ms=self._context.producer_expiry_ms,
            producers_max=self._context.producers_max,
        )

    def _become_dirty(self) -> None:
        self._is_dirty = True
        self._context.events.became_dirty(self)

    # ---------------------------------------------------------------- reading

    def locate(self, offset: int, *, max_bytes: int, end_offset: int) -> LogSlice | None:
        """The slice from the batch that holds `offset` on: whole batches of one segment, all of
        their offsets below `end_offset`, at most `max_bytes` but at least one batch; None when
        there is none. Never blocks.

        Raises:
            ColdRead: the answer isn't in memory (a BlockingIOError): `await locate_cold(...)`.
            OffsetOutOfRange: before the log's start or behind its end; `details` has both.
            PartitionOffline: the log is damaged; see `failure`.
        """
        found = self._reach(offset, end_offset, max_bytes)
        if found is None:
            return None
        segment, query = found
        index = self._index_of(segment)
        if index is None or not query.is_covered_by(index):
            raise ColdRead("the segment's index is not in memory")
        try:
            return self._sliced(segment, plan(index, self._hot_reader(segment), query))
        except BrokenBatch as error:
            raise self._damaged(segment, error) from error

    async def locate_cold(self, offset: int, *, max_bytes: int, end_offset: int) -> LogSlice | None:
        """As `locate`, with a thread for what isn't in memory.

        Raises:
            Conflict: the log kept being truncated meanwhile; ask again.
            OffsetOutOfRange, PartitionOffline: as `locate`.
        """
        for _attempt in range(ATTEMPTS_MAX):
            try:
                return self.locate(offset, max_bytes=max_bytes, end_offset=end_offset)
            except ColdRead:
                pass
            found = self._reach(offset, end_offset, max_bytes)
            if found is None:
                return None
            segment, query = found
            generation = self._generation
            try:
                index = await self._loaded_index(segment)
                if index is None:
                    continue
                span = await self._plan_cold(segment, index, query)
            except (BrokenBatch, OSError) as error:
                if not segment.file.discarded:
                    self._settle(error, generation)
                continue
            if generation == self._generation and not segment.file.discarded:
                return self._sliced(segment, span)
        raise Conflict("the log was truncated again and again while it was searched; fetch again")

    async def _plan_cold(self, segment: Segment, index: SegmentIndex, query: Query) -> Span | None:
        fd = self._files.pin(segment.file)
        try:
            read = file_reader(self._disk, fd)
            return await self._files.workers.run(plan, index, read, query)
        finally:
            self._files.unpin(segment.file)

    def _reach(self, offset: int, end_offset: int, max_bytes: int) -> tuple[Segment, Query] | None:
        """The segment to read from and what to look for there; None when there is nothing."""
        self._check_alive()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is outside {self.start_offset} to {self.end_offset}",
                details={"start_offset": self.start_offset, "end_offset": self.end_offset},
            )
        active = self._active
        if offset >= end_offset or offset >= self.end_offset:
            if offset == self.end_offset and offset not in self._hints:
                self._hint(offset, active, active.size_bytes)
            return None
        segment = active
        if offset < active.base_offset:
            older = self._older_segments()
            segment = older[_place_of(older, offset)]
        end = Place(self._end_of(segment), segment.size_bytes)
        start, stop = self._hinted(segment, offset), self._hinted(segment, end_offset)
        return segment, Query(offset, end_offset, max_bytes, end, start, stop)

    def _end_of(self, segment: Segment) -> int:
        """Offset after the segment's last record."""
        if segment is self._active:
            return self.end_offset
        older = self._older_segments()
        place = _place_of(older, segment.base_offset)
        return older[place + 1].base_offset if place + 1 < len(older) else self._active.base_offset

    def _older_segments(self) -> list[Segment]:
        """All but the active segment, listed at first need."""
        if self._older is None:
            self._older = []
            for base_offset, size_bytes in list_files(self._disk, self.directory).segments:
                if base_offset < self._active.base_offset:
                    self._older.append(Segment(self.directory, base_offset, size_bytes))
            while len(self._older) > 1 and self._older[1].base_offset <= self.start_offset:
                self._files.discard(self._older.pop(0).file)
            self._older_count = len(self._older)
        first = self._older[0] if self._older else self._active
        if first.base_offset > self.start_offset:
            self.fail(f"the log should start at {self.start_offset}, files at {first.base_offset}")
            self._check_alive()
        return self._older

    def _hinted(self, segment: Segment, offset: int) -> Place | None:
        found = self._hints.get(offset)
        if found is None or found[0] is not segment or found[1] >= segment.size_bytes:
            return None
        return Place(offset, found[1])

    def _hint(self, offset: int, segment: Segment, position: int) -> None:
        hints = self._hints
        hints.pop(offset, None)
        if len(hints) >= HINTS_MAX:
            del hints[next(iter(hints))]
        hints[offset] = (segment, position)

    def _sliced(self, segment: Segment, span: Span | None) -> LogSlice | None:
        if span is None:
            return None
        self._hint(span.next_offset, segment, span.position + span.length)
        return LogSlice(self._files, segment.file, span)

    def _hot_reader(self, segment: Segment) -> index_files.Read:
        """Reads from the page cache or raises ColdRead."""
        files, file = self._files, segment.file

        def read(position: int, size_bytes: int) -> Buffer:
            try:
                data = files.disk.pread_nowait(files.fd(file), size_bytes, position)
            except OSError as error:
                raise self._translated(error) from error
            if data is None or len(data) < size_bytes:
                raise ColdRead("the batch headers are not in the page cache")
            return data

        return read

    def _index_of(self, segment: Segment) -> SegmentIndex | None:
        return segment.index or self._context.indexes.get(segment.stem)

    async def _loaded_index(self, segment: Segment) -> SegmentIndex | None:
        """The segment's whole index, read by a thread if need be; None when it changed meanwhile.

        Raises:
            BrokenBatch, OSError: the segment can't be read.
        """
        index = self._index_of(segment)
        if index is not None and index.start_position == 0:
            return index
        generation = self._generation
        size_bytes = index.start_position if index is not None else segment.size_bytes
        head, last = await self._files.workers.run(
            load_index, self._disk, segment, size_bytes, self.config.index_interval_bytes
        )
        if generation != self._generation or segment.file.discarded:
            return None
        return self._install(segment, head, last)

    def _install(
        self, segment: Segment, head: SegmentIndex, last: BatchHeader | None
    ) -> SegmentIndex:
        now = self._index_of(segment)
        if now is not None and now.start_position == 0:
            return now
        if segment is self._active:
            assert now is not None
            is_damaged = head.saved_rows == 0
            segment.index = now.joined(head)
            if is_damaged:
                self._repair_index(segment, segment.index)
            return segment.index
        if last is not None:
            segment.last_append_ms = last.append_time_ms
        segment.index = None
        if head.saved_rows == 0:
            self._repair_index(segment, head)
        self._context.indexes.put(segment.stem, head)
        return head

    def _repair_index(self, segment: Segment, index: SegmentIndex) -> None:
        try:
            index_files.save_all(self._disk, segment.stem, index)
        except OSError:
            index.saved_rows = len(index.offsets)

    def _damaged(self, segment: Segment, error: BrokenBatch) -> PartitionOffline:
        """A batch boundary that holds no batch: the partition can't go on with this file."""
        self.fail(f"{segment.file.path} is damaged: {error}")
        return PartitionOffline(f"{segment.file.path} is damaged: {error}")

    async def offset_for_time(self, timestamp_ms: int, *, end_offset: int) -> TimeHit | None:
        """The first record below `end_offset` with a timestamp of at least `timestamp_ms`, exact to
        the record; None when there is none. Only whole batches below `end_offset` count.

        Raises:
            PartitionOffline: the log is damaged.
            Conflict: as `locate_cold`.
        """
        for _attempt in range(ATTEMPTS_MAX):
            looks, generation = self._looks(self.start_offset), self._generation
            try:
                return await self._files.workers.run(
                    offset_for_time, self._disk, looks, timestamp_ms,
                    start_offset=self.start_offset, end_offset=min(end_offset, self.end_offset),
                    interval_bytes=self.config.index_interval_bytes,
                )  # fmt: skip
            except (BrokenBatch, OSError) as error:
                self._settle(error, generation)
        raise Conflict("the log changed again and again while it was searched; ask again")

    async def offset_after_bytes(self, offset: int, size_bytes: int, *, end_offset: int) -> int:
        """The base offset of the first batch that starts at least `size_bytes` behind the start of
        the batch with `offset`, at most `end_offset`: to split a partition in parts of equal size.

        Raises:
            OffsetOutOfRange, PartitionOffline, Conflict: as `locate_cold`.
        """
        self._reach(offset, end_offset, 0)
        for _attempt in range(ATTEMPTS_MAX):
            looks, generation = self._looks(offset), self._generation
            try:
                return await self._files.workers.run(
                    offset_after_bytes, self._disk, looks, offset, size_bytes,
                    end_offset=min(end_offset, self.end_offset),
                    interval_bytes=self.config.index_interval_bytes,
                )  # fmt: skip
            except (BrokenBatch, OSError) as error:
                self._settle(error, generation)
        raise Conflict("the log changed again and again while it was searched; ask again")

    def _settle(self, error: BrokenBatch | OSError, generation: int) -> None:
        """After a thread's failure: nothing when the log changed under it, else what it means."""
        if generation != self._generation:
            return
        if isinstance(error, OSError):
            raise self._translated(error) from error
        self.fail(f"{self.directory} is damaged: {error}")
        self._check_alive()

    def _extents(self) -> list[Extent]:
        self._check_alive()
        segments = [*self._older_segments(), self._active]
        ends = [segment.base_offset for segment in segments[1:]] + [self.end_offset]
        return [
            Extent(segment.stem, segment.base_offset, segment.size_bytes, end)
            for segment, end in zip(segments, ends, strict=True)
        ]

    def _looks(self, offset: int) -> list[SegmentLook]:
        """What a thread may look into, from the segment with `offset` on."""
        found = []
        for extent in self._extents():
            if extent.end_offset > offset:
                index = self._context.indexes.get(extent.stem)
                if extent.stem == self._active.stem:
                    index = self._active.index
                whole = index is not None and index.start_position == 0
                found.append(SegmentLook(extent, index if whole else None))
        return found

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """`(greatest epoch <= epoch that has batches here, its end offset)`; `(-1, start_offset)`
        when there is none."""
        return self.epochs.end_offset(
            epoch, start_offset=self.start_offset, end_offset=self.end_offset
        )

    # ---------------------------------------------------------------- producers

    async def load_producers(self) -> ProducerState:
        """Brings the producers' state to the log's end (snapshot and headers, by a thread). To be
        awaited before the first idempotent append, by leaders and followers, and after truncation;
        from then on appends keep it up to date.

        Raises:
            PartitionOffline: the log is damaged.
            Conflict: as `locate_cold`.
        """
        limits = {
            "expiry_ms": self._context.producer_expiry_ms,
            "producers_max": self._context.producers_max,
        }
        for _attempt in range(ATTEMPTS_MAX):
            if self.producers is not None:
                return self.producers
            extents, end, generation = self._extents(), self.end_offset, self._generation
            try:
                state = await self._files.workers.run(
                    restore, self._disk, self.directory, extents, end_offset=end, **limits
                )
                while generation == self._generation and self.end_offset - end > _TAIL_RECORDS:
                    extents, reached = self._extents(), self.end_offset
                    await self._files.workers.run(replay, self._disk, state, extents, end)
                    end = reached
                if generation == self._generation and self.producers is None:
                    self.producers = replay(self._disk, state, self._extents(), end)
            except (BrokenBatch, OSError) as error:
                self._settle(error, generation)
        if self.producers is not None:
            return self.producers
        raise Conflict("the log changed again and again while it was read; try again")

    # ---------------------------------------------------------------- cutting

    def truncate_to(self, offset: int) -> None:
        """Drops all batches with records at or above `offset`; epochs and producer state follow
        (await `load_producers` again). Below the log's start: as `truncate_fully_and_start_at`.
        Reads a few headers, and the index of the segment cut; readers of that segment get Conflict.

        Crash after or within: process - a longer prefix may be left, never a hole (segments go from
        the end). Machine - cut bytes may be back; every fetch is validated (R14).

        Raises:
            PartitionOffline: the log is damaged.
        """
        self._check_alive()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        self._changed()
        try:
            older = self._older_segments()
            bases = [segment.base_offset for segment in (*older, self._active)]
            self._note_truncation(max(base for base in bases if base <= offset))
            while offset < self._active.base_offset:
                self._drop_active()
            self._cut_active(offset)
        except BrokenBatch as error:
            raise self._damaged(self._active, error) from error
        except OSError as error:
            raise self._translated(error) from error
        if self.end_offset < self.start_offset:  # the start lay within the batch cut
            self.truncate_fully_and_start_at(offset)
            return
        self.flushed_offset = min(self.flushed_offset, self.end_offset)
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self.epochs.truncate(self.end_offset)
        self.last_epoch = self.epochs.epoch_at(self.end_offset - 1)

    def _note_truncation(self, recovery_point: int, start_offset: int | None = None) -> None:
        self._truncations += 1
        note(
            self._disk, self.directory, Truncation(self._truncations, recovery_point, start_offset)
        )

    def _changed(self) -> None:
        """Bytes are about to go: what threads and readers found is void."""
        self._generation += 1
        self._hints.clear()
        self.producers = None

    def _drop_active(self) -> None:
        """Removes the last segment; the one before it becomes the active one."""
        dropped = self._active
        older = self._older_segments()
        self._active = older.pop()
        self._older_count -= 1
        self.end_offset = dropped.base_offset
        self._rolled = [segment for segment in self._rolled if segment is not dropped]
        self._rolled = [segment for segment in self._rolled if segment is not self._active]
        self._remove(dropped)

    def _cut_active(self, offset: int) -> None:
        active = self._active
        whole = self._context.indexes.get(active.stem)
        index = active.index or whole
        if index is None or index.start_position:
            index, _last = load_index(
                self._disk, active, active.size_bytes, self.config.index_interval_bytes
            )
        read = file_reader(self._disk, self._files.fd(active.file, create=True))
        end = Place(self.end_offset, active.size_bytes)
        cut = find(index, read, offset, end)
        last = last_header_before(index, read, cut.position)
        index_files.remove(self._disk, active.stem)
        drop_snapshots(self._disk, self.directory, above=cut.offset)
        self._snapshot_offset = min(self._snapshot_offset, cut.offset)
        self._context.indexes.forget(active.stem)
        active.file.generation += 1
        self._disk.truncate(self._files.fd(active.file), cut.position)
        self.size_bytes -= active.size_bytes - cut.position
        active.size_bytes = cut.position
        active.index = _cut_index(index, read, cut.position)
        active.last_append_ms = self.last_append_time_ms if last is None else last.append_time_ms
        if cut.position and not active.first_append_ms:
            active.first_append_ms = read_header(read(0, HEADER_BYTES)).append_time_ms
        self._repair_index(active, active.index)
        self.end_offset = cut.offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log is empty, starts and ends at `offset`.

        Crash within: a prefix of the old log, never a hole. Crash after: recovery may start at the
        file's name where the last checkpoint says less.

        Raises:
            PartitionOffline: the disk refuses.
        """
        self._check_alive()
        self._changed()
        try:
            self._note_truncation(offset, start_offset=offset)
            for segment in [self._active, *reversed(self._older_segments())]:
                segment.file.generation += 1
                self._remove(segment)
            drop_snapshots(self._disk, self.directory, below=1 << 63)
            self.epochs.replace([])
        except OSError as error:
            raise self._translated(error) from error
        self._rolled, self._older, self._older_count = [], [], 0
        self._active = Segment(self.directory, offset)
        self._active.index = SegmentIndex(interval_bytes=self.config.index_interval_bytes)
        self.start_offset = self.end_offset = self.high_watermark = self.flushed_offset = offset
        self.size_bytes, self.last_epoch, self._snapshot_offset = 0, -1, -1
        self._snapshot_due = self._context.snapshot_bytes
        self.producers = self._new_producers(complete=offset == 0)
        self._has_producers = offset != 0
        self._directory_dirty = True
        try:
            self._files.fd(self._active.file, create=True)
        except OSError as error:
            raise self._translated(error) from error

    async def advance_start(self, offset: int) -> None:
        """delete-records: the log starts at `offset`; segments wholly below it go. Durable with the
        volume's next checkpoint only, so ask for one before answering.

        Crash after: without the checkpoint records below `offset` may be there again.

        Raises:
            OffsetOutOfRange: above the high watermark; `details` has it.
            PartitionOffline: the disk refuses.
        """
        self._check_alive()
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"records can be deleted up to {self.high_watermark}, not to {offset}",
                details={"start_offset": self.start_offset, "end_offset": self.high_watermark},
            )
        if offset <= self.start_offset:
            return
        older = self._older_segments()
        if offset == self.end_offset:
            try:
                self.roll()
            except StorageFull:
                pass  # then its space comes back with the next roll
        self.start_offset = offset
        await self._delete_oldest(sum(self._end_of(segment) <= offset for segment in older))

    async def _delete_oldest(self, count: int) -> int:
        """Removes `count` segments, oldest first, so that a crash leaves no hole; answers how many
        went (fewer when somebody else cut the log meanwhile)."""
        older = self._older_segments()
        if not count:
            return 0
        following = (*older, self._active)[count]
        generation = self._generation
        await self._keep_producers(following.base_offset)
        if generation != self._generation:
            return 0
        older = self._older_segments()
        count = sum(segment.base_offset < following.base_offset for segment in older)
        gone, self._older = older[:count], older[count:]
        self._older_count = len(self._older)
        self.start_offset = max(self.start_offset, following.base_offset)
        self._hints.clear()
        self._rolled = [segment for segment in self._rolled if segment not in gone]
        for segment in gone:
            self._remove(segment)
        drop_snapshots(self._disk, self.directory, below=following.base_offset)
        return count

    async def _keep_producers(self, offset: int) -> None:
        """Makes sure that the producer state before `offset` is in a snapshot: the batches that it
        can be told from are about to go."""
        path = snapshot_path(self.directory, offset)
        if not self._has_producers and self.producers is not None and not self.producers:
            return
        if self._disk.exists(path):
            return
        extents = [extent for extent in self._extents() if extent.base_offset < offset]
        generation = self._generation
        try:
            state = await self._files.workers.run(
                restore, self._disk, self.directory, extents, end_offset=offset,
                expiry_ms=self._context.producer_expiry_ms,
                producers_max=self._context.producers_max,
            )  # fmt: skip
            self._disk.replace_file(path, state.snapshot(offset), sync=False)
        except BrokenBatch as error:
            self._settle(error, generation)
        except OSError:
            pass  # a full disk: making room counts more than recognising old retries

    def _remove(self, segment: Segment) -> None:
        self.size_bytes -= segment.size_bytes
        self._context.indexes.forget(segment.stem)
        index_files.remove(self._disk, segment.stem)
        self._files.discard(segment.file)

    async def apply_retention(self, now_ms: int) -> int:
        """Deletes the segments that the policy lets go, and answers how many. An active segment
        whose last batch is too old is closed first, so that idle logs get empty.

        Raises:
            PartitionOffline, Conflict: as `locate_cold`.
        """
        config = self.config
        if not config.delete or self.failure is not None or self.size_bytes == 0:
            return 0
        policy = RetentionPolicy(config.retention_ms, config.retention_bytes)
        active = self._active
        if (
            active.size_bytes
            and self.end_offset <= self.high_watermark
            and is_expired(active.last_append_ms, policy, now_ms=now_ms)
        ):
            self.roll()
        await self._look_up_ages(policy, now_ms)
        older = self._older_segments()
        if not older:
            return 0
        ends = [segment.base_offset for segment in (*older, self._active)[1:]]
        closed = [
            SegmentInfo(end, segment.size_bytes, segment.last_append_ms)
            for segment, end in zip(older, ends, strict=True)
        ]
        count = deletable(
            closed, policy, size_bytes=self.size_bytes, now_ms=now_ms,
            high_watermark=self.high_watermark,
        )  # fmt: skip
        return await self._delete_oldest(count)

    async def _look_up_ages(self, policy: RetentionPolicy, now_ms: int) -> None:
        """Fills in `last_append_ms` of the oldest segments until one is young."""
        for segment in tuple(self._older_segments()):
            if segment.last_append_ms is None:
                generation = self._generation
                try:
                    _index, last = await self._files.workers.run(
                        load_index, self._disk, segment, segment.size_bytes,
                        self.config.index_interval_bytes,
                    )  # fmt: skip
                    segment.last_append_ms = last.append_time_ms if last is not None else 0
                except (BrokenBatch, OSError) as error:
                    if not segment.file.discarded:
                        self._settle(error, generation)
                    return
            if not is_expired(segment.last_append_ms, policy, now_ms=now_ms):
                return

    # ---------------------------------------------------------------- syncing, closing

    def begin_sync(self) -> SyncJob:
        """What must be synced for all that is appended now; pinned until `end_sync`.

        Raises:
            PartitionOffline: a file can't be opened.
        """
        self._check_alive()
        rolled = tuple(self._rolled)
        segments = [*rolled, self._active] if self._active.size_bytes else list(rolled)
        files: list[tuple[LogFile, int]] = []
        try:
            for segment in segments:
                files.append((segment.file, self._files.pin(segment.file)))
        except OSError as error:
            for file, _fd in files:
                self._files.unpin(file)
            raise self._translated(error) from error
        epochs_path = self.epochs.path if self.epochs.is_dirty else None
        directory = self.directory if self._directory_dirty else None
        self.epochs.is_dirty = self._directory_dirty = False
        return SyncJob(
            self.end_offset, self._generation, tuple(files), rolled, epochs_path, directory
        )

    def end_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Takes in how `job` went. After an error the log is offline: the kernel may have dropped
        what it could not write, and would call the next sync a success."""
        for file, _fd in job.files:
            self._files.unpin(file)
        if error is not None:
            self.fail(f"fdatasync failed: {error.strerror}; what it covered may be lost")
            return
        if job.generation != self._generation:
            return
        self._rolled = [segment for segment in self._rolled if segment not in job.rolled]
        self.flushed_offset = max(self.flushed_offset, job.end_offset)
        if self.flushed_offset >= self.end_offset:
            self._is_dirty = False

    @property
    def needs_sync(self) -> bool:
        """Whether anything was appended or closed that is not on the disk yet."""
        return bool(self._is_dirty or self._rolled or self._directory_dirty or self.epochs.is_dirty)

    def fail(self, reason: str) -> None:
        """Takes the log offline until its directory is replaced (R23); remembered on disk as far as
        that still works. Crash after: the next start finds the note, or the damage again."""
        if self.failure is not None:
            return
        self.failure = PartitionOffline(f"partition offline: {reason}")
        disk, path = self._disk, os.path.join(self.directory, FAILED_FILE)
        text = self.failure.message.encode()

        def remember() -> None:
            try:
                disk.replace_file(path, text, sync=True)
            except OSError:
                pass

        self._files.workers.submit(remember)
        self._context.events.failed(self)

    def configure(self, config: LogConfig) -> None:
        """Takes a changed configuration from the next append on."""
        self.config = config
        if self._is_dirty:
            self._context.events.became_dirty(self)

    def checkpoint(self) -> Checkpoint:
        """The log's numbers now; for `checkpoints` while running, for `clean` after `close`."""
        active, index = self._active, self._active.index
        assert index is not None
        return Checkpoint(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            high_watermark=self.high_watermark,
            recovery_point=self.flushed_offset,
            active_base=active.base_offset,
            active_bytes=active.size_bytes,
            active_first_append_ms=active.first_append_ms,
            active_max_timestamp_ms=index.max_timestamp_ms,
            last_append_ms=self.last_append_time_ms,
            last_epoch=self.last_epoch,
            size_bytes=self.size_bytes,
            older_segments=self._older_count,
            has_producers=self._has_producers if self.producers is None else self._keeps_producers,
            failure="" if self.failure is None else self.failure.message,
            truncations=self._truncations,
        )

    @property
    def _keeps_producers(self) -> bool:
        return bool(self.producers) or self._has_producers

    async def close(self) -> Checkpoint:
        """Syncs what is not synced, saves index and producer state, closes the files. Answers the
        checkpoint for the `clean` marker. Nothing may be appended any more; a log that fails while
        it closes says so in the checkpoint."""
        if self.failure is None and self.needs_sync:
            await self.sync_now()
        if self.failure is None:
            self._save_index(self._active)
            if self.producers is not None and self._keeps_producers:
                self._save_snapshot()
        self._release()
        return self.checkpoint()

    async def sync_now(self) -> None:
        """One sync outside the flusher's turn; failing is told by `failure`."""
        job = self.begin_sync()
        error: OSError | None = None
        try:
            await self._files.workers.run(job.run, self._disk)
        except OSError as raised:
            error = raised
        finally:
            self.end_sync(job, error)

    def _release(self) -> None:
        for segment in [*(self._older or ()), self._active]:
            self._files.close(segment.file)
            self._context.indexes.forget(segment.stem)

    def discard(self) -> None:
        """Lets go of files without saving: the directory is about to be removed."""
        self._changed()
        self.failure = self.failure or PartitionOffline("the partition was deleted here")
        self._release()


_TAIL_RECORDS = 1000
"""Records that are replayed on the loop's thread at the end of loading producers."""


def _place_of(older: list[Segment], offset: int) -> int:
    """Index of the segment that holds `offset`."""
    low, high = 0, len(older)
    while low < high:
        middle = (low + high) // 2
        if older[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)


def _cut_index(index: SegmentIndex, read: index_files.Read, position: int) -> SegmentIndex:
    """The index of the segment's first `position` bytes."""
    rows = index.cut(position, index_files.NO_TIMESTAMP)
    if rows.offsets:
        start, rows.max_timestamp_ms = rows.positions[-1], rows.times[-1]
        for _at, header in index_files.walk(read, start, position):
            rows.max_timestamp_ms = max(rows.max_timestamp_ms, header.max_timestamp_ms)
    return rows
