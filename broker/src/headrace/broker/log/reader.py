"""Finding in a log: the slice from an offset on, the offset for a time, the offset N bytes on.

From memory and the page cache where they have the answer, else by a thread, which works on what the
log was when it was asked: if the log changed meanwhile, the question is put again.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.core.batch_cleaning import NEVER_MS
from headrace.broker.log import lookups
from headrace.broker.log.index import BrokenBatch, Place, Read, SegmentIndex, file_reader
from headrace.broker.log.lookups import SegmentLook, TimeHit
from headrace.broker.log.segment import (
    Query,
    Segment,
    Span,
    load_index,
    plan,
    repair_index,
    unexpired,
)
from headrace.broker.log.segments import place_of
from headrace.broker.log.slices import EmptiedSlice, LogSlice
from headrace.broker.log.state import ATTEMPTS_MAX, LogState
from headrace.protocol.batch import BatchHeader
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import Conflict, OffsetOutOfRange

HINTS_MAX = 64
"""Ends of recent reads remembered in one log, so that tail readers need no search."""


STEPS_MAX = 16
"""How often looking goes on behind expired batches before the reader is told how far it came."""


class Wanted(NamedTuple):
    """What a reader may get."""

    max_bytes: int
    end_offset: int
    expired_before_ms: int


class ColdRead(BlockingIOError):
    """The answer is not in memory: ask again with `locate_cold`."""


class LogReader:
    """Finds in one log; changes nothing but indexes, hints and, where files are damaged, the
    log's health."""

    __slots__ = ("_log", "_segments")

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._segments = log.segments

    def locate(self, offset: int, want: Wanted) -> LogSlice | None:
        """As `Log.locate`."""
        at = offset
        for _step in range(STEPS_MAX):
            found = self._look(at, want)
            if not isinstance(found, int):
                return found or (self.skip(offset, at) if at > offset else None)
            at = found
        return self.skip(offset, at)

    def _look(self, offset: int, want: Wanted) -> LogSlice | int | None:
        """The slice, or where to go on when all batches from `offset` to there are expired."""
        found = self._reach(offset, want.end_offset, want.max_bytes)
        if found is None:
            return None
        segment, query = found
        index = self._segments.index_of(segment)
        if index is None or not query.is_covered_by(index):
            raise ColdRead("the segment's index is not in memory")
        try:
            span = _plan(index, self._hot_reader(segment), query, want.expired_before_ms)
        except BrokenBatch as error:
            raise self._log.damaged(segment, error) from error
        return self._sliced(segment, span)

    async def locate_cold(self, offset: int, want: Wanted) -> LogSlice | None:
        """As `Log.locate_cold`."""
        at = offset
        for _step in range(STEPS_MAX):
            found = await self._look_cold(at, want)
            if not isinstance(found, int):
                return found or (self.skip(offset, at) if at > offset else None)
            at = found
        return self.skip(offset, at)

    async def _look_cold(self, offset: int, want: Wanted) -> LogSlice | int | None:
        for _attempt in range(ATTEMPTS_MAX):
            try:
                return self._look(offset, want)
            except ColdRead:
                pass
            found = self._reach(offset, want.end_offset, want.max_bytes)
            if found is None:
                return None
            segment, query = found
            generation = self._segments.generation
            try:
                index = await self._loaded_index(segment)
                if index is None:
                    continue
                span = await self._plan_cold(segment, index, query, want.expired_before_ms)
            except (BrokenBatch, OSError) as error:
                if not segment.file.discarded:
                    self._log.settle(error, generation)
                continue
            if generation == self._segments.generation and not segment.file.discarded:
                return self._sliced(segment, span)
        raise Conflict("the log was truncated again and again while it was searched; fetch again")

    async def _plan_cold(
        self, segment: Segment, index: SegmentIndex, query: Query, before_ms: int
    ) -> Span | None:
        files = self._log.files
        fd = files.pin(segment.file)
        try:
            read = file_reader(files.disk, fd)
            return await files.workers.run(_plan, index, read, query, before_ms)
        finally:
            files.unpin(segment.file)

    def skip(self, offset: int, next_offset: int) -> LogSlice:
        """As `Log.skip`."""
        epoch = self._log.epochs.epoch_at(next_offset - 1)
        return EmptiedSlice(self._log.files, offset, next_offset, epoch)

    def _reach(self, offset: int, end_offset: int, max_bytes: int) -> tuple[Segment, Query] | None:
        """The segment to read from and what to look for there; None when there is nothing."""
        log, segments = self._log, self._segments
        if log.failure is not None:
            log.check_alive()
        log_end = log.end_offset
        if not log.start_offset <= offset <= log_end:
            raise OffsetOutOfRange(
                f"offset {offset} is outside {log.start_offset} to {log_end}",
                details={"start_offset": log.start_offset, "end_offset": log_end},
            )
        segment = segments.active
        if offset >= end_offset or offset >= log_end:
            if offset == log_end and offset not in segments.hints:
                self._hint(offset, segment, segment.size_bytes)
            return None
        segment_end = log_end
        if offset < segment.base_offset:
            older = log.older_segments()
            segment = older[place_of(older, offset)]
            segment_end = log.end_of(segment)
        end = Place(segment_end, segment.size_bytes)
        start, stop = self._hinted(segment, offset), self._hinted(segment, end_offset)
        return segment, Query(offset, end_offset, max_bytes, end, start, stop)

    def _hinted(self, segment: Segment, offset: int) -> Place | None:
        found = self._segments.hints.get(offset)
        if found is None or found[0] is not segment or found[1] >= segment.size_bytes:
            return None
        return Place(offset, found[1])

    def _hint(self, offset: int, segment: Segment, position: int) -> None:
        hints = self._segments.hints
        hints.pop(offset, None)
        if len(hints) >= HINTS_MAX:
            del hints[next(iter(hints))]
        hints[offset] = (segment, position)

    def _sliced(self, segment: Segment, span: Span | None) -> LogSlice | int | None:
        if span is None:
            return None
        if not span.length:
            return span.next_offset
        self._hint(span.next_offset, segment, span.position + span.length)
        return LogSlice(self._log.files, segment.file, span)

    def _hot_reader(self, segment: Segment) -> Read:
        """Reads from the page cache or raises ColdRead."""
        files, file = self._log.files, segment.file

        def read(position: int, size_bytes: int) -> Buffer:
            try:
                data = files.disk.pread_nowait(files.fd(file), size_bytes, position)
            except OSError as error:
                raise self._log.translated(error) from error
            if data is None or len(data) < size_bytes:
                raise ColdRead("the batch headers are not in the page cache")
            return data

        return read

    async def _loaded_index(self, segment: Segment) -> SegmentIndex | None:
        """The segment's whole index, read by a thread if need be; None when it changed meanwhile.

        Raises:
            BrokenBatch, OSError: the segment can't be read.
        """
        log, segments = self._log, self._segments
        index = segments.index_of(segment)
        if index is not None and index.start_position == 0:
            return index
        generation = segments.generation
        size_bytes = index.start_position if index is not None else segment.size_bytes
        head, last = await log.files.workers.run(
            load_index, log.disk, segment, size_bytes, log.config.index_interval_bytes
        )
        if generation != segments.generation or segment.file.discarded:
            return None
        return self._install(segment, head, last)

    def _install(
        self, segment: Segment, head: SegmentIndex, last: BatchHeader | None
    ) -> SegmentIndex:
        now = self._segments.index_of(segment)
        if now is not None and now.start_position == 0:
            return now
        if segment is self._segments.active:
            assert now is not None
            is_damaged = head.saved_rows == 0
            segment.index = now.joined(head)
            if is_damaged:
                repair_index(self._log.disk, segment, segment.index)
            return segment.index
        if last is not None:
            segment.last_append_ms = last.append_time_ms
        segment.index = None
        if head.saved_rows == 0:
            repair_index(self._log.disk, segment, head)
        self._log.context.indexes.put(segment.stem, head)
        return head

    async def offset_for_time(self, timestamp_ms: int, *, end_offset: int) -> TimeHit | None:
        """As `Log.offset_for_time`."""
        log = self._log
        for _attempt in range(ATTEMPTS_MAX):
            looks, generation = self._looks(log.start_offset), self._segments.generation
            try:
                found = await log.files.workers.run(
                    lookups.offset_for_time, log.disk, looks, timestamp_ms,
                    start_offset=log.start_offset,
                    end_offset=min(end_offset, log.end_offset),
                    interval_bytes=log.config.index_interval_bytes,
                )  # fmt: skip
                if generation == self._segments.generation:
                    return found
            except (BrokenBatch, OSError) as error:
                log.settle(error, generation)
        raise Conflict("the log changed again and again while it was searched; ask again")

    async def offset_after_bytes(self, offset: int, size_bytes: int, *, end_offset: int) -> int:
        """As `Log.offset_after_bytes`."""
        log = self._log
        self._reach(offset, end_offset, 0)
        for _attempt in range(ATTEMPTS_MAX):
            looks, generation = self._looks(offset), self._segments.generation
            try:
                found = await log.files.workers.run(
                    lookups.offset_after_bytes, log.disk, looks, offset, size_bytes,
                    end_offset=min(end_offset, log.end_offset),
                    interval_bytes=log.config.index_interval_bytes,
                )  # fmt: skip
                if generation == self._segments.generation:
                    return found
            except (BrokenBatch, OSError) as error:
                log.settle(error, generation)
        raise Conflict("the log changed again and again while it was searched; ask again")

    def _looks(self, offset: int) -> list[SegmentLook]:
        """What a thread may look into, from the segment with `offset` on."""
        found = []
        log = self._log
        for extent in log.extents():
            if extent.end_offset > offset:
                index = log.context.indexes.get(extent.stem)
                if extent.stem == self._segments.active.stem:
                    index = self._segments.active.index
                whole = index is not None and index.start_position == 0
                found.append(SegmentLook(extent, index if whole else None))
        return found


def _plan(index: SegmentIndex, read: Read, query: Query, before_ms: int) -> Span | None:
    if before_ms == NEVER_MS:
        return plan(index, read, query)
    return unexpired(index, read, query, before_ms)
