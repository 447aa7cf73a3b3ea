"""One pass over the closed segments of a log: reads them, writes what stays beside them.

Runs in a process of its own (compaction_process.py), or in line in tests. It only adds files
named `cleaned-*`; putting them in place is swap.py's. Two readings, as Kafka's log cleaner does:

    1. the batches never cleaned, from the clean offset on: the map of each key's latest batch,
       until its memory is full; there the pass ends
    2. all batches up to there: those that lose records are written anew, the others copied as
       they are; a segment that loses nothing isn't written at all, small ones become one

Copied unread, whatever the map says: batches that can't be decoded, transactions, control batches.
Kept without records: a segment's last batch (where the next begins), the first of a leader epoch,
and those that a producer's next sequence is told from.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import msgspec

from headrace.broker.core.batch_cleaning import (
    Rules,
    emptied,
    fingerprints,
    has_tombstones,
    rewritten,
    selection,
)
from headrace.broker.core.compaction import NO_OFFSET
from headrace.broker.log import index as index_files
from headrace.broker.log.files import Disk
from headrace.broker.log.index import BrokenBatch, SegmentIndex, checked_header, stem_of
from headrace.broker.log.segment import LOG_SUFFIX
from headrace.broker.log.swap import cleaned_stem
from headrace.protocol.batch import (
    HEADER_BYTES,
    BatchHeader,
    Columns,
    decode_columns,
    read_header,
)
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import CorruptBatch, RecordTooLarge, UnsupportedFormat

CHUNK_BYTES = 4 << 20
"""Bytes read at once."""

WRITE_BYTES = 1 << 20
"""Bytes gathered for one write."""

WRITE_PIECES = 512
"""Buffers gathered for one write (the kernel takes 1024)."""

SYNC_BYTES = 32 << 20
"""Bytes written between two syncs: one large sync at the end would hold up those of producers."""

GROUP_MAX = 64
"""Segments that become one: bounds the renaming that is done on the loop's thread."""

KEY_BYTES = 110
"""What a key takes in the map, with the dict's growth (measured, docs/compaction.md)."""


class JobSegment(msgspec.Struct, frozen=True, array_like=True):
    """A closed segment as it was when the job was made."""

    base_offset: int
    end_offset: int
    size_bytes: int


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What one pass needs to know."""

    directory: str
    segments: tuple[JobSegment, ...]
    """In order, without gaps between them."""
    clean_offset: int
    compact: bool
    """Whether older records of a key go; otherwise only expired ones."""
    tombstones_below: int
    expired_before_ms: int
    producers: dict[int, int]
    """Producer id to the base offset of the first batch its state remembers."""
    segment_bytes: int
    index_interval_bytes: int
    memory_bytes: int
    bytes_per_second: int
    """Bytes read and written a second; 0: as fast as it goes."""

    @property
    def keys_max(self) -> int:
        """Keys that the map may hold."""
        return max(1, self.memory_bytes // KEY_BYTES)


class Group(msgspec.Struct, frozen=True, array_like=True, tag="group"):
    """Segments whose successor is written and synced."""

    base_offsets: tuple[int, ...]
    end_offset: int
    size_bytes: int
    """Of the successor."""
    last_append_ms: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """The pass is over, and what it did."""

    end_offset: int
    """Cleaned up to here."""
    first_tombstone: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_removed: int
    keys: int
    """In the map."""


Pace = Callable[[int], None]
"""Told the bytes read or written since the last call; waits when it goes too fast."""


class Counts:
    """What a pass has done so far."""

    __slots__ = ("pace", "read", "records", "removed", "written")

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.read = self.written = self.records = self.removed = 0


def compact(disk: Disk, job: Job, pace: Pace = lambda _bytes: None) -> Iterator[Group | Done]:
    """Does the job; each group is to be put in place (or given up) before the next is asked for,
    in this order: a record may go only after everything older of its key has.

    Raises:
        BrokenBatch: a segment is damaged.
        OSError: as the disk says.
    """
    counts = Counts(pace)
    latest: dict[bytes | None, int] = {}
    end_offset = job.segments[-1].end_offset
    if job.compact:
        end_offset = _learn(disk, job, latest, counts)
        latest.pop(None, None)  # records without a key say nothing of each other
    rules = Rules(latest, job.tombstones_below, job.expired_before_ms)
    rewrite = _Rewrite(disk, job, rules, end_offset, counts)
    yield from rewrite.groups()
    yield Done(
        end_offset, rewrite.first_tombstone, counts.read, counts.written, counts.records,
        counts.removed, len(latest),
    )  # fmt: skip


def _learn(disk: Disk, job: Job, latest: dict[bytes | None, int], counts: Counts) -> int:
    """Fills the map; answers the offset up to which it goes."""
    for segment in job.segments:
        if segment.end_offset <= job.clean_offset:
            continue
        for data, header in batches(disk, job.directory, segment, counts):
            if header.base_offset < job.clean_offset:
                continue
            keys = _keys(data, header)
            if keys is None:
                continue
            if latest and len(latest) + len(keys) > job.keys_max:
                return header.base_offset
            latest.update(dict.fromkeys(fingerprints(keys), header.base_offset))
    return job.segments[-1].end_offset


def _keys(data: Buffer, header: BatchHeader) -> list[bytes | None] | None:
    columns = _columns(data, header)
    return None if columns is None else columns.keys


def _columns(data: Buffer, header: BatchHeader) -> Columns | None:
    """The batch's columns; None for one that is copied unread."""
    if header.is_control or header.is_transactional:
        return None
    try:
        return decode_columns(data, header)
    except (CorruptBatch, UnsupportedFormat):
        return None


def batches(
    disk: Disk, directory: str, segment: JobSegment, counts: Counts
) -> Iterator[tuple[memoryview, BatchHeader]]:
    """The segment's batches with their bytes, read in large pieces.

    Raises:
        BrokenBatch: something else stands there.
    """
    fd = disk.open_to_read(stem_of(directory, segment.base_offset) + LOG_SUFFIX)
    try:
        chunk, at, position, end = memoryview(b""), 0, 0, segment.size_bytes
        while position < end:
            inside = position - at
            length = _length_at(chunk, inside, position, end)
            if inside + length > len(chunk):
                chunk = memoryview(disk.pread(fd, min(max(CHUNK_BYTES, length), end - position),
                                              position))  # fmt: skip
                counts.read += len(chunk)
                counts.pace(len(chunk))
                at, inside = position, 0
                if len(chunk) < length:
                    raise BrokenBatch(position, "the segment is shorter than it was", torn=True)
                length = _length_at(chunk, 0, position, end)
                if length > len(chunk):
                    continue
            header = checked_header(chunk, inside, position, end)
            yield chunk[inside : inside + header.length], header
            position += header.length
    finally:
        disk.close(fd)


def _length_at(chunk: memoryview, inside: int, position: int, end: int) -> int:
    """Bytes of the batch there, or of a header where not even that is in the chunk."""
    if inside + HEADER_BYTES > len(chunk):
        return min(HEADER_BYTES, end - position)
    return checked_header(chunk, inside, position, end).length


class _Rewrite:
    """The second reading."""

    def __init__(self, disk: Disk, job: Job, rules: Rules, end_offset: int, counts: Counts) -> None:
        self._disk, self._job, self._rules, self._counts = disk, job, rules, counts
        self._end_offset = end_offset
        self._epoch = -1
        self.first_tombstone = NO_OFFSET
        self._looks_for_tombstones = job.compact

    def groups(self) -> Iterator[Group]:
        """Segment after segment; answers those groups that differ from what is there."""
        out: _Output | None = None
        try:
            for segment in self._job.segments:
                if segment.base_offset >= self._end_offset:
                    break
                if out is not None and not out.has_room_for(segment):
                    yield from out.finished()
                    out = None
                out = out or _Output(self._disk, self._job, segment, self._counts)
                out.begin(segment)
                self._rewrite(segment, out)
            if out is not None:
                yield from out.finished()
        finally:
            if out is not None:
                out.close()

    def _rewrite(self, segment: JobSegment, out: _Output) -> None:
        for data, header in batches(self._disk, self._job.directory, segment, self._counts):
            is_first_of_epoch = header.leader_epoch != self._epoch
            self._epoch = header.leader_epoch
            self._counts.records += header.record_count
            left = data if header.base_offset >= self._end_offset else self._left(data, header)
            if left is data:
                out.add(data, header)
                continue
            if not left and (
                is_first_of_epoch
                or header.next_offset == segment.end_offset
                or self._is_remembered(header)
            ):
                left = emptied(header)
                if left == data:
                    out.add(data, header)
                    continue
            out.change()
            if left:
                out.add(left, read_header(left))

    def _is_remembered(self, header: BatchHeader) -> bool:
        first = self._job.producers.get(header.producer_id)
        return header.producer_id >= 0 and first is not None and header.base_offset >= first

    def _left(self, data: memoryview, header: BatchHeader) -> Buffer:
        """What stays of a batch: itself, a smaller one, or nothing."""
        if header.is_control or header.is_transactional:
            return self._unread(data)
        if not header.record_count or self._rules.is_expired(header):
            self._counts.removed += header.record_count
            return b""
        try:
            columns = decode_columns(data, header)
            keep = selection(header, columns, self._rules)
            left: Buffer = data
            if keep is not None:
                left = rewritten(header, columns, keep) if any(keep) else b""
        except CorruptBatch:
            return data
        except (UnsupportedFormat, RecordTooLarge):
            return self._unread(data)
        if keep is not None:
            self._counts.removed += keep.count(False)
        if left and self._looks_for_tombstones and has_tombstones(columns, keep):
            self.first_tombstone = header.base_offset
            self._looks_for_tombstones = False
        return left

    def _unread(self, data: memoryview) -> memoryview:
        """A batch that somebody can read and that may hold an older record of any key: tombstones
        behind it must stay as long as it does."""
        self._rules = self._rules._replace(tombstones_below=0)
        self._looks_for_tombstones = False  # no pass is due for one that can't go
        return data


class _Output:
    """The successor of one or more segments. Nothing is written while it equals the first one."""

    def __init__(self, disk: Disk, job: Job, first: JobSegment, counts: Counts) -> None:
        self._disk, self._job, self._counts = disk, job, counts
        self._first = first
        self._stem = cleaned_stem(job.directory, first.base_offset)
        self._segments: list[JobSegment] = []
        self._index = SegmentIndex(interval_bytes=job.index_interval_bytes)
        self._size_bytes = 0
        self._last_append_ms = 0
        self._fd: int | None = None
        self._pieces: list[Buffer] = []
        self._pieces_bytes = 0
        self._written = 0
        self._synced = 0

    def has_room_for(self, segment: JobSegment) -> bool:
        """Whether the segment may join: what comes out is at most half as large again as segments
        are, and a small one doesn't have a large one copied for it."""
        is_worth_it = self._fd is not None or 2 * segment.size_bytes >= self._size_bytes
        least = self._size_bytes + min(segment.size_bytes, self._job.segment_bytes // 2)
        fits = least <= self._job.segment_bytes
        return fits and is_worth_it and len(self._segments) < GROUP_MAX

    def begin(self, segment: JobSegment) -> None:
        """What is added from here on comes from this segment."""
        if self._segments:
            self.change()
        self._segments.append(segment)

    def add(self, data: Buffer, header: BatchHeader) -> None:
        """One batch."""
        self._index.count(self._size_bytes, header)
        self._size_bytes += len(data)
        self._last_append_ms = header.append_time_ms
        if self._fd is None:
            return
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if self._pieces_bytes >= WRITE_BYTES or len(self._pieces) >= WRITE_PIECES:
            self._write()

    def change(self) -> None:
        """From here on it differs from the first segment, whose beginning is copied now."""
        if self._fd is not None:
            return
        self._fd = fd = self._disk.open(self._stem + LOG_SUFFIX, create=True)
        self._disk.truncate(fd, 0)
        source = self._disk.open_to_read(
            stem_of(self._job.directory, self._first.base_offset) + LOG_SUFFIX
        )
        try:
            for position in range(0, self._size_bytes, CHUNK_BYTES):
                length = min(CHUNK_BYTES, self._size_bytes - position)
                self._pieces = [self._disk.pread(source, length, position)]
                self._pieces_bytes = length
                self._counts.read += length
                self._counts.pace(length)
                self._write()
        finally:
            self._disk.close(source)

    def _write(self) -> None:
        assert self._fd is not None
        length = self._pieces_bytes
        if not length:
            return
        if self._disk.writev(self._fd, self._pieces, self._written) != length:
            raise OSError(errno.ENOSPC, "no room for a cleaned segment", self._stem)
        self._pieces, self._pieces_bytes = [], 0
        self._written += length
        self._counts.written += length
        self._counts.pace(length)
        if self._written - self._synced >= SYNC_BYTES:
            self._disk.sync(self._fd)
            self._synced = self._written

    def finished(self) -> Iterator[Group]:
        """The group, synced, if there is anything to put in place."""
        if self._fd is None:
            return
        self._write()
        self._disk.sync(self._fd)
        self.close()
        index_files.save_all(self._disk, self._stem, self._index)
        yield Group(
            tuple(each.base_offset for each in self._segments), self._segments[-1].end_offset,
            self._size_bytes, self._last_append_ms,
        )  # fmt: skip

    def close(self) -> None:
        """Lets go of the file."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)
