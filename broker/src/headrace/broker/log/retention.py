"""Taking old segments off a log's start: what retention lets go, what delete-records asks for.

What may go is decided by core/retention.py; here is finding the ages out and deleting. Whole
segments only, oldest first, and never without a snapshot of the producer state before them.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.core.retention import RetentionPolicy, SegmentInfo, deletable, is_expired
from headrace.broker.log.index import BrokenBatch
from headrace.broker.log.segment import load_index
from headrace.broker.log.snapshots import ProducerSnapshots
from headrace.broker.log.state import LogState
from headrace.protocol.errors import OffsetOutOfRange, StorageFull


class LogRetention:
    """Deletes from one log's start. `roll` closes the log's active segment."""

    __slots__ = ("_log", "_roll", "_snapshots")

    def __init__(
        self, log: LogState, snapshots: ProducerSnapshots, roll: Callable[[], None]
    ) -> None:
        self._log = log
        self._snapshots = snapshots
        self._roll = roll

    async def advance_start(self, offset: int) -> None:
        """As `Log.advance_start`."""
        log = self._log
        log.check_alive()
        if offset > log.high_watermark:
            raise OffsetOutOfRange(
                f"records can be deleted up to {log.high_watermark}, not to {offset}",
                details={"start_offset": log.start_offset, "end_offset": log.high_watermark},
            )
        if offset <= log.start_offset:
            return
        older = log.older_segments()
        if offset == log.end_offset:
            self._try_to_roll()
        log.start_offset = offset
        await self._delete_oldest(sum(log.end_of(segment) <= offset for segment in older))

    async def apply(self, now_ms: int) -> int:
        """As `Log.apply_retention`."""
        log, config = self._log, self._log.config
        if not config.delete or log.failure is not None or log.size_bytes == 0:
            return 0
        policy = RetentionPolicy(config.retention_ms, config.retention_bytes)
        active = log.segments.active
        if (
            active.size_bytes
            and log.end_offset <= log.high_watermark
            and is_expired(active.last_append_ms, policy, now_ms=now_ms)
        ):
            self._try_to_roll()
        await self._look_up_ages(policy, now_ms)
        older = log.older_segments()
        if not older:
            return 0
        ends = [segment.base_offset for segment in (*older, log.segments.active)[1:]]
        closed = [
            SegmentInfo(end, segment.size_bytes, segment.last_append_ms)
            for segment, end in zip(older, ends, strict=True)
        ]
        count = deletable(
            closed, policy, size_bytes=log.size_bytes, now_ms=now_ms,
            high_watermark=log.high_watermark,
        )  # fmt: skip
        return await self._delete_oldest(count)

    def _try_to_roll(self) -> None:
        """Closes the active segment so that it can go. Where there is no room for the next one,
        what is closed already goes first."""
        try:
            self._roll()
        except StorageFull:
            pass

    async def _delete_oldest(self, count: int) -> int:
        """Removes `count` segments; answers how many went (fewer when somebody else cut the log
        meanwhile)."""
        log, segments = self._log, self._log.segments
        older = log.older_segments()
        if not count:
            return 0
        first_offset = (*older, segments.active)[count].base_offset
        generation = segments.generation
        await self._snapshots.keep(first_offset)
        if generation != segments.generation:
            return 0
        log.older_segments()
        log.start_offset = max(log.start_offset, first_offset)
        gone = segments.drop_below(first_offset)
        self._snapshots.drop_below(first_offset)
        return gone

    async def _look_up_ages(self, policy: RetentionPolicy, now_ms: int) -> None:
        """Fills in `last_append_ms` of the oldest segments until one is young."""
        log = self._log
        for segment in tuple(log.older_segments()):
            if segment.last_append_ms is None:
                generation = log.segments.generation
                try:
                    _index, last = await log.files.workers.run(
                        load_index, log.disk, segment, segment.size_bytes,
                        log.config.index_interval_bytes,
                    )  # fmt: skip
                    segment.last_append_ms = last.append_time_ms if last is not None else 0
                except (BrokenBatch, OSError) as error:
                    if not segment.file.discarded:
                        log.settle(error, generation)
                    return
            if not is_expired(segment.last_append_ms, policy, now_ms=now_ms):
                return
