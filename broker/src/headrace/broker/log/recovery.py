"""Opening a log: at once after a clean shutdown, else by looking at what may have been torn.

    clean        the checkpoint says all; nothing is read
    same boot    the kernel lived on, so every byte that was written is there. From the last index
                 row on batches are checked; only an INCOMPLETE last batch is cut. A complete one
                 with a bad checksum is damage: the partition goes offline (replication.md R21, R23)
    other boot   bytes may be missing anywhere behind the recovery point. From there on every
                 checksum is verified; at the first bad batch the log is cut, what is cut is kept
                 beside it as <base>.cut-<n>. Damage before the recovery point: offline.

Intact batches in front of the first bad one are never dropped. Running twice is the same as once:
a crash within leaves a log that recovers to the same batches. For a thread: it may read much.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from crc32c import crc32c

from headrace.broker.log import index as index_files
from headrace.broker.log import swap, truncations
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.epochs import NO_EPOCH, EpochCache
from headrace.broker.log.files import Disk
from headrace.broker.log.index import (
    SCAN_WINDOW_BYTES,
    BrokenBatch,
    Place,
    Read,
    checked_header,
    file_reader,
    is_batch_at,
    last_row,
    read_rows,
    stem_of,
    walk,
)
from headrace.broker.log.log import Log
from headrace.broker.log.restore import drop_snapshots
from headrace.broker.log.segment import CUT_MARK, LOG_SUFFIX, Found, list_files
from headrace.broker.log.state import FAILED_FILE
from headrace.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from headrace.protocol.compression import Buffer
from headrace.protocol.ids import TopicIdPartition

CHUNK_BYTES = 4 << 20
"""Bytes read at once while checksums are verified, and copied at once when a tail is kept."""

Progress = Callable[[int], None]
"""Told how many bytes were checked since the last call; from the thread that recovers."""


class StartKind(StrEnum):
    """What the data directory says about how its last process ended."""

    NEW = "new"
    CLEAN = "clean"
    SAME_BOOT = "same_boot"
    OTHER_BOOT = "other_boot"


@dataclass(slots=True)
class OpenReport:
    """What opening found; the log's `failure` says whether it is usable."""

    scanned_bytes: int = 0
    cut_bytes: int = 0
    """Bytes cut off the end; after another boot they may have been acknowledged."""
    cut_files: int = 0
    """Files that keep them."""
    kept_files: int = 0
    """Such files that are beside the log now, those of earlier starts among them."""
    is_curable: bool = False
    """The log couldn't be looked at for want of room or descriptors: another start may open it."""


class Damaged(Exception):
    """The log lacks or has rotten bytes that it must have; the message is for people."""


def open_log(
    partition_id: TopicIdPartition,
    directory: str,
    *,
    start: StartKind,
    checkpoint: Checkpoint | None,
    config: LogConfig,
    context: LogContext,
    progress: Progress | None = None,
) -> tuple[Log, OpenReport]:
    """Opens the log in `directory`, which exists. Needs no file after a clean start with a
    checkpoint; otherwise run it in a thread. A log that can't be used has `failure` set."""
    report = OpenReport()
    if start is not StartKind.CLEAN or checkpoint is None:
        checkpoint = recover(
            context.files.disk,
            directory,
            start=start,
            checkpoint=checkpoint or Checkpoint(),
            interval_bytes=config.index_interval_bytes,
            report=report,
            progress=progress,
        )
    return (
        Log(partition_id, directory, checkpoint=checkpoint, config=config, context=context),
        report,
    )


def recover(
    disk: Disk,
    directory: str,
    *,
    start: StartKind,
    checkpoint: Checkpoint,
    interval_bytes: int,
    report: OpenReport,
    progress: Progress | None = None,
) -> Checkpoint:
    """Makes the log in `directory` whole and answers its numbers; `failure` set when it can't be.

    `checkpoint` is the last one written while the log ran (all zero if there was none).
    """
    try:
        return _Recovery(disk, directory, start, checkpoint, interval_bytes, report, progress).run()
    except (Damaged, BrokenBatch) as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.strerror} ({error.filename or directory})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
            reason += "; start again once that is cured"
            report.is_curable = True
    return Checkpoint(
        start_offset=checkpoint.start_offset,
        end_offset=max(checkpoint.start_offset, checkpoint.recovery_point),
        high_watermark=checkpoint.start_offset,
        active_base=checkpoint.start_offset,
        failure=f"partition offline: {directory}: {reason}",
    )


class _Recovery:
    """One recovery; `expected` is the offset after the last good batch so far."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        start: StartKind,
        checkpoint: Checkpoint,
        interval_bytes: int,
        report: OpenReport,
        progress: Progress | None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.is_same_boot = start is not StartKind.OTHER_BOOT
        self.checkpoint = checkpoint = truncations.applied(disk, directory, checkpoint)
        self.interval_bytes = interval_bytes
        self.report = report
        self.progress = progress
        self.recovery_point = checkpoint.recovery_point
        self.start_offset = checkpoint.start_offset
        self.segments: list[tuple[int, int]] = []
        self.epochs = EpochCache(disk, directory)
        self.epochs_seen: list[tuple[int, int, bool]] = []
        self.expected = 0
        self.cuts = 0

    def run(self) -> Checkpoint:
        found = self._tidy()
        self.segments, self.cuts = found.segments, found.cuts
        self._drop_deleted()
        if not self.segments:
            if self.recovery_point > self.start_offset:
                raise Damaged(f"the log's files up to {self.recovery_point} are missing")
            self._start_empty(self.start_offset)
        self.start_offset = max(self.start_offset, self.segments[0][0])
        self._check_segments()
        if self.expected < self.recovery_point:
            raise Damaged(f"the log ends at {self.expected}, {self.recovery_point} was synced")
        if self.expected < self.start_offset:
            self._set_aside(0)
            self._start_empty(self.start_offset)
        self._mend_epochs()
        self._sync_closed()
        self.report.kept_files = found.cuts + self.report.cut_files
        drop_snapshots(self.disk, self.directory, above=self.expected)
        return self._numbers()

    def _sync_closed(self) -> None:
        """Syncs what the killed process had begun and closed and perhaps not synced: names, epochs,
        all segments but the last. The flusher of this process syncs the last one and then calls
        everything synced."""
        if self.expected <= self.recovery_point:
            return
        for place, (following, _size) in enumerate(self.segments[1:]):
            if following > self.recovery_point:
                self._sync(self._stem(place) + LOG_SUFFIX)
        entries = self.epochs.entries()
        if entries and entries[-1][1] >= self.recovery_point:
            self._sync(self.epochs.path)
        if self.segments[-1][0] >= self.recovery_point:
            self.disk.sync_directory(self.directory)

    def _sync(self, path: str) -> None:
        fd = self.disk.open(path)
        try:
            self.disk.sync(fd)
        finally:
            self.disk.close(fd)

    def _tidy(self) -> Found:
        note = self.disk.read_file(os.path.join(self.directory, FAILED_FILE))
        if note is not None:
            raise Damaged(f"it went offline before: {note.decode(errors='replace')}")
        swap.finish(self.disk, self.directory)
        found = list_files(self.disk, self.directory)
        for name in found.leftovers:
            self.disk.unlink(os.path.join(self.directory, name))
        return found

    def _stem(self, place: int) -> str:
        return stem_of(self.directory, self.segments[place][0])

    def _drop_deleted(self) -> None:
        """Goes on with a deletion of the oldest segments that a crash interrupted."""
        while len(self.segments) > 1 and self.segments[1][0] <= self.start_offset:
            self._unlink(self._stem(0))
            del self.segments[0]

    def _unlink(self, stem: str) -> None:
        index_files.remove(self.disk, stem)
        self.disk.unlink(stem + LOG_SUFFIX)

    def _start_empty(self, offset: int) -> None:
        self.disk.close(self.disk.open(stem_of(self.directory, offset) + LOG_SUFFIX, create=True))
        self.segments = [(offset, 0)]
        self.expected = offset

    # -------------------------------------------------- checking

    def _check_segments(self) -> None:
        """Checks from the segment with the recovery point on, cutting where it must."""
        first = 0
        for place, (base, _size) in enumerate(self.segments):
            if base <= self.recovery_point:
                first = place
        self._check_closed(first)
        self.expected = self.segments[first][0]
        place = first
        while place < len(self.segments):
            base, size = self.segments[place]
            try:
                if base != self.expected:
                    raise BrokenBatch(0, f"starts at offset {base} instead of {self.expected}")
                self._check_segment(base, size)
            except BrokenBatch as error:
                self._cut(place, error)
            place += 1

    def _check_segment(self, base: int, size_bytes: int) -> None:
        stem = stem_of(self.directory, base)
        if not size_bytes:
            return
        fd = self.disk.open_to_read(stem + LOG_SUFFIX)
        try:
            read = file_reader(self.disk, fd)
            start = self._trusted_start(stem, read, Place(base, size_bytes))
            self.expected = start.offset
            for position, header in self._verified(read, start.position, size_bytes):
                self._take(header, is_exact=position > start.position or start.position == 0)
        finally:
            self.disk.close(fd)

    def _trusted_start(self, stem: str, read: Read, segment: Place) -> Place:
        """Where checking starts: an index row that points to the batch it names, or the segment's
        first batch. `segment` is its base offset and size."""
        size_bytes = segment.position
        index = read_rows(
            self.disk, stem, size_bytes=size_bytes, interval_bytes=self.interval_bytes
        )
        if index.offsets:
            last = index.offsets[-1]
            row = index.floor(last if self.is_same_boot else min(last, self.recovery_point))
            if is_batch_at(read, row.offset, row.position, size_bytes):
                return row
        return Place(segment.offset, 0)

    def _verified(self, read: Read, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """As `walk`, with the producers' checksums as well."""
        window: Buffer = b""
        window_at = position
        while position < end:
            inside = position - window_at
            if inside + HEADER_BYTES > len(window):
                window, window_at, inside = self._chunk(read, position, end, 0), position, 0
                if len(window) < HEADER_BYTES:
                    raise BrokenBatch(position, "half a batch header", torn=True)
            header = checked_header(window, inside, position, end)
            if inside + header.length > len(window):
                window = self._chunk(read, position, end, header.length)
                window_at, inside = position, 0
            payload = memoryview(window)[inside + 36 : inside + header.length]
            if crc32c(payload) != header.sealed_crc:
                raise BrokenBatch(position, "a batch with a wrong checksum")
            if header.base_offset < self.expected:
                raise BrokenBatch(position, f"offset {header.base_offset} a second time")
            yield position, header
            position += header.length

    def _chunk(self, read: Read, position: int, end: int, at_least: int) -> Buffer:
        data = read(position, min(max(CHUNK_BYTES, at_least), end - position))
        self.report.scanned_bytes += len(data)
        if self.progress is not None:
            self.progress(len(data))
        return data

    def _take(self, header: BatchHeader, *, is_exact: bool) -> None:
        """Counts a good batch. `is_exact`: the batch before it was seen too."""
        seen = self.epochs_seen
        if not seen or header.leader_epoch != seen[-1][0]:
            seen.append((header.leader_epoch, header.base_offset, is_exact))
        self.expected = header.next_offset

    def _check_closed(self, count: int) -> None:
        """Whether each of the first `count` segments, all synced, ends where the next begins; looks
        at the last batches only.

        Raises:
            Damaged, BrokenBatch: a file is missing or cut.
        """
        for place in range(count):
            base, size = self.segments[place]
            following = self.segments[place + 1][0]
            end = self._closed_end(self._stem(place), Place(base, size))
            if end != following:
                raise Damaged(
                    f"segment {base} ends at offset {end}, the next one begins {following}"
                )

    def _closed_end(self, stem: str, segment: Place) -> int:
        fd = self.disk.open_to_read(stem + LOG_SUFFIX)
        try:
            read, size_bytes = file_reader(self.disk, fd), segment.position
            start = last_row(self.disk, stem) or Place(segment.offset, 0)
            if not is_batch_at(read, start.offset, start.position, size_bytes):
                start = Place(segment.offset, 0)
            end = segment.offset
            for _position, header in walk(read, start.position, size_bytes, SCAN_WINDOW_BYTES):
                end = header.next_offset
            return end
        finally:
            self.disk.close(fd)

    # -------------------------------------------------- cutting

    def _cut(self, place: int, error: BrokenBatch) -> None:
        """Cuts segment `place` at the bad batch and takes what follows out of the log.

        Crash within: the next start finds the same bad batch, or less behind it.
        """
        base, size = self.segments[place]
        is_last = place == len(self.segments) - 1
        where = f"{self._stem(place)}{LOG_SUFFIX}: {error}"
        if self.expected < self.recovery_point:
            raise Damaged(f"{where}; everything below offset {self.recovery_point} was synced")
        if self.is_same_boot and not (error.torn and is_last):
            raise Damaged(f"{where}; no crash of a process leaves that")
        if base != self.expected and error.position == 0:
            self._set_aside(place)
            return
        self._set_aside(place + 1)
        position = error.position
        stem = self._stem(place)
        index_files.remove(self.disk, stem)
        fd = self.disk.open(stem + LOG_SUFFIX)
        try:
            if not self.is_same_boot:
                self._keep(stem, fd, position, size)
            self.disk.truncate(fd, position)
            self.disk.sync(fd)
        finally:
            self.disk.close(fd)
        self.report.cut_bytes += size - position
        self.segments[place] = (base, position)

    def _keep(self, stem: str, fd: int, position: int, size: int) -> None:
        """Copies the tail beside the log, synced, before it is cut."""
        path = f"{stem}{CUT_MARK}{self.cuts}"
        self.cuts += 1
        target = self.disk.open(path, create=True)
        try:
            self.disk.truncate(target, 0)
            for at in range(position, size, CHUNK_BYTES):
                chunk = self.disk.pread(fd, min(CHUNK_BYTES, size - at), at)
                if self.disk.writev(target, (chunk,), at - position) != len(chunk):
                    raise OSError(errno.ENOSPC, "no room to keep the cut tail", path)
            self.disk.sync(target)
        finally:
            self.disk.close(target)
        self.disk.sync_directory(self.directory)
        self.report.cut_files += 1

    def _set_aside(self, place: int) -> None:
        """Takes segments from `place` on out of the log, the last first; they become cuts."""
        for base, size in reversed(self.segments[place:]):
            stem = stem_of(self.directory, base)
            index_files.remove(self.disk, stem)
            if size:
                self.disk.rename(stem + LOG_SUFFIX, f"{stem}{CUT_MARK}{self.cuts}")
                self.cuts += 1
                self.report.cut_files += 1
                self.report.cut_bytes += size
            else:
                self.disk.unlink(stem + LOG_SUFFIX)
        self.disk.sync_directory(self.directory)
        del self.segments[place:]

    # -------------------------------------------------- epochs and numbers

    def _mend_epochs(self) -> None:
        """The epoch cache agrees with the headers that were read, and ends before the log's end."""
        entries = [entry for entry in self.epochs.entries() if entry[1] < self.expected]
        for epoch, offset, is_exact in self.epochs_seen:
            before = [entry for entry in entries if entry[1] <= offset]
            if before and before[-1][0] == epoch:
                continue
            is_next = is_exact and len(before) == len(entries) > 0 and epoch > entries[-1][0]
            if not is_next:
                entries = self._epochs_of_headers()
                break
            entries.append((epoch, offset))
        if entries != self.epochs.entries():
            self.epochs.replace(entries)

    def _epochs_of_headers(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for base, size in self.segments:
            if size:
                fd = self.disk.open_to_read(stem_of(self.directory, base) + LOG_SUFFIX)
                try:
                    read = file_reader(self.disk, fd)
                    for _position, header in walk(read, 0, size, SCAN_WINDOW_BYTES):
                        if not found or header.leader_epoch != found[-1][0]:
                            found.append((header.leader_epoch, header.base_offset))
                finally:
                    self.disk.close(fd)
        return found

    @property
    def _trusted_end(self) -> int:
        """Up to where the log is surely what it was when the high watermark was noted. After a
        power cut a truncation that wasn't synced hasn't happened: behind the recovery point may lie
        what was cut, in the place of what was committed since."""
        return self.expected if self.is_same_boot else min(self.expected, self.recovery_point)

    def _numbers(self) -> Checkpoint:
        before, end = self.checkpoint, self.expected
        base, size = self.segments[-1]
        index, last = self._index(base, size)
        first_append_ms = self._first_append_ms(base, size)
        if last is None and len(self.segments) > 1:
            _index, last = self._index(*self.segments[-2])
        entries = self.epochs.entries()
        return Checkpoint(
            start_offset=self.start_offset,
            end_offset=end,
            high_watermark=max(min(before.high_watermark, self._trusted_end), self.start_offset),
            recovery_point=min(self.recovery_point, end),
            active_base=base,
            active_bytes=size,
            active_first_append_ms=first_append_ms,
            active_max_timestamp_ms=index.max_timestamp_ms,
            last_append_ms=last.append_time_ms if last is not None else before.last_append_ms,
            last_epoch=entries[-1][0] if entries else NO_EPOCH,
            size_bytes=sum(size for _base, size in self.segments),
            older_segments=len(self.segments) - 1,
            has_producers=end > 0,
            truncations=before.truncations,
        )

    def _index(self, base: int, size: int) -> tuple[index_files.SegmentIndex, BatchHeader | None]:
        """The segment's index; files that can't be added to are removed."""
        stem = stem_of(self.directory, base)
        if not size:
            index_files.remove(self.disk, stem)
            return index_files.SegmentIndex(interval_bytes=self.interval_bytes), None
        fd = self.disk.open_to_read(stem + LOG_SUFFIX)
        try:
            found = index_files.load(
                self.disk, stem, file_reader(self.disk, fd), size_bytes=size,
                interval_bytes=self.interval_bytes,
            )  # fmt: skip
        finally:
            self.disk.close(fd)
        if found[0].saved_rows == 0:
            index_files.remove(self.disk, stem)  # frames behind a torn one could not be read
        return found

    def _first_append_ms(self, base: int, size: int) -> int:
        if not size:
            return 0
        fd = self.disk.open_to_read(stem_of(self.directory, base) + LOG_SUFFIX)
        try:
            return read_header(self.disk.pread(fd, HEADER_BYTES, 0)).append_time_ms
        finally:
            self.disk.close(fd)
