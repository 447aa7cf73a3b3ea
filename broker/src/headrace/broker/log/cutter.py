"""Taking the end off a log: truncation to an offset, or of everything (a replica starts over).

A truncation is noted, synced, before it cuts, so that recovery doesn't take it for damage
(truncations.py). The start is moved by retention.py.
"""

from __future__ import annotations

from headrace.broker.core.compaction import Cleaned
from headrace.broker.log import index as index_files
from headrace.broker.log import swap
from headrace.broker.log.index import BrokenBatch, Place, SegmentIndex, file_reader
from headrace.broker.log.segment import find, last_header_before, load_index, repair_index
from headrace.broker.log.snapshots import ProducerSnapshots
from headrace.broker.log.state import LogState
from headrace.broker.log.truncations import Truncation, note
from headrace.protocol.batch import HEADER_BYTES, read_header


class LogCutter:
    """Truncates one log."""

    __slots__ = ("_log", "_snapshots")

    def __init__(self, log: LogState, snapshots: ProducerSnapshots) -> None:
        self._log = log
        self._snapshots = snapshots

    def truncate_to(self, offset: int) -> None:
        """As `Log.truncate_to`."""
        log, segments = self._log, self._log.segments
        log.check_alive()
        if offset >= log.end_offset:
            return
        if offset < log.start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        log.change()
        try:
            if offset < segments.active.base_offset:
                self._forget_cleaning()
            bases = [segment.base_offset for segment in (*log.older_segments(), segments.active)]
            self._note(max(base for base in bases if base <= offset))
            while offset < segments.active.base_offset:
                self._drop_active()
            self._cut_active(offset)
        except BrokenBatch as error:
            raise log.damaged(segments.active, error) from error
        except OSError as error:
            raise log.translated(error) from error
        if log.end_offset < log.start_offset:  # the start lay within the batch cut
            self.truncate_fully_and_start_at(offset)
            return
        log.flushed_offset = min(log.flushed_offset, log.end_offset)
        log.high_watermark = min(log.high_watermark, log.end_offset)
        log.epochs.truncate(log.end_offset)
        log.last_epoch = log.epochs.epoch_at(log.end_offset - 1)

    def _note(self, recovery_point: int, start_offset: int | None = None) -> None:
        log = self._log
        log.truncations += 1
        note(log.disk, log.directory, Truncation(log.truncations, recovery_point, start_offset))

    def _forget_cleaning(self) -> None:
        log = self._log
        if log.has_holes and swap.has_holes(log.disk, log.directory):
            swap.note_holes(log.disk, log.directory)
        log.cleaned = Cleaned()
        swap.forget(self._log.disk, self._log.directory)

    def _drop_active(self) -> None:
        log = self._log
        log.older_segments()
        log.end_offset = log.segments.active.base_offset
        log.segments.drop_active()

    def _cut_active(self, offset: int) -> None:
        log, active = self._log, self._log.segments.active
        disk, indexes = log.disk, log.context.indexes
        whole = indexes.get(active.stem)
        index = active.index or whole
        if index is None or index.start_position:
            index, _last = load_index(
                disk, active, active.size_bytes, log.config.index_interval_bytes
            )
        read = file_reader(disk, log.files.fd(active.file, create=True))
        end = Place(log.end_offset, active.size_bytes)
        cut = find(index, read, offset, end)
        last = last_header_before(index, read, cut.position)
        index_files.remove(disk, active.stem)
        self._snapshots.drop_above(cut.offset)
        indexes.forget(active.stem)
        active.file.generation += 1
        disk.truncate(log.files.fd(active.file), cut.position)
        log.segments.shrink_active(cut.position)
        active.index = _cut_index(index, read, cut.position)
        active.last_append_ms = log.last_append_time_ms if last is None else last.append_time_ms
        if cut.position and not active.first_append_ms:
            active.first_append_ms = read_header(read(0, HEADER_BYTES)).append_time_ms
        repair_index(disk, active, active.index)
        log.end_offset = cut.offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """As `Log.truncate_fully_and_start_at`."""
        log, segments = self._log, self._log.segments
        log.check_alive()
        log.change()
        try:
            self._forget_cleaning()
            self._note(offset, start_offset=offset)
            log.older_segments()
            segments.remove_all()
            self._snapshots.drop_all()
            log.epochs.replace([])
        except OSError as error:
            raise log.translated(error) from error
        segments.start_over(offset, log.config.index_interval_bytes)
        self._snapshots.start_over()
        log.start_offset = log.end_offset = log.high_watermark = log.flushed_offset = offset
        log.last_epoch = -1
        log.producers = log.new_producers(complete=offset == 0)
        log.has_producers = offset != 0
        log.directory_dirty = True
        try:
            log.files.fd(segments.active.file, create=True)
        except OSError as error:
            raise log.translated(error) from error


def _cut_index(index: SegmentIndex, read: index_files.Read, position: int) -> SegmentIndex:
    """The index of the segment's first `position` bytes."""
    rows = index.cut(position, index_files.NO_TIMESTAMP)
    if rows.offsets:
        start, rows.max_timestamp_ms = rows.positions[-1], rows.times[-1]
        for _at, header in index_files.walk(read, start, position):
            rows.max_timestamp_ms = max(rows.max_timestamp_ms, header.max_timestamp_ms)
    return rows
