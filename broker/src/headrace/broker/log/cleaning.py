"""Cleaning one log, compaction or expiry: how much there is to do, the job, taking in what it made.

The pass itself (compactor.py) runs beside the broker and only adds files. Meanwhile the log goes
on: each group of segments that comes back is compared with what is there now, and when retention,
delete-records or a truncation was there first, the pass is given up. A fault in cleaning is the
cleaner's (partition/cleaner.py): nothing here takes a log offline, but a disk that refuses to
rename segments and then to take that back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.broker.core.compaction import (
    NOTHING,
    Cleaned,
    CleaningPolicy,
    Dirt,
    SegmentFacts,
    dirt_of,
)
from headrace.broker.log import swap
from headrace.broker.log.compactor import Done, Group, Job, JobSegment
from headrace.broker.log.files import Disk
from headrace.broker.log.index import file_reader, stem_of, walk
from headrace.broker.log.restore import snapshot_path
from headrace.broker.log.segment import LOG_SUFFIX, Segment, load_index
from headrace.broker.log.segments import TornSwap
from headrace.broker.log.snapshots import ProducerSnapshots
from headrace.broker.log.state import LogState
from headrace.broker.log.swap import SwapNote

ROLL_MS_MIN = 3_600_000
"""A segment of a topic with record.ttl.ms is closed when it is that old or as old as the records
may get, whichever is more: every segment costs a file."""


class CleaningAborted(Exception):
    """The log was cut or failed meanwhile; what the pass made is removed, the next pass sees."""


class LogCleaning:
    """Cleans one log. `roll` closes the log's active segment."""

    __slots__ = ("_log", "_roll", "_snapshots")

    def __init__(
        self, log: LogState, snapshots: ProducerSnapshots, roll: Callable[[], None]
    ) -> None:
        self._log = log
        self._snapshots = snapshots
        self._roll = roll

    async def dirt(self, now_ms: int) -> Dirt:
        """How much there is to clean, and whether it is time.

        Raises:
            BrokenBatch, OSError: the log's files can't be read.
            PartitionOffline, StorageFull: a segment that is due to be closed can't be.
        """
        log, policy = self._log, self._log.config.cleaning
        if not policy.cleans or log.failure is not None:
            return NOTHING
        self._roll_if_due(policy, now_ms)
        if not log.older_segments():
            return NOTHING
        cleaned = await self._known()
        closed = await self._facts(policy)
        first_ms = None
        if policy.max_lag_ms < CleaningPolicy().max_lag_ms:
            first_ms = await self._first_dirty_ms(closed, cleaned.clean_offset)
        return dirt_of(
            closed, cleaned, policy, limit_offset=self._limit(), first_dirty_ms=first_ms,
            now_ms=now_ms,
        )  # fmt: skip

    def _roll_if_due(self, policy: CleaningPolicy, now_ms: int) -> None:
        active = self._log.segments.active
        lag_ms = policy.max_lag_ms
        if policy.record_ttl_ms >= 0:
            lag_ms = min(lag_ms, max(policy.record_ttl_ms, ROLL_MS_MIN))
        if active.size_bytes and now_ms - active.first_append_ms >= lag_ms:
            self._roll()

    def _limit(self) -> int:
        """No record at or above it may be touched: it isn't committed, or not on the disk, so a
        truncation must find it and recovery may look for it."""
        log = self._log
        unsynced = [segment.base_offset for segment in log.segments.rolled]
        return min(log.high_watermark, log.flushed_offset, *unsynced)

    async def _known(self) -> Cleaned:
        log = self._log
        if log.cleaned is None:
            generation = log.segments.generation
            found = await log.files.workers.run(swap.load_cleaned, log.disk, log.directory)
            if log.cleaned is None:
                is_same = generation == log.segments.generation
                log.cleaned = found.cut(log.end_offset) if is_same else Cleaned()
        return log.cleaned.for_policy(log.config.cleaning)

    async def _facts(self, policy: CleaningPolicy) -> list[SegmentFacts]:
        """The closed segments; their ages only where the policy asks for them."""
        log = self._log
        if policy.min_lag_ms or not policy.compact:
            unknown = [each for each in log.older_segments() if each.last_append_ms is None]
            if unknown:
                await log.files.workers.run(
                    _look_up_ages, log.disk, unknown, log.config.index_interval_bytes
                )
        return [
            SegmentFacts(
                each.base_offset, log.end_of(each), each.size_bytes, each.last_append_ms or 0
            )
            for each in log.older_segments()
        ]

    async def _first_dirty_ms(
        self, closed: Sequence[SegmentFacts], clean_offset: int
    ) -> int | None:
        log = self._log
        for each in closed:
            if each.end_offset > clean_offset:
                stem = stem_of(log.directory, each.base_offset)
                return await log.files.workers.run(
                    _append_ms_at, log.disk, stem + LOG_SUFFIX, clean_offset, each.size_bytes
                )
        return None

    async def job(self, now_ms: int, *, memory_bytes: int, bytes_per_second: int) -> Job | None:
        """What a pass now would do; None when there is nothing it may touch.

        Raises:
            as `dirt`; PartitionOffline, Conflict: as `Log.load_producers`.
        """
        log, config, policy = self._log, self._log.config, self._log.config.cleaning
        dirt = await self.dirt(now_ms)
        if not dirt.is_due:
            return None
        producers = {}
        if self._snapshots.is_needed:
            producers = (await self._snapshots.load()).remembered(log.last_append_time_ms)
        cleaned = await self._known()
        segments = [
            JobSegment(each.base_offset, log.end_of(each), each.size_bytes)
            for each in log.older_segments()[: dirt.segments]
        ]
        if not policy.compact:
            segments = [each for each in segments if each.end_offset > cleaned.clean_offset]
        if not segments or segments[-1].end_offset > self._limit():
            return None
        return Job(
            directory=log.directory,
            segments=tuple(segments),
            clean_offset=cleaned.clean_offset,
            compact=policy.compact,
            tombstones_below=cleaned.tombstones_below(policy, now_ms),
            expired_before_ms=policy.expired_before_ms(now_ms),
            producers=producers,
            segment_bytes=config.segment_bytes,
            index_interval_bytes=config.index_interval_bytes,
            memory_bytes=memory_bytes,
            bytes_per_second=bytes_per_second,
        )

    async def put_in_place(self, group: Group) -> int:
        """Swaps the group's segments for what the pass made of them (swap.py has the steps);
        answers the bytes that became free. Not to be cancelled: whoever may be, shields it.

        Raises:
            CleaningAborted: the segments are not there any more as they were.
            OSError: the disk refused; the log is as it was before.
        """
        log = self._log
        workers, disk, directory = log.files.workers, log.disk, log.directory
        generation = log.segments.generation
        old = self._present(group)
        note = SwapNote(group.base_offsets[0], group.end_offset)
        await workers.run(swap.write_note, disk, directory, note)
        if generation != log.segments.generation or old != self._present(group):
            raise CleaningAborted("the log was cut while a pass over it ran")
        freed = self._switch(group, old)
        await workers.run(self._end_swap, group)
        return freed

    def _present(self, group: Group) -> list[Segment]:
        """The group's segments, as the log has them."""
        log = self._log
        if log.failure is not None:
            raise CleaningAborted(log.failure.message)
        wanted = set(group.base_offsets)
        found = [each for each in log.older_segments() if each.base_offset in wanted]
        if len(found) != len(wanted) or log.end_of(found[-1]) != group.end_offset:
            raise CleaningAborted("segments went while a pass over them ran")
        return found

    def _switch(self, group: Group, old: list[Segment]) -> int:
        log, base_offset = self._log, group.base_offsets[0]
        new = Segment(log.directory, base_offset, group.size_bytes)
        new.last_append_ms = group.last_append_ms
        try:
            log.segments.replace(
                old, new, lambda: swap.move_in(log.disk, log.directory, base_offset)
            )
        except TornSwap as error:
            log.fail(str(error))
            raise CleaningAborted(str(error)) from error
        return sum(each.size_bytes for each in old) - new.size_bytes

    def _end_swap(self, group: Group) -> None:
        """For a thread. The states of producers within the new segment are not needed: there are
        later ones, and the headers."""
        log = self._log
        swap.end(log.disk, log.directory)
        for base_offset in group.base_offsets[1:]:
            log.disk.unlink(snapshot_path(log.directory, base_offset))

    async def give_up(self, job: Job) -> None:
        """Removes what a pass left that won't be finished, as far as the disk allows; the rest goes
        at the next start. In a log that failed all stays: it may be needed to finish a swap."""
        log = self._log
        if log.failure is not None:
            return
        bases = [each.base_offset for each in job.segments]
        try:
            await log.files.workers.run(swap.give_up, log.disk, log.directory, bases)
        except OSError:
            pass

    async def finish(self, job: Job, done: Done, now_ms: int) -> None:
        """Remembers a finished pass. Without that (an OSError, a crash) all is to be cleaned again.

        Raises:
            OSError: it couldn't be written.
        """
        log = self._log
        before = await self._known()
        if before.clean_offset != job.clean_offset or before.compacted != job.compact:
            return  # truncated or configured anew meanwhile
        after = before.after(done.end_offset, now_ms=now_ms, first_tombstone=done.first_tombstone)
        generation = log.segments.generation
        await log.files.workers.run(swap.save_cleaned, log.disk, log.directory, after)
        if generation == log.segments.generation:
            log.cleaned = after


def _look_up_ages(disk: Disk, segments: Sequence[Segment], interval_bytes: int) -> None:
    for segment in segments:
        _index, last = load_index(disk, segment, segment.size_bytes, interval_bytes)
        segment.last_append_ms = last.append_time_ms if last is not None else 0


def _append_ms_at(disk: Disk, path: str, offset: int, size_bytes: int) -> int | None:
    """Append time of the first batch at or above `offset`."""
    fd = disk.open_to_read(path)
    try:
        for _position, header in walk(file_reader(disk, fd), 0, size_bytes):
            if header.base_offset >= offset:
                return header.append_time_ms
        return None
    finally:
        disk.close(fd)
