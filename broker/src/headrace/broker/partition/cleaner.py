"""Cleans the logs of this broker in the background: one pass at a time, the dirtiest log first.

The pass is a process's (log/compaction_process.py), the segments are changed here, between two
requests (log/cleaning.py). A fault leaves the log as it was: it is counted and told, and the
partition waits a while before it is tried again; nothing goes offline for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.broker.clock import Clock
from headrace.broker.core.compaction import Dirt
from headrace.broker.log.cleaning import CleaningAborted
from headrace.broker.log.compaction_process import CompactionError
from headrace.broker.log.compactor import Done, Group, Job
from headrace.broker.log.index import BrokenBatch
from headrace.broker.partition.partition import Partition
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicIdPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 300.0
"""How long a partition is left alone after its cleaning failed."""

_FAULTS = (CompactionError, BrokenBatch, OSError, HeadraceError)


class Runner(Protocol):
    """Does jobs; a `CompactionProcess`."""

    def run(self, job: Job) -> AsyncIterator[Group | Done]:
        """The job's groups, then what was done."""

    async def stop(self) -> int | None:
        """Ends what runs; the next job starts anew."""


@dataclass(slots=True)
class CleaningStats:
    """What cleaning did since the process started."""

    passes: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    seconds: float = 0.0
    dirty_ratio_max: float = 0.0
    """Of all logs at the last look."""


class Cleaner:
    """Lives on the loop's thread; `work` is to be called again and again."""

    def __init__(
        self,
        partitions: Iterable[Partition],
        runner: Runner,
        *,
        clock: Clock,
        memory_bytes: int,
        bytes_per_second: int,
        free_bytes: Callable[[], int],
    ) -> None:
        """`free_bytes`: how much more may be written to the volume."""
        self._partitions = partitions
        self._runner = runner
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._bytes_per_second = bytes_per_second
        self._free_bytes = free_bytes
        self._retry_at: dict[TopicIdPartition, float] = {}
        self.stats = CleaningStats()

    async def work(self) -> None:
        """One pass over each log that is due; the process ends with the last of them."""
        due: list[tuple[float, Partition]] = []
        self.stats.dirty_ratio_max = 0.0
        for partition in list(self._partitions):
            dirt = await self._look_at(partition)
            if dirt is not None:
                self.stats.dirty_ratio_max = max(self.stats.dirty_ratio_max, dirt.ratio)
                if dirt.is_due:
                    due.append((dirt.ratio, partition))
        due.sort(key=lambda each: each[0], reverse=True)
        try:
            for _ratio, partition in due:
                await self._clean(partition)
        finally:
            await self._runner.stop()

    async def _look_at(self, partition: Partition) -> Dirt | None:
        policy = partition.log.config.cleaning
        is_waiting = self._retry_at.get(partition.id, 0.0) > self._clock.monotonic()
        if not policy.cleans or is_waiting or partition.log.failure is not None:
            return None
        try:
            return await partition.log.cleaning.dirt(self._clock.now_ms())
        except _FAULTS as error:
            self._failed(partition, error)
            return None

    async def _clean(self, partition: Partition) -> None:
        began = self._clock.monotonic()
        try:
            job = await partition.log.cleaning.job(
                self._clock.now_ms(), memory_bytes=self._memory_bytes,
                bytes_per_second=self._bytes_per_second,
            )  # fmt: skip
            if job is None:
                return
            self._require_room(job)
            done = await self._pass_over(partition, job)
        except CleaningAborted as reason:
            log.info("%s: cleaning was given up: %s", partition.name, reason)
            return
        except _FAULTS as error:
            self._failed(partition, error)
            return
        self._retry_at.pop(partition.id, None)
        self._count(partition, job, done, self._clock.monotonic() - began)

    def _require_room(self, job: Job) -> None:
        needed = min(job.segment_bytes, sum(each.size_bytes for each in job.segments))
        if self._free_bytes() < needed:
            raise CompactionError(f"it needs {needed} bytes of the volume, so much isn't free")

    async def _pass_over(self, partition: Partition, job: Job) -> Done:
        cleaning = partition.log.cleaning
        try:
            async for step in self._runner.run(job):
                if isinstance(step, Done):
                    await cleaning.finish(job, step, self._clock.now_ms())
                    return step
                await undisturbed(cleaning.put_in_place(step))
        except BaseException:
            await self._runner.stop()
            await undisturbed(cleaning.give_up(job))
            raise
        raise CompactionError("its process ended without a word")

    def _failed(self, partition: Partition, error: Exception) -> None:
        self.stats.failures += 1
        self._retry_at[partition.id] = self._clock.monotonic() + RETRY_S
        log.warning(
            "%s can't be cleaned, it is tried again in %d s: %s", partition.name, RETRY_S, error
        )

    def _count(self, partition: Partition, job: Job, done: Done, seconds: float) -> None:
        stats = self.stats
        stats.passes += 1
        stats.bytes_read += done.bytes_read
        stats.bytes_written += done.bytes_written
        stats.records_removed += done.records_removed
        stats.seconds += seconds
        if done.end_offset < job.segments[-1].end_offset:
            log.info(
                "%s: %d keys filled compaction.memory.bytes at offset %d, the rest comes next",
                partition.name, done.keys, done.end_offset,
            )  # fmt: skip
        log.info(
            "%s: cleaned up to offset %d in %.1f s, %d of %d records removed",
            partition.name, done.end_offset, seconds, done.records_removed, done.records_read,
        )  # fmt: skip


async def undisturbed(work: Awaitable[T]) -> T:
    """Awaits `work` to its end even when the caller is cancelled: half a swap of files would meet
    a log that is being closed."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
