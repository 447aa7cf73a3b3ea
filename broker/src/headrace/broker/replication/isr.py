"""The leader's changes of its ISRs: batched compare-and-swaps with three outcomes (R4, R7).

Whoever sees that a partition's ISR may have to change says so (`consider`); one worker then asks
each partition's ReplicaSet what the record should be, and writes it, all partitions of one store
object together and many objects in one call. Of each object at most one change is under way; while
its outcome isn't known, its partitions' high watermarks wait for both ISRs, and the worker tries
the same change from the same revision until the store says what became of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.broker.clock import Clock
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ClusterView
from headrace.broker.core import encoding
from headrace.broker.core.model import (
    AnyRecord,
    BrokerStatus,
    PartitionRecord,
    Shard,
    shard_of,
)
from headrace.broker.core.replica_set import LeaderLog, ReplicaSet
from headrace.broker.partition.partition import Partition
from headrace.broker.replication.stats import ReplicationStats
from headrace.broker.store import keys
from headrace.broker.store.base import Applied, Change, Item, Outcome, Put, Store, Unknown
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicIdPartition

log = logging.getLogger(__name__)

GATHER_S = 0.02
"""How long changes are gathered before they are written, so that one write takes many along."""

OBJECTS_MAX = 200
"""Objects changed in one call of the store."""

RETRY_S = 0.25
"""Pause before a change of unknown outcome is tried again; doubled up to `RETRY_MAX_S`."""

RETRY_MAX_S = 5.0


class _News(NamedTuple):
    """A line of the log, for all partitions of an object that it is true of."""

    level: int
    topic: str
    isr: str


@dataclass(slots=True)
class _Pending:
    """A change that was sent: the object as it should become, and whose ISRs it has."""

    change: Change
    sets: dict[int, ReplicaSet]


class IsrChanges:
    """Brings the ISRs of the partitions led here up to date, as far as the store answers."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        *,
        clock: Clock,
        time: TimeSource,
        lag_s: Callable[[], float],
        brokers: Callable[[], Mapping[int, BrokerStatus]],
        find: Callable[[TopicIdPartition], Partition | None],
        stats: ReplicationStats,
    ) -> None:
        self._store = store
        self._view = view
        self._clock = clock
        self._time = time
        self._lag_s = lag_s
        self._brokers = brokers
        self._find = find
        self._stats = stats
        self._due: dict[TopicIdPartition, None] = {}
        self._pending: dict[str, _Pending] = {}
        self._retry_s = RETRY_S
        self._work = asyncio.Event()

    @property
    def unsettled(self) -> int:
        """Objects with a change whose outcome isn't known."""
        return len(self._pending)

    def consider(self, partition: Partition) -> None:
        """The partition's ISR may have to change."""
        self._due[partition.id] = None
        self._work.set()

    async def run(self) -> None:
        """The worker; runs until cancelled. May be started again after it failed."""
        if self._due or self._pending:
            self._work.set()
        while True:
            await self._work.wait()
            await self._time.sleep(GATHER_S)
            self._work.clear()
            try:
                await self.round()
                self._retry_s = RETRY_S
            except HeadraceError as error:
                log.warning("changes of in-sync replicas wait for the store: %s", error)
            if self._pending:
                self._work.set()
                await self._time.sleep(self._retry_s)
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    async def round(self) -> None:
        """Writes what is due, and again what is unsettled.

        Raises:
            StoreUnavailable: what was sent stays pending.
        """
        self._prepare()
        sent = list(self._pending.values())[:OBJECTS_MAX]
        if not sent:
            return
        try:
            outcomes: list[Outcome] = await self._store.cas_many([each.change for each in sent])
        except BaseException:
            self._stats.unknown_outcomes += len(sent)
            raise
        for each, outcome in zip(sent, outcomes, strict=True):
            try:
                await self._settle(each, outcome)
            except HeadraceError as error:
                log.info("%s stays unsettled: %s", each.change.key, error)
        if self._due:
            self._work.set()

    def _prepare(self) -> None:
        """Makes changes of what is due, but of objects that have one under way."""
        if not self._due:
            return
        by_object: dict[str, list[Partition]] = {}
        for where in list(self._due):
            partition = self._find(where)
            if partition is None or not partition.leading:
                del self._due[where]
                continue
            key = keys.shard(partition.topic, shard_of(where.partition))
            if key in self._pending or len(self._pending) + len(by_object) >= OBJECTS_MAX:
                continue
            del self._due[where]
            by_object.setdefault(key, []).append(partition)
        brokers = self._brokers()
        for key, partitions in by_object.items():
            try:
                self._prepare_object(key, partitions, brokers)
            except Exception:
                # One record that nothing legal follows must not hold up all the others.
                log.exception("%s: its in-sync replicas can't be changed", key)
                self._stats.isr_failures += 1

    def _prepare_object(
        self, key: str, partitions: list[Partition], brokers: Mapping[int, BrokerStatus]
    ) -> None:
        item = self._view.item(key)
        shard = encoding.decode_shard(item.value) if item is not None else None
        if item is None or not isinstance(shard, Shard):
            return
        records: list[AnyRecord] = list(shard.records)
        proposals: list[tuple[ReplicaSet, PartitionRecord]] = []
        for place, record in enumerate(records):
            for partition in partitions:
                wanted = self._wanted(partition, record, brokers)
                if wanted is not None and partition.replicas is not None:
                    records[place] = wanted
                    proposals.append((partition.replicas, wanted))
        if not proposals:
            return
        changed = encoding.encode_shard(replace(shard, records=tuple(records)))
        pending = _Pending(Change(key, changed, item.revision), {})
        for replicas, wanted in proposals:
            replicas.propose(wanted)
            pending.sets[wanted.partition] = replicas
        for partition in partitions:
            partition.replicas_changed()
        self._pending[key] = pending

    def _wanted(
        self, partition: Partition, record: AnyRecord, brokers: Mapping[int, BrokerStatus]
    ) -> PartitionRecord | None:
        """The partition's next record, if the one in the store is the one that it goes by."""
        replicas = partition.replicas
        if replicas is None or replicas.record != record:
            return None
        if partition.log.failure is not None:
            return None  # It answers nobody: that its followers seem to lag is its own fault (R23).
        return replicas.next_record(
            brokers,
            log=LeaderLog(
                high_watermark=partition.high_watermark, end_offset=partition.log.end_offset
            ),
            now_s=self._clock.monotonic(),
            lag_s=self._lag_s(),
        )

    async def _settle(self, pending: _Pending, outcome: Outcome) -> None:
        """Takes in what the store said. Refused or unknown, only a read that shows another revision
        says what is (R7b): until then both ISRs count."""
        change = pending.change
        if isinstance(outcome, Applied):
            assert change.value is not None
            self._take(pending, Item(change.key, change.value, outcome.revision))
            return
        if isinstance(outcome, Unknown):
            self._stats.unknown_outcomes += 1
            log.info("%s: the store didn't say whether it was changed: %s", change.key, outcome)
        item = await self._store.get(change.key)
        if item is not None and item.revision != change.expected:
            self._take(pending, item)
        elif item is None:
            # Removed: the topic is being deleted. A change from the old revision can't apply.
            self._pending.pop(change.key, None)

    def _take(self, pending: _Pending, item: Item) -> None:
        """The object is known to be `item`: the truth for all that was proposed."""
        key = pending.change.key
        self._pending.pop(key, None)
        shard = encoding.decode_shard(item.value)
        records = shard.records if isinstance(shard, Shard) else ()
        news: dict[_News, list[int]] = {}
        for record in records:
            replicas = pending.sets.get(record.partition)
            if replicas is not None and isinstance(record, PartitionRecord):
                told = self._take_record(replicas, record)
                if told is not None:
                    news.setdefault(told, []).append(record.partition)
        for each, partitions in news.items():
            listed = ",".join(map(str, partitions))
            log.log(each.level, "%s/%s: in-sync replicas %s", each.topic, listed, each.isr)
        self._view.apply([Put(item)])

    def _take_record(self, replicas: ReplicaSet, record: PartitionRecord) -> _News | None:
        where = TopicIdPartition(record.topic_id, record.partition)
        partition = self._find(where)
        if partition is None or partition.replicas is not replicas:
            return None
        before = replicas.record
        if record == before:
            replicas.withdraw()
            partition.replicas_changed()
            self._due[where] = None  # it was refused: what is wanted now?
        elif record.leader == before.leader and record.leader_epoch == before.leader_epoch:
            partition.become_leader(record)
            return self._count(partition.topic, before, record)
        return None

    def _count(self, topic: str, before: PartitionRecord, record: PartitionRecord) -> _News | None:
        gone = {m.broker_id for m in before.isr} - {m.broker_id for m in record.isr}
        come = {m.broker_id for m in record.isr} - {m.broker_id for m in before.isr}
        self._stats.isr_shrinks += bool(gone)
        self._stats.isr_expands += bool(come)
        if not gone and not come:
            return None
        isr = ", ".join(str(member.broker_id) for member in record.isr)
        return _News(logging.WARNING if gone else logging.INFO, topic, isr)
