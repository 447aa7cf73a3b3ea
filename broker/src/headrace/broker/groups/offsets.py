"""Committed offsets of groups, kept as records of `__offsets` (replication.md G1-G6).

The coordinator of a group is whoever leads the group's partition of `__offsets`. On leading it
replays that partition's log and answers nothing until the high watermark has passed what it
replayed: what was loaded is then committed. A commit is appended first, and told as done once it
is below the high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.broker.clock import Clock
from headrace.broker.groups import records
from headrace.broker.groups.records import OffsetValue
from headrace.broker.groups.state import GroupOffsets, partition_for_group
from headrace.broker.partition.partition import Partition
from headrace.protocol import batch
from headrace.protocol.batch import read_header
from headrace.protocol.errors import (
    GroupNotFound,
    HeadraceError,
    InternalError,
    NotCoordinator,
)
from headrace.protocol.ids import TopicId, TopicIdPartition

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
"""Bytes of `__offsets` replayed between two breaths of the loop."""

LOAD_RETRY_S = 5.0
"""Pause before a load that failed is tried again."""

RECORDS_PER_APPEND = 5_000
"""Offsets written in one batch; a larger commit becomes several."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset to commit."""

    where: TopicIdPartition
    offset: int
    leader_epoch: int
    metadata: str


class GroupPartition:
    """One partition of `__offsets` while this broker leads it."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.state = GroupOffsets()
        self.epoch = partition.leader_epoch
        self.loaded = False
        self.last_offset = -1
        self.failure: HeadraceError | None = None

    async def load(self) -> None:
        """Replays the log from its start to its end, then waits until that end is committed."""
        partition = self.partition
        self.state = GroupOffsets()
        offset, end = partition.log.start_offset, partition.log.end_offset
        while offset < end:
            offset = await self._replay(offset, end)
        if end > 0:
            await partition.committed(end - 1)
        self.loaded = True

    async def _replay(self, offset: int, end: int) -> int:
        found = await self.partition.log.locate_cold(offset, max_bytes=LOAD_BYTES, end_offset=end)
        if found is None:
            return end
        try:
            data = await found.read()
        finally:
            found.close()
        for position, header in batch.walk(data):
            view = memoryview(data)[position : position + header.length]
            for record in batch.records("", 0, view, header):
                if record.offset >= offset:
                    self.state.apply(record.key, record.value)
        return found.next_offset

    def require_ready(self) -> None:
        """Refuses while loading, after a failed load, and once leadership is gone.

        Raises:
            NotCoordinator, PartitionOffline, CorruptBatch.
        """
        if self.failure is not None:
            raise self.failure
        self.partition.require_usable()
        if not self.loaded or self.epoch != self.partition.leader_epoch:
            raise NotCoordinator("the group's offsets are being loaded", retry_after_ms=100)

    async def write(self, rows: Sequence[tuple[bytes, bytes | None]], *, now_ms: int) -> None:
        """Appends the records, takes them into memory, and waits until they are committed.

        Raises:
            StorageFull, NotEnoughReplicas, NotLeader, PartitionOffline: not (surely) committed.
        """
        self.require_ready()
        for start in range(0, len(rows), RECORDS_PER_APPEND):
            part = rows[start : start + RECORDS_PER_APPEND]
            data = batch.encode_records([(key, value, now_ms, None) for key, value in part])
            appended = self.partition.append_own(memoryview(data), read_header(data), now_ms=now_ms)
            self.last_offset = appended.last_offset
            for key, value in part:
                self.state.apply(key, value)
        await self.settled()

    async def settled(self) -> None:
        """Waits until all that memory holds is committed: nothing is told before (G3)."""
        await self.partition.committed(self.last_offset)


class GroupCoordinator:
    """All groups whose partition of `__offsets` this broker leads."""

    def __init__(
        self,
        clock: Clock,
        *,
        spawn: Callable[[str, Awaitable[None]], object],
        is_dead: Callable[[TopicId], bool],
    ) -> None:
        """`spawn` runs work in the background under a name; `is_dead` says whether a topic id is
        tombstoned."""
        self._clock = clock
        self._spawn = spawn
        self._is_dead = is_dead
        self._parts: dict[int, GroupPartition] = {}
        self._partition_count = 0

    def lead(self, partition: Partition, partition_count: int) -> None:
        """This broker leads the partition now; its groups are loaded in the background."""
        self._partition_count = partition_count
        index = partition.id.partition
        present = self._parts.get(index)
        if present is not None and present.epoch == partition.leader_epoch:
            return
        part = self._parts[index] = GroupPartition(partition)
        self._spawn(f"load-offsets-{index}", self._load(part))

    async def _load(self, part: GroupPartition) -> None:
        """Loads the partition, then forgets what a crash kept `forget_topic` from forgetting."""
        await run_load(part)
        if part.loaded:
            gone = [
                (group, where)
                for group, offsets in part.state.groups.items()
                for where in offsets
                if self._is_dead(where.topic_id)
            ]
            if gone:
                await self._forget(part, gone)

    def resign(self, index: int) -> None:
        """This broker leads the partition no longer: its groups are forgotten here."""
        self._parts.pop(index, None)

    def _part(self, group: str) -> GroupPartition:
        if not self._partition_count:
            raise NotCoordinator("the group's offsets aren't ready yet", retry_after_ms=200)
        part = self._parts.get(partition_for_group(group, self._partition_count))
        if part is None:
            raise NotCoordinator(
                f"this broker doesn't coordinate group {group!r}", retry_after_ms=200
            )
        part.require_ready()
        return part

    async def commit(self, group: str, commits: Sequence[Commit]) -> None:
        """Commits the offsets together; done when they are committed on all in-sync replicas.

        Raises:
            NotCoordinator, and what `GroupPartition.write` raises.
        """
        part = self._part(group)
        now_ms = self._clock.now_ms()
        rows = [
            (
                records.encode_key(group, each.where.topic_id, each.where.partition),
                records.encode_value(
                    each.offset,
                    leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    commit_time_ms=now_ms,
                ),
            )
            for each in commits
        ]
        await part.write(rows, now_ms=now_ms)

    async def offsets(self, group: str) -> dict[TopicIdPartition, OffsetValue]:
        """The group's committed offsets; empty if it has none.

        Raises:
            NotCoordinator.
        """
        part = self._part(group)
        found = dict(part.state.of(group))
        await part.settled()
        return found

    async def delete(self, group: str) -> None:
        """Forgets all of the group's offsets.

        Raises:
            GroupNotFound: it has none.
        """
        part = self._part(group)
        offsets = part.state.of(group)
        if not offsets:
            raise GroupNotFound(f"group {group!r} has no committed offsets")
        await self._forget(part, [(group, where) for where in offsets])

    def groups(self) -> Iterator[tuple[str, set[TopicId]]]:
        """The groups coordinated here, and the topics they have offsets of."""
        for part in self._parts.values():
            if part.loaded:
                for group, offsets in part.state.groups.items():
                    yield group, {where.topic_id for where in offsets}

    async def forget_topic(self, topic_id: TopicId) -> None:
        """Writes tombstones for the offsets of a topic that is deleted for good (G6)."""
        for part in list(self._parts.values()):
            if part.loaded and (gone := list(part.state.of_topic(topic_id))):
                await self._forget(part, gone)

    async def _forget(
        self, part: GroupPartition, gone: Sequence[tuple[str, TopicIdPartition]]
    ) -> None:
        rows = [
            (records.encode_key(group, where.topic_id, where.partition), None)
            for group, where in gone
        ]
        await part.write(rows, now_ms=self._clock.now_ms())


async def run_load(part: GroupPartition) -> None:
    """Loads a partition; a failure is kept, told to whoever asks for its groups, and logged. What
    may pass (too many open files) is tried again while this broker leads the partition."""
    while True:
        try:
            await part.load()
            part.failure = None
            return
        except HeadraceError as error:
            part.failure = error
            log.error("offsets of %s can't be loaded: %s", part.partition.name, error)
        except Exception as error:
            part.failure = InternalError(f"the group's offsets can't be loaded: {error!r}")
            log.exception("offsets of %s can't be loaded", part.partition.name)
        await asyncio.sleep(LOAD_RETRY_S)
        if part.epoch != part.partition.leader_epoch or part.partition.offline is not None:
            return
