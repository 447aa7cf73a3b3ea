"""Notices a store that went back in time, and puts it right from the brokers' copies (R27).

`SuspectWatch` looks again at what contradicts this broker's memory, since a watch may merely have
been late; what a fresh read confirms is told loudly and stays frozen. `Recovery` asks every broker
for its copies, lets `core.recovery_plan` decide and writes that, if it is told to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from headrace.broker.controller.copies import STATES, CopyKeeper, decode_states
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.updates import StoreWriter
from headrace.broker.controller.view import ClusterView
from headrace.broker.core import encoding
from headrace.broker.core.model import (
    PARTITIONS_PER_SHARD,
    ClusterObject,
    PartitionRecord,
    Shard,
    TopicObject,
    UnreadableRecord,
    shard_of,
)
from headrace.broker.core.recovery_plan import Copies, RecoveryPlan, Repair, plan
from headrace.broker.peers.base import Peers
from headrace.broker.store import keys
from headrace.broker.store.base import Item
from headrace.protocol.errors import Conflict, HeadraceError, StoreUnavailable
from headrace.protocol.ids import TopicId, TopicIdPartition

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 10.0
"""How often what contradicts this broker's memory is read again."""

ASK_TIMEOUT_S = 30.0
"""For one broker's copies: tens of megabytes with 100,000 partitions."""

READS_MAX = 200
"""Objects read again in one look; a store that went back as a whole shows in a few."""

Writes = dict[str, tuple[str | None, bytes | None]]


class SuspectWatch:
    """What is confirmed to be older than what this broker knows, or gone."""

    def __init__(self, writer: StoreWriter, view: ClusterView, clock: TimeSource) -> None:
        self._writer = writer
        self._view = view
        self._clock = clock
        self.suspects: Mapping[TopicIdPartition, str] = {}
        """Partitions that nobody may decide anything about, and why."""
        self.store_went_back = False
        """Whether the store as a whole is older than what this broker has seen."""

    async def run(self) -> None:
        """For ever; for a task that is started again after it failed. A store that doesn't answer
        changes nothing."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_PERIOD_S)

    async def look(self) -> None:
        """Reads again what is in doubt."""
        doubtful = self._view.suspects()
        for key in sorted({self._key_of(where) for where in doubtful} - {""})[:READS_MAX]:
            await self._writer.read(key)
        await self._look_at_term()
        found = self._view.suspects()
        for where in found.keys() - self.suspects.keys():
            log.error(
                "%s/%d is suspect, nobody is elected for it: %s; see `headrace cluster recover`",
                self._name_of(where), where.partition, found[where],
            )  # fmt: skip
        self.suspects = found

    async def _look_at_term(self) -> None:
        known = self._view.cluster
        if known is None:
            return
        item = await self._writer.read(keys.CLUSTER)
        went_back = item is None or keys.CLUSTER in self._view.faults
        if went_back and not self.store_went_back:
            log.error("the store went back in time or was lost: see `headrace cluster recover`")
        self.store_went_back = went_back

    def _key_of(self, where: TopicIdPartition) -> str:
        topic = self._view.topic_by_id(where.topic_id)
        return "" if topic is None else keys.shard(topic.name, shard_of(where.partition))

    def _name_of(self, where: TopicIdPartition) -> str:
        topic = self._view.topic_by_id(where.topic_id)
        return where.topic_id.hex() if topic is None else topic.name


class Recovery:
    """The command, on whichever broker is asked."""

    def __init__(
        self,
        writer: StoreWriter,
        view: ClusterView,
        keeper: CopyKeeper,
        peers: Peers,
        *,
        own_id: int,
    ) -> None:
        self._writer = writer
        self._view = view
        self._keeper = keeper
        self._peers = peers
        self._own_id = own_id

    async def plan(self) -> RecoveryPlan:
        """What there is to put right, by the copies of all brokers that answer.

        Raises:
            StoreUnavailable: the store doesn't answer.
        """
        store, _ = await self._read_store()
        copies = await self._ask_all()
        return plan(store, copies, answered=copies.keys())

    async def execute(self, *, accept_missing: bool) -> RecoveryPlan:
        """Puts right what `plan` says; what it did.

        Raises:
            Conflict: brokers that may know something newer didn't answer, or the store changed
                meanwhile. StoreUnavailable.
        """
        store, items = await self._read_store()
        copies = await self._ask_all()
        wanted = plan(store, copies, answered=copies.keys())
        if wanted.unheard and not accept_missing:
            ids = ", ".join(map(str, sorted(wanted.unheard)))
            raise Conflict(
                f"broker {ids} didn't answer and may know something newer: start it first, or"
                " accept that what only it knows is lost (--accept-missing)"
            )
        # The topics first: a partition record without its topic is what nobody looks at.
        for writes in (_heads(wanted, items), _shards(wanted.repairs, items)):
            if not await self._writer.update_many(writes):
                raise Conflict("the store was changed meanwhile: run the command again")
        log.warning(
            "the store was put right: %d topics, %d partitions",
            len(wanted.topics), len(wanted.repairs),
        )  # fmt: skip
        return wanted

    async def _ask_all(self) -> dict[int, Copies]:
        """The copies of every registered broker that answers, and of this one."""
        others = [broker for broker in self._view.brokers if broker != self._own_id]
        answers = await asyncio.gather(*(self._ask(broker) for broker in others))
        found = {b: c for b, c in zip(others, answers, strict=True) if c is not None}
        return {**found, self._own_id: self._keeper.copies}

    async def _ask(self, broker_id: int) -> Copies | None:
        try:
            raw = await self._peers.call(broker_id, STATES, b"", timeout_s=ASK_TIMEOUT_S)
            return decode_states(raw)
        except (HeadraceError, msgspec.MsgspecError, ValueError) as error:
            log.warning("broker %d didn't tell its copies: %s", broker_id, error)
            return None

    async def _read_store(self) -> tuple[Copies, dict[str, Item]]:
        """What the store itself holds, whatever the view makes of it."""
        items: dict[str, Item] = {}
        for prefix in (keys.CLUSTER, keys.TOPICS, keys.PARTITIONS):
            items.update({item.key: item for item in await self._writer.store.list(prefix)})
        cluster: ClusterObject | None = None
        topics: dict[TopicId, TopicObject] = {}
        records: dict[TopicIdPartition, PartitionRecord] = {}
        for key, item in items.items():
            if key == keys.CLUSTER:
                found = encoding.decode_cluster(item.value)
                if not isinstance(found, ClusterObject):
                    raise StoreUnavailable(f"the store's cluster object can't be read: {found}")
                cluster = found
            elif key.startswith(keys.TOPICS):
                topic = encoding.decode_topic(item.value)
                if isinstance(topic, TopicObject):
                    topics[topic.topic_id] = topic
            else:
                records.update(_records_in(item))
        return Copies(cluster, topics, records), items


def _records_in(item: Item) -> dict[TopicIdPartition, PartitionRecord]:
    shard = encoding.decode_shard(item.value)
    if not isinstance(shard, Shard):
        return {}
    return {
        TopicIdPartition(shard.topic_id, record.partition): record
        for record in shard.records
        if isinstance(record, PartitionRecord)
    }


def _heads(wanted: RecoveryPlan, items: Mapping[str, Item]) -> Writes:
    """The cluster object and the topics' objects."""
    writes: Writes = {}
    if wanted.cluster is not None:
        writes[keys.CLUSTER] = _write(items, keys.CLUSTER, encoding.encode_cluster(wanted.cluster))
    for topic in wanted.topics:
        key = keys.topic(topic.name)
        writes[key] = _write(items, key, encoding.encode_topic(topic))
    return writes


def _shards(repairs: tuple[Repair, ...], items: Mapping[str, Item]) -> Writes:
    """The shards with the repaired records in them. What a shard holds besides stays as it is; a
    gap that nobody has a copy for is kept open by a record that can't be read: it isn't known, and
    nobody may begin it anew."""
    by_key: dict[str, list[Repair]] = {}
    for repair in repairs:
        key = keys.shard(repair.name, shard_of(repair.record.partition))
        by_key.setdefault(key, []).append(repair)
    return {
        key: _write(items, key, encoding.encode_shard(_repaired(key, group, items)))
        for key, group in by_key.items()
    }


def _repaired(key: str, group: list[Repair], items: Mapping[str, Item]) -> Shard:
    topic_id, index = group[0].record.topic_id, shard_of(group[0].record.partition)
    found = encoding.decode_shard(items[key].value) if key in items else None
    present = found if isinstance(found, Shard) and found.topic_id == topic_id else None
    kept = {record.partition: record for record in present.records} if present else {}
    repaired = {repair.record.partition: repair.record for repair in group}
    merged = {**kept, **repaired}
    first = index * PARTITIONS_PER_SHARD
    records = tuple(
        merged.get(n) or UnreadableRecord(topic_id, n, b'["lost: nobody has a copy"]', "lost")
        for n in range(first, max(merged) + 1)
    )
    return Shard(topic_id, index, records, present.term if present else 0)


def _write(items: Mapping[str, Item], key: str, value: bytes) -> tuple[str | None, bytes | None]:
    return (items[key].revision if key in items else None, value)
