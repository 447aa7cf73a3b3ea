"""Producer state rebuilt from the log: the newest good snapshot, then the headers behind it.

For a thread: it reads files, and the whole log where there is no snapshot.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.log.files import Disk
from headrace.broker.log.index import (
    SCAN_WINDOW_BYTES,
    file_reader,
    is_batch_at,
    read_rows,
    stem_of,
    walk,
)
from headrace.broker.log.producers import ProducerState
from headrace.broker.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, list_files


class Extent(NamedTuple):
    """A segment as it was when the work began."""

    stem: str
    base_offset: int
    size_bytes: int
    end_offset: int


def snapshot_path(directory: str, offset: int) -> str:
    """Where the producer state before `offset` is kept."""
    return stem_of(directory, offset) + SNAPSHOT_SUFFIX


def restore(
    disk: Disk,
    directory: str,
    extents: list[Extent],
    *,
    end_offset: int,
    expiry_ms: int,
    producers_max: int,
) -> ProducerState:
    """The state after all batches below `end_offset`.

    Raises:
        BrokenBatch: a segment is damaged.
        FileNotFoundError: retention took a segment meanwhile.
    """
    for offset in reversed(list_files(disk, directory).snapshots):
        if offset <= end_offset and extents and offset >= extents[0].base_offset:
            data = disk.read_file(snapshot_path(directory, offset)) or b""
            state = ProducerState.from_snapshot(
                data, end_offset=offset, expiry_ms=expiry_ms, producers_max=producers_max
            )
            if state is not None:
                return replay(disk, state, extents, offset)
    first = extents[0].base_offset if extents else end_offset
    state = ProducerState(complete=first == 0, expiry_ms=expiry_ms, producers_max=producers_max)
    return replay(disk, state, extents, first)


def replay(
    disk: Disk, state: ProducerState, extents: list[Extent], from_offset: int
) -> ProducerState:
    """Feeds the batches from `from_offset` on into `state`. Raises as `restore`."""
    for extent in extents:
        if extent.end_offset > from_offset and extent.size_bytes:
            _replay_segment(disk, state, extent, from_offset)
    return state


def _replay_segment(disk: Disk, state: ProducerState, extent: Extent, from_offset: int) -> None:
    fd = disk.open_to_read(extent.stem + LOG_SUFFIX)
    try:
        read = file_reader(disk, fd)
        position = 0
        if from_offset > extent.base_offset:
            index = read_rows(disk, extent.stem, size_bytes=extent.size_bytes, interval_bytes=1)
            if index.offsets:
                place = index.floor(from_offset)
                if is_batch_at(read, place.offset, place.position, extent.size_bytes):
                    position = place.position
        for _position, header in walk(read, position, extent.size_bytes, SCAN_WINDOW_BYTES):
            if header.base_offset >= from_offset:
                state.update(header, header.base_offset, header.append_time_ms)
    finally:
        disk.close(fd)


def drop_snapshots(disk: Disk, directory: str, *, above: int = 1 << 63, below: int = -1) -> None:
    """Removes snapshots for offsets above or below a bound: their batches are no longer there."""
    for offset in list_files(disk, directory).snapshots:
        if offset > above or offset < below:
            disk.unlink(snapshot_path(directory, offset))
