"""One segment: a .log file of whole batches, its place in the log, and how to find a batch in it.

    00000000000000000000.log        batches, the file is named by the first one's base offset
    00000000000000000000.index .timeindex      index.py
    00000000000000000000.producers             state of producers before that offset

Finding is the same code for the loop (a reader that never blocks) and for threads (one that may).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from headrace.broker.log.files import Disk, LogFile
from headrace.broker.log.index import (
    Place,
    Read,
    SegmentIndex,
    file_reader,
    load,
    save,
    save_all,
    stem_of,
    walk,
)
from headrace.protocol.batch import BatchHeader

LOG_SUFFIX = ".log"
SNAPSHOT_SUFFIX = ".producers"


class Segment:
    """A .log file and what is known of it. Only the last segment of a log grows.

    Invariant: `size_bytes` is a batch boundary.
    """

    __slots__ = (
        "base_offset", "file", "first_append_ms", "index", "last_append_ms", "size_bytes", "stem",
    )  # fmt: skip

    def __init__(self, directory: str, base_offset: int, size_bytes: int = 0) -> None:
        self.stem = stem_of(directory, base_offset)
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.file = LogFile(self.stem + LOG_SUFFIX)
        self.index: SegmentIndex | None = None
        """Of the active segment; closed ones are in the broker's IndexCache."""
        self.first_append_ms = 0
        """Append time of the first batch; only kept for the active segment."""
        self.last_append_ms: int | None = None
        """Append time of the last batch; None while it was not looked up."""


class Found(NamedTuple):
    """What is in a log directory, offsets ascending."""

    segments: list[tuple[int, int]]
    """`(base offset, size in bytes)` of each .log file."""
    snapshots: list[int]
    """Offsets of the producer snapshots."""
    leftovers: list[str]
    """Names of files that a dead process was removing or writing."""
    cuts: int
    """How many pieces of cut tails are kept here."""


CUT_MARK = ".cut-"


def list_files(disk: Disk, directory: str) -> Found:
    """Sorts the names in a log directory."""
    found = Found([], [], [], 0)
    cuts = 0
    for name, size_bytes, _is_directory in disk.list_directory(directory):
        stem, suffix = os.path.splitext(name)
        if CUT_MARK in name:
            cuts += 1
        elif suffix == LOG_SUFFIX and stem.isdigit():
            found.segments.append((int(stem), size_bytes))
        elif suffix == SNAPSHOT_SUFFIX and stem.isdigit():
            found.snapshots.append(int(stem))
        elif suffix in (".deleted", ".tmp"):
            found.leftovers.append(name)
    found.segments.sort()
    found.snapshots.sort()
    return found._replace(cuts=cuts)


def remove_cuts(disk: Disk, directory: str) -> int:
    """Removes what recoveries cut off the log and kept beside it; how many files that were."""
    names = [name for name, _, _ in disk.list_directory(directory) if CUT_MARK in name]
    for name in names:
        disk.unlink(os.path.join(directory, name))
    return len(names)


class Span(NamedTuple):
    """Whole batches within one segment."""

    position: int
    length: int
    base_offset: int
    next_offset: int


def find(index: SegmentIndex, read: Read, offset: int, end: Place) -> Place:
    """The batch that holds `offset` (or the first one after it); `end` when all lie before."""
    if offset >= end.offset or not index.offsets:
        return end
    for position, header in walk(read, index.floor(offset).position, end.position):
        if header.last_offset >= offset:
            return Place(header.base_offset, position)
    return end


def shorten(index: SegmentIndex, read: Read, start: Place, stop: Place, max_bytes: int) -> Place:
    """A batch boundary after `start` with at most `max_bytes` between, or the first one."""
    if stop.position - start.position <= max_bytes:
        return stop
    row = index.floor_position(start.position + max_bytes)
    if start.position < row.position <= start.position + max_bytes:
        return row
    reached = start
    for position, header in walk(read, start.position, stop.position):
        end = position + header.length
        if end - start.position > max_bytes and reached.position > start.position:
            break
        reached = Place(header.next_offset, end)
        if end - start.position >= max_bytes:
            break
    return reached


ALL_BYTES = 1 << 62
"""As `max_bytes`: no bound."""


LOOK_BYTES = 1 << 20
"""Bytes of expired batches whose headers are looked at for one that isn't, at once: usually the
time index leads there; timestamps all over the place must not hold up the loop."""


class Query(NamedTuple):
    """What to look for in one segment, all of it known before looking."""

    offset: int
    stop_offset: int
    """Exclusive end of the offsets that may be read."""
    max_bytes: int
    end: Place
    """End of the segment."""
    start: Place | None
    """Where the batch with `offset` begins, if that is remembered."""
    stop: Place | None
    """Where `stop_offset` is, if that is remembered."""

    def is_covered_by(self, index: SegmentIndex) -> bool:
        """Whether an index that lacks its first rows is enough."""
        first = index.offsets[0] if index.offsets else self.end.offset
        if index.start_position == 0 or self.offset >= first:
            return True
        knows_stop = self.stop_offset >= self.end.offset or self.stop_offset >= first
        return self.start is not None and (knows_stop or self.stop is not None)


def plan(index: SegmentIndex, read: Read, query: Query) -> Span | None:
    """The batches that answer `query`; None when not one whole batch may be read.

    Raises:
        BrokenBatch: the segment is damaged.
    """
    start = query.start or find(index, read, query.offset, query.end)
    stop = query.end
    if query.stop_offset < query.end.offset:
        stop = query.stop or find(index, read, query.stop_offset, query.end)
    if stop.position <= start.position:
        return None
    stop = shorten(index, read, start, stop, query.max_bytes)
    return Span(start.position, stop.position - start.position, start.offset, stop.offset)


def unexpired(index: SegmentIndex, read: Read, query: Query, before_ms: int) -> Span | None:
    """As `plan`, without batches all of whose records have timestamps below `before_ms`: the first
    run of others. When there is none nearby the span has no length and ends where looking ended.

    Raises:
        BrokenBatch: the segment is damaged.
    """
    whole = plan(index, read, query._replace(max_bytes=ALL_BYTES))
    if whole is None:
        return None
    end = whole.position + whole.length
    nothing = Span(end, 0, whole.next_offset, whole.next_offset)
    if index.max_timestamp_ms < before_ms:
        return nothing
    start = whole.position
    if index.times and index.times[0] < before_ms:
        start = max(start, min(index.before_time(before_ms).position, end))
    first: Place | None = None
    for position, header in walk(read, start, end):
        is_expired = header.max_timestamp_ms < before_ms
        if first is None:
            if position - start > LOOK_BYTES:
                return Span(position, 0, header.base_offset, header.base_offset)
            if is_expired:
                continue
            first = Place(header.base_offset, position)
        elif is_expired or position + header.length - first.position > query.max_bytes:
            return Span(first.position, position - first.position, first.offset, header.base_offset)
    if first is None:
        return nothing
    return Span(first.position, end - first.position, first.offset, whole.next_offset)


def last_header_before(index: SegmentIndex, read: Read, position: int) -> BatchHeader | None:
    """The header of the last batch that ends at or before byte `position`, a batch boundary."""
    last = None
    if position > 0 and index.offsets:
        for _at, header in walk(read, index.floor_position(position - 1).position, position):
            last = header
    return last


def load_index(
    disk: Disk, segment: Segment, size_bytes: int, interval_bytes: int
) -> tuple[SegmentIndex, BatchHeader | None]:
    """The index of the segment's first `size_bytes`, and the last batch's header. For a thread.

    Raises:
        BrokenBatch: the segment is damaged.
    """
    if not size_bytes:
        return SegmentIndex(interval_bytes=interval_bytes), None
    fd = disk.open_to_read(segment.file.path)
    try:
        return load(
            disk, segment.stem, file_reader(disk, fd), size_bytes=size_bytes,
            interval_bytes=interval_bytes,
        )  # fmt: skip
    finally:
        disk.close(fd)


def save_index(disk: Disk, segment: Segment) -> None:
    """Best effort: a missing or torn index file is made again from the log."""
    index = segment.index
    if index is None or not index.unsaved_rows:
        return
    try:
        save(disk, segment.stem, index)
    except OSError:
        index.saved_rows = len(index.offsets)


def repair_index(disk: Disk, segment: Segment, index: SegmentIndex) -> None:
    """Writes the index files anew; best effort."""
    try:
        save_all(disk, segment.stem, index)
    except OSError:
        index.saved_rows = len(index.offsets)
