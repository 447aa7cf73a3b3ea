"""The sparse index of one segment: offset to position, time to position. Rebuilt, never trusted.

In memory three columns, one row for about every `index.interval.bytes` of log: the offset and
position of a batch, and the largest timestamp of all batches of the segment *before* it (so that
the column only grows and can be searched). On disk two files of frames (journal.py):

    .index      rows of offset i64 | position i64
    .timeindex  rows of timestamp i64 | offset i64     (same rows, tied by the offset)

Both are written a frame at a time, never synced, and may end early: `load` takes what is good,
checks that the last row points to the batch it names, and walks the headers from there to the end.
"""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.broker.log.files import Disk
from headrace.broker.log.journal import frame, read_frames
from headrace.protocol.batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    is_assigned_crc_good,
    read_header,
)
from headrace.protocol.compression import Buffer
from headrace.protocol.limits import BATCH_BYTES_MAX

INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"

NO_TIMESTAMP = -(1 << 62)
"""Smaller than any timestamp: no batch yet."""

WINDOW_BYTES = 8 << 10
"""Bytes read at once while walking headers between two index rows."""

SCAN_WINDOW_BYTES = 256 << 10
"""The same when a whole segment is walked, in a thread."""

SAVE_ROWS = 512
"""Rows kept in memory alone before a frame of them is written: bounds what is walked after a
process crash (with the default interval 2 MiB of log)."""

SEGMENT_BYTES_LIMIT = 1 << 33
"""A position beyond this is rubbish."""

_ROW_BYTES = 24
"""What a row takes in memory."""

Read = Callable[[int, int], Buffer]
"""`read(position, size_bytes)`: the bytes of a segment, fewer only at its end."""


class BrokenBatch(Exception):
    """The bytes at `position` are no whole batch; `torn` when they are only too few."""

    def __init__(self, position: int, reason: str, *, torn: bool = False) -> None:
        super().__init__(f"{reason} at byte {position}")
        self.position = position
        self.reason = reason
        self.torn = torn


class Place(NamedTuple):
    """A batch boundary: the offset of the batch that starts at `position`."""

    offset: int
    position: int


def walk(
    read: Read, position: int, end: int, window_bytes: int = WINDOW_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """`(position, header)` of each batch from `position` to `end`; headers are checked, payloads
    not read.

    Raises:
        BrokenBatch: something else stands there, or the last batch is not whole.
    """
    window: Buffer = b""
    window_at = position
    while position < end:
        inside = position - window_at
        if inside + HEADER_BYTES > len(window):
            window = read(position, min(window_bytes, end - position))
            window_at, inside = position, 0
            if len(window) < HEADER_BYTES:
                raise BrokenBatch(position, "half a batch header", torn=True)
        header = checked_header(window, inside, position, end)
        yield position, header
        position += header.length


def checked_header(window: Buffer, inside: int, position: int, end: int) -> BatchHeader:
    """The header at `inside` of `window`, which is byte `position` of a segment of `end` bytes.

    Raises:
        BrokenBatch: there is none with a good checksum, or its batch is cut off.
    """
    header = read_header(window, inside)
    if header.magic != MAGIC or not is_assigned_crc_good(window, inside):
        raise BrokenBatch(position, "no batch header with a good checksum")
    if not HEADER_BYTES <= header.length <= BATCH_BYTES_MAX:
        raise BrokenBatch(position, "a batch of impossible length")
    if position + header.length > end:
        raise BrokenBatch(position, "a batch that is cut off", torn=True)
    return header


class SegmentIndex:
    """Rows of one segment, from `start_position` on (0 unless the rows before were not read yet).

    Invariant: offsets and positions grow strictly, times never fall; row 0 is at start_position.
    """

    __slots__ = (
        "interval_bytes", "max_timestamp_ms", "next_position", "offsets", "positions", "saved_rows",
        "start_position", "times",
    )  # fmt: skip

    def __init__(
        self, *, interval_bytes: int, start_position: int = 0, max_timestamp_ms: int = NO_TIMESTAMP
    ) -> None:
        self.interval_bytes = interval_bytes
        self.start_position = start_position
        self.next_position = start_position
        """Log position from which on the next batch gets a row."""
        self.max_timestamp_ms = max_timestamp_ms
        """Largest timestamp of the whole segment so far."""
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.saved_rows = 0
        """Rows that are in the files."""

    def add(self, offset: int, position: int) -> None:
        """A row for the batch at `position`; to be called before its timestamp is counted."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.times.append(self.max_timestamp_ms)
        self.next_position = position + self.interval_bytes

    def count(self, position: int, header: BatchHeader) -> None:
        """Takes in a batch found on disk."""
        if position >= self.next_position:
            self.add(header.base_offset, position)
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp_ms

    def floor(self, offset: int) -> Place:
        """The last row at or before `offset` (the first row if there is none)."""
        return self._row(bisect_right(self.offsets, offset) - 1)

    def floor_position(self, position: int) -> Place:
        """The last row at or before byte `position` (the first row if there is none)."""
        return self._row(bisect_right(self.positions, position) - 1)

    def before_time(self, timestamp_ms: int) -> Place:
        """A row before which every batch is older than `timestamp_ms`."""
        return self._row(bisect_left(self.times, timestamp_ms) - 1)

    def _row(self, row: int) -> Place:
        row = max(row, 0)
        return Place(self.offsets[row], self.positions[row])

    @property
    def memory_bytes(self) -> int:
        """What the rows take."""
        return _ROW_BYTES * len(self.offsets)

    @property
    def unsaved_rows(self) -> int:
        """Rows that a process crash would cost."""
        return len(self.offsets) - self.saved_rows

    def cut(self, position: int, max_timestamp_ms: int) -> SegmentIndex:
        """A copy of the rows below byte `position`; nothing of it counts as saved."""
        rows = bisect_left(self.positions, position)
        copy = SegmentIndex(interval_bytes=self.interval_bytes, max_timestamp_ms=max_timestamp_ms)
        copy.offsets, copy.positions = self.offsets[:rows], self.positions[:rows]
        copy.times = self.times[:rows]
        if rows:
            copy.next_position = copy.positions[-1] + self.interval_bytes
        return copy

    def joined(self, head: SegmentIndex) -> SegmentIndex:
        """The rows of `head`, which end where these start, and these."""
        head.offsets.extend(self.offsets)
        head.positions.extend(self.positions)
        head.times.extend(self.times)
        head.max_timestamp_ms = max(self.max_timestamp_ms, head.max_timestamp_ms)
        if self.offsets:
            head.next_position = self.next_position
            head.saved_rows = len(head.offsets) - self.unsaved_rows
        return head


def _packed(first: array[int], second: array[int]) -> bytes:
    rows = array("q", bytes(16 * len(first)))
    rows[0::2], rows[1::2] = first, second
    if sys.byteorder == "big":
        rows.byteswap()
    return rows.tobytes()


def _unpacked(data: bytes) -> tuple[array[int], array[int], bool]:
    """Two columns, and whether all of the file is good."""
    frames, good = read_frames(data)
    rows = array("q")
    for payload in frames:
        if len(payload) % 16:
            break
        rows.frombytes(payload)
    if sys.byteorder == "big":
        rows.byteswap()
    return rows[0::2], rows[1::2], good == len(data)


def save(disk: Disk, stem: str, index: SegmentIndex) -> None:
    """Appends the rows that are not in the files yet; `stem` is the path without suffix.

    Crash after or within: the files end early or are torn; `load` walks what they lack.
    """
    rows = slice(index.saved_rows, None)
    offsets = index.offsets[rows]
    if offsets:
        positions, times = index.positions[rows], index.times[rows]
        disk.append_file(stem + INDEX_SUFFIX, frame(_packed(offsets, positions)), sync=False)
        disk.append_file(stem + TIME_INDEX_SUFFIX, frame(_packed(times, offsets)), sync=False)
    index.saved_rows = len(index.offsets)


def save_all(disk: Disk, stem: str, index: SegmentIndex) -> None:
    """Replaces both files. Crash after or within: old or new files, either is good or noticed."""
    offsets, positions, times = index.offsets, index.positions, index.times
    disk.replace_file(stem + INDEX_SUFFIX, frame(_packed(offsets, positions)), sync=False)
    disk.replace_file(stem + TIME_INDEX_SUFFIX, frame(_packed(times, offsets)), sync=False)
    index.saved_rows = len(offsets)


def remove(disk: Disk, stem: str) -> None:
    """Removes both files; they are made again when needed."""
    disk.unlink(stem + INDEX_SUFFIX)
    disk.unlink(stem + TIME_INDEX_SUFFIX)


def read_rows(disk: Disk, stem: str, *, size_bytes: int, interval_bytes: int) -> SegmentIndex:
    """The rows that the files hold for the first `size_bytes` of the segment, unchecked against
    the log. Nothing where the files are missing or damaged."""
    offsets, positions, is_whole = _unpacked(disk.read_file(stem + INDEX_SUFFIX) or b"")
    times, tied, are_times_whole = _unpacked(disk.read_file(stem + TIME_INDEX_SUFFIX) or b"")
    rows = min(len(offsets), len(tied))
    index = SegmentIndex(interval_bytes=interval_bytes)
    if not rows or positions[0] != 0 or offsets[:rows] != tied[:rows]:
        return index
    index.offsets, index.positions, index.times = offsets[:rows], positions[:rows], times[:rows]
    if is_whole and are_times_whole and len(offsets) == len(tied):
        index.saved_rows = rows  # so the next frames may follow
    return index.cut(size_bytes, NO_TIMESTAMP) if positions[rows - 1] >= size_bytes else index


def last_row(disk: Disk, stem: str) -> Place | None:
    """The last row of the .index file, unchecked: three reads instead of the whole file."""
    try:
        fd = disk.open_to_read(stem + INDEX_SUFFIX)
    except FileNotFoundError:
        return None
    try:
        data = disk.pread(fd, 16, max(disk.size(fd) - 16, 0))
    finally:
        disk.close(fd)
    if len(data) < 16:
        return None
    row = Place(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little"))
    return row if row.position < SEGMENT_BYTES_LIMIT else None


def load(
    disk: Disk, stem: str, read: Read, *, size_bytes: int, interval_bytes: int
) -> tuple[SegmentIndex, BatchHeader | None]:
    """The whole index of a segment's first `size_bytes`, and the last batch's header.

    May wait for the disk: for a thread.

    Raises:
        BrokenBatch: the segment itself is damaged.
    """
    index = read_rows(disk, stem, size_bytes=size_bytes, interval_bytes=interval_bytes)
    if index.offsets and not is_batch_at(read, index.offsets[-1], index.positions[-1], size_bytes):
        index = SegmentIndex(interval_bytes=interval_bytes)
    start = 0
    if index.offsets:
        start, index.max_timestamp_ms = index.positions[-1], index.times[-1]
        index.next_position = start + interval_bytes
    last = None
    for position, header in walk(read, start, size_bytes, SCAN_WINDOW_BYTES):
        index.count(position, header)
        last = header
    return index, last


def is_batch_at(read: Read, offset: int, position: int, size_bytes: int) -> bool:
    """Whether a batch with base offset `offset` starts at `position`."""
    data = read(position, HEADER_BYTES) if position + HEADER_BYTES <= size_bytes else b""
    if len(data) < HEADER_BYTES or not is_assigned_crc_good(data):
        return False
    return read_header(data).base_offset == offset


def file_reader(disk: Disk, fd: int) -> Read:
    """A `Read` that may wait for the disk."""
    return lambda position, size_bytes: disk.pread(fd, size_bytes, position)


def stem_of(directory: str, base_offset: int) -> str:
    """Path of a segment's files without suffix."""
    return os.path.join(directory, f"{base_offset:020d}")


class IndexCache:
    """Loaded indexes of closed segments, at most `capacity_bytes` of rows; the least recently used
    are forgotten (they are in their files)."""

    def __init__(self, capacity_bytes: int = 64 << 20) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()

    def get(self, stem: str) -> SegmentIndex | None:
        """The index, if it is loaded."""
        found = self._indexes.get(stem)
        if found is not None:
            self._indexes.move_to_end(stem)
        return found

    def put(self, stem: str, index: SegmentIndex) -> None:
        """Keeps an index; the newest is kept even when it alone is over the bound."""
        self.forget(stem)
        self._indexes[stem] = index
        self.used_bytes += index.memory_bytes
        while self.used_bytes > self.capacity_bytes and len(self._indexes) > 1:
            _stem, oldest = self._indexes.popitem(last=False)
            self.used_bytes -= oldest.memory_bytes

    def forget(self, stem: str) -> None:
        """Drops an index whose segment is gone or changed."""
        found = self._indexes.pop(stem, None)
        if found is not None:
            self.used_bytes -= found.memory_bytes
