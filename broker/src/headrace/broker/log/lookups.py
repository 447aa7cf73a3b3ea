"""Questions that may read much: offset for a time, offset N bytes on. Run in a thread.

They work on extents taken on the loop's thread; a segment that retention removed meanwhile raises
FileNotFoundError and the caller asks again.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.log.files import Disk
from headrace.broker.log.index import (
    Place,
    Read,
    SegmentIndex,
    file_reader,
    load,
    walk,
)
from headrace.broker.log.restore import Extent
from headrace.broker.log.segment import LOG_SUFFIX, find
from headrace.protocol.batch import BatchHeader, decode_columns
from headrace.protocol.errors import CorruptBatch, UnsupportedFormat


class TimeHit(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int


class SegmentLook(NamedTuple):
    """A segment to look into; `rows` where its index was loaded already, complete."""

    extent: Extent
    rows: SegmentIndex | None


class Opened(NamedTuple):
    """A segment's index and reader while a lookup uses it."""

    rows: SegmentIndex
    read: Read
    fd: int


def _open(disk: Disk, look: SegmentLook, interval_bytes: int) -> Opened:
    extent = look.extent
    fd = disk.open_to_read(extent.stem + LOG_SUFFIX)
    read = file_reader(disk, fd)
    try:
        index = look.rows
        if index is None:
            index, _last = load(
                disk, extent.stem, read, size_bytes=extent.size_bytes,
                interval_bytes=interval_bytes,
            )  # fmt: skip
        return Opened(index, read, fd)
    except BaseException:
        disk.close(fd)
        raise


def offset_for_time(
    disk: Disk,
    looks: list[SegmentLook],
    timestamp_ms: int,
    *,
    start_offset: int,
    end_offset: int,
    interval_bytes: int,
) -> TimeHit | None:
    """The first record in `[start_offset, end_offset)` with at least this timestamp.

    Raises:
        BrokenBatch: a segment is damaged.
    """
    for look in looks:
        if look.extent.base_offset >= end_offset or not look.extent.size_bytes:
            continue
        opened = _open(disk, look, interval_bytes)
        try:
            if opened.rows.max_timestamp_ms >= timestamp_ms:
                hit = _time_in_segment(opened, look.extent, timestamp_ms, start_offset, end_offset)
                if hit is not None:
                    return hit
        finally:
            disk.close(opened.fd)
    return None


def _time_in_segment(
    opened: Opened, extent: Extent, timestamp_ms: int, start_offset: int, end_offset: int
) -> TimeHit | None:
    index = opened.rows
    first = max(index.before_time(timestamp_ms).position, index.floor(start_offset).position)
    for position, header in walk(opened.read, first, extent.size_bytes):
        if header.last_offset >= end_offset:
            return None
        if header.max_timestamp_ms < timestamp_ms or header.last_offset < start_offset:
            continue
        hit = None if header.is_control else _time_in_batch(
            opened.read(position, header.length), header, timestamp_ms, start_offset
        )  # fmt: skip
        if hit is not None:
            return hit
    return None


def _time_in_batch(
    data: object, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> TimeHit | None:
    """Exact to the record; a batch with rubbish inside counts whole."""
    assert isinstance(data, bytes | bytearray | memoryview)
    base, first = header.base_offset, header.first_timestamp_ms
    try:
        columns = decode_columns(data, header)
    except (CorruptBatch, UnsupportedFormat):
        return TimeHit(max(base, start_offset), header.max_timestamp_ms)
    count = header.record_count
    deltas = columns.offset_deltas or range(count)
    stamps = columns.timestamps or [0] * count
    for delta, stamp in zip(deltas, stamps, strict=True):
        if first + stamp >= timestamp_ms and base + delta >= start_offset:
            return TimeHit(base + delta, first + stamp)
    return None


def offset_after_bytes(
    disk: Disk,
    looks: list[SegmentLook],
    offset: int,
    size_bytes: int,
    *,
    end_offset: int,
    interval_bytes: int,
) -> int:
    """The base offset of the first batch that starts at least `size_bytes` behind the start of
    the batch with `offset`, at most `end_offset`.

    Raises:
        BrokenBatch: a segment is damaged.
    """
    left = -1
    for look in looks:
        extent = look.extent
        if extent.end_offset <= offset or not extent.size_bytes:
            continue
        if left < 0:
            left = size_bytes + _position(disk, look, offset, interval_bytes)
        if left < extent.size_bytes:
            return min(end_offset, _offset_at(disk, look, left, interval_bytes))
        left -= extent.size_bytes
    return end_offset


def _position(disk: Disk, look: SegmentLook, offset: int, interval_bytes: int) -> int:
    opened = _open(disk, look, interval_bytes)
    try:
        end = Place(look.extent.end_offset, look.extent.size_bytes)
        return find(opened.rows, opened.read, offset, end).position
    finally:
        disk.close(opened.fd)


def _offset_at(disk: Disk, look: SegmentLook, at_least: int, interval_bytes: int) -> int:
    """Base offset of the first batch at or behind byte `at_least`."""
    opened = _open(disk, look, interval_bytes)
    try:
        start = opened.rows.floor_position(at_least).position
        for position, header in walk(opened.read, start, look.extent.size_bytes):
            if position >= at_least:
                return header.base_offset
        return look.extent.end_offset
    finally:
        disk.close(opened.fd)
