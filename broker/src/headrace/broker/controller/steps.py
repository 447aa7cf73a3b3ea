"""Carries out the steps that `core.topic_plan` says: the one place that writes partition records
and removes topics.

Used by the broker that was asked to create, alter or delete, and by the controller for what others
left half done. Each step may be taken by both at once: the compare-and-swap decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.updates import StoreWriter, Write
from headrace.broker.controller.view import ClusterView
from headrace.broker.core import election, encoding, topic_plan, transitions
from headrace.broker.core.election import Brokers
from headrace.broker.core.model import (
    AnyRecord,
    ClusterObject,
    ConfigValue,
    PartitionRecord,
    Shard,
    TopicObject,
    Unreadable,
    shard_of,
)
from headrace.broker.store import keys
from headrace.broker.store.base import Item
from headrace.protocol.errors import Conflict, StoreUnavailable
from headrace.protocol.ids import TopicId

log = logging.getLogger(__name__)

TOPICS_PER_TURN = 100
"""Topics looked at before the loop gets its turn."""

WRITES_AT_ONCE = 400
"""Objects gathered for one call of the store, so that a thousand elections are few of them."""

PASSES_MAX = 10
"""Rounds over a topic until nothing is left to do; each record takes one step in a round."""


SAID_MAX = 20
"""Partitions named in the log for one turn's elections."""

LogEndsByTopic = Mapping[str, topic_plan.LogEnds]
"""Topic -> partition -> broker -> log end, as far as known."""

BEHIND_READS_MAX = 3
"""Reads of the cluster object that must all be behind what is known: one may have been overtaken by
a watch."""


class _BehindError(Exception):
    """What was read is older than what is known."""


_ComputeCluster = Callable[[ClusterObject], ClusterObject | None]


class Load:
    """Replicas each broker has of all topics: counted at the first need and kept up to date with
    what is placed, so that many topics in a row are spread evenly and counted once."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._counted: Counter[int] | None = None

    def of(self, topic: TopicObject) -> Mapping[int, int]:
        """The load to place the topic's partitions by; empty where there is no choice or nothing to
        place."""
        if len(self._view.brokers) < 2 or len(self._view.records(topic.topic_id)) > 0:
            return {}
        if self._counted is None:
            self._counted = Counter()
            for other in self._view.all_topics.values():
                self._count(self._counted, self._view.records(other.topic_id).values())
        return self._counted

    def add(self, topic: TopicObject, made: Iterable[Shard]) -> None:
        """Notes what was placed of a topic that had nothing before."""
        if self._counted is not None and not self._view.records(topic.topic_id):
            for shard in made:
                self._count(self._counted, shard.records)

    @staticmethod
    def _count(load: Counter[int], records: Iterable[AnyRecord]) -> None:
        for record in records:
            if isinstance(record, PartitionRecord):
                load.update(record.replicas)


class TopicSteps:
    """Steps of topics. `term`: the controller's, 0 while this broker isn't the controller."""

    def __init__(self, writer: StoreWriter, view: ClusterView, statuses: BrokerStatuses) -> None:
        self._writer = writer
        self._view = view
        self._statuses = statuses
        self._cluster_lock = asyncio.Lock()
        self._said: dict[tuple[TopicId, int], str] = {}
        self._asks: dict[str, dict[int, tuple[int, ...]]] = {}
        self.term = 0
        self.highest_term_seen = 0

    async def settle(self, names: Iterable[str], log_ends: LogEndsByTopic | None = None) -> None:
        """Takes steps until the topics are as they should be, or can't be yet. `log_ends`: what
        replicas said for the last resorts (R24)."""
        wanted = list(names)
        for _ in range(PASSES_MAX):
            if not await self.advance(wanted, elect=True, log_ends=log_ends):
                return

    def take_asks(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """By topic and partition the brokers whose log ends would have allowed an election since
        this was last called."""
        asks, self._asks = self._asks, {}
        return asks

    async def advance(
        self, names: Iterable[str], *, elect: bool, log_ends: LogEndsByTopic | None = None
    ) -> bool:
        """One step for each of the topics' records that needs one; whether there was any. Without
        `elect` only what is missing is made (that needs no judgement on who is alive)."""
        wanted, changed, load = list(names), False, Load(self._view)
        writes: dict[str, tuple[str | None, bytes | None]] = {}
        writing: asyncio.Future[bool] | None = None
        try:
            for first in range(0, len(wanted), TOPICS_PER_TURN):
                turn = wanted[first : first + TOPICS_PER_TURN]
                writes |= self._writes_of(turn, load, elect=elect, log_ends=log_ends or {})
                is_last = first + TOPICS_PER_TURN >= len(wanted)
                if writes and (is_last or len(writes) >= WRITES_AT_ONCE):
                    changed = True
                    if writing is not None:
                        await writing
                    # Other topics follow while the store writes these.
                    writing = asyncio.ensure_future(self._writer.update_many(writes))
                    writes = {}
                await asyncio.sleep(0)
        except BaseException:
            # What the write says must not take the place of a cancellation: the loop that asked
            # would go on for ever.
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            raise
        if writing is not None:
            await writing
        return changed

    def _writes_of(
        self, names: Iterable[str], load: Load, *, elect: bool, log_ends: LogEndsByTopic
    ) -> dict[str, tuple[str | None, bytes | None]]:
        brokers = self._statuses.current()
        writes: dict[str, tuple[str | None, bytes | None]] = {}
        notes: list[tuple[TopicObject, topic_plan.Note]] = []
        for name in names:
            ends = log_ends.get(name)
            writes.update(
                self._writes_for(name, brokers, load, elect=elect, log_ends=ends, notes=notes)
            )
        self._say(notes)
        return writes

    async def finish_deletion(self, name: str) -> None:
        """The rest of a deletion, from wherever it stands: tombstone, shards, the object. A crash
        after each of them leaves what the next call goes on from; the object goes last, so that
        the name isn't free while anything of it is left."""
        topic = _topic(await self._writer.read(keys.topic(name)))
        if topic is not None and topic.deleting:
            await self._bury(topic.topic_id)
        cluster = await self._read_cluster()
        await self._remove_shards(name, topic, cluster)
        if topic is not None and topic.topic_id in cluster.tombstones:
            await self._writer.update(
                keys.topic(name),
                lambda item: Write(None) if _is(item, topic.topic_id) else None,
            )

    async def remove_broken(self, name: str, topic_id: TopicId, partition: int, me: int) -> None:
        """Takes a broker's own broken replica out of ISR and ELR (R23)."""

        def compute(item: Item | None) -> Write | None:
            shard = encoding.decode_shard(item.value) if item else None
            if not isinstance(shard, Shard) or shard.topic_id != topic_id:
                return None
            self._require_not_suspect(shard, name, partition)
            changed = _with_step(shard, partition, me)
            return Write(encoding.encode_shard(changed)) if changed else None

        await self._writer.update(keys.shard(name, shard_of(partition)), compute)

    async def elect_by_command(
        self, name: str, topic_id: TopicId, partition: int, broker_id: int
    ) -> PartitionRecord:
        """Makes a replica lead with what it has.

        Raises:
            Conflict: somebody leads or could; the broker can't. StoreUnavailable.
        """

        def compute(item: Item | None) -> Write | None:
            shard = encoding.decode_shard(item.value) if item else None
            record = _record_of(shard, topic_id, partition)
            if record is None or not isinstance(shard, Shard):
                raise StoreUnavailable(f"the record of {name}/{partition} can't be read: repair it")
            self._require_not_suspect(shard, name, partition)
            decided = election.by_command(record, self._statuses.current(), broker_id)
            if isinstance(decided, election.Offline):
                raise Conflict(f"{name}/{partition}: {decided.reason}")
            return Write(encoding.encode_shard(_replaced(shard, decided.record)))

        item = await self._writer.update(keys.shard(name, shard_of(partition)), compute)
        record = _record_of(
            encoding.decode_shard(item.value) if item else None, topic_id, partition
        )
        assert record is not None
        log.warning(
            "%s-%d: broker %d leads by command, records are lost", name, partition, broker_id
        )
        return record

    def _require_not_suspect(self, shard: Shard, name: str, partition: int) -> None:
        """Nobody changes what contradicts what is known: it would be taken for newer then (R27)."""
        if partition in self._view.stale_partitions(shard):
            raise StoreUnavailable(
                f"the record of {name}/{partition} in the store is in doubt, it isn't the newest"
                " known: see `headrace cluster recover`"
            )

    async def change_config(
        self, compute: Callable[[Mapping[str, ConfigValue]], Mapping[str, ConfigValue]]
    ) -> ClusterObject:
        """Changes the cluster-wide configuration; `compute` may raise to refuse."""

        def write(cluster: ClusterObject) -> ClusterObject | None:
            config = compute(cluster.config)
            if config == cluster.config:
                return None
            return replace(cluster, config=config, version=cluster.version + 1)

        return await self.change_cluster(write)

    async def raise_store_term(self) -> int:
        """The store's next term, so that a store that goes back in time shows."""

        def compute(cluster: ClusterObject) -> ClusterObject:
            return replace(cluster, store_term=cluster.store_term + 1, version=cluster.version + 1)

        return (await self.change_cluster(compute)).store_term

    def _writes_for(
        self,
        name: str,
        brokers: Brokers,
        load: Load,
        *,
        elect: bool,
        log_ends: topic_plan.LogEnds | None,
        notes: list[tuple[TopicObject, topic_plan.Note]],
    ) -> dict[str, tuple[str | None, bytes | None]]:
        topic, cluster = self._view.all_topics.get(name), self._view.cluster
        if topic is None or topic.deleting or cluster is None or not self._view.is_stored(name):
            return {}
        shards = self._view.shards(name)
        wanted = topic_plan.missing_shards(
            topic, shards, cluster=cluster, brokers=brokers, term=self.term, load=load.of(topic)
        )
        wanted = {
            i: shard for i, shard in wanted.items() if not self._is_lost(shard, shards.get(i))
        }
        load.add(topic, wanted.values())
        for index, shard in shards.items() if elect else ():
            if isinstance(shard, Shard) and shard.topic_id == topic.topic_id:
                self.highest_term_seen = max(self.highest_term_seen, shard.term)
                adjusted = topic_plan.adjust_shard(
                    shard,
                    topic,
                    cluster=cluster,
                    brokers=brokers,
                    term=self.term,
                    frozen=self._view.stale_partitions(shard),
                    log_ends=log_ends,
                )
                notes.extend((topic, note) for note in adjusted.notes)
                if adjusted.asks:
                    self._asks.setdefault(name, {}).update(adjusted.asks)
                if adjusted.shard is not None and index not in wanted:
                    wanted[index] = adjusted.shard
        return {
            (key := keys.shard(name, index)): (self._revision(key), encoding.encode_shard(shard))
            for index, shard in wanted.items()
        }

    def _is_lost(self, wanted: Shard, present: Shard | Unreadable | None) -> bool:
        """Whether a record that seems to be missing has been there: the store lost it, and to begin
        anew with its first epoch would make two histories of one partition (R27)."""
        is_same = isinstance(present, Shard) and present.topic_id == wanted.topic_id
        count = len(present.records) if is_same and isinstance(present, Shard) else 0
        known = self._view.records(wanted.topic_id)
        return any(record.partition in known for record in wanted.records[count:])

    def _revision(self, key: str) -> str | None:
        item = self._view.item(key)
        return item.revision if item else None

    def _say(self, notes: Iterable[tuple[TopicObject, topic_plan.Note]]) -> None:
        """Logs each note once, until it changes; of many good ones at once only how many."""
        news: list[str] = []
        for topic, note in notes:
            key, where = (topic.topic_id, note.partition), f"{topic.name}-{note.partition}"
            if self._said.get(key) == note.text:
                continue
            self._said[key] = note.text
            if note.possible_loss:
                log.warning("%s: %s", where, note.text)
            else:
                news.append(f"{where}: {note.text}")
        for text in news[:SAID_MAX]:
            log.info("%s", text)
        if len(news) > SAID_MAX:
            log.info("and the same kind of news of %d more partitions", len(news) - SAID_MAX)

    async def _bury(self, topic_id: TopicId) -> None:
        await self.change_cluster(lambda cluster: topic_plan.with_tombstone(cluster, topic_id))
        self._said = {key: text for key, text in self._said.items() if key[0] != topic_id}

    async def change_cluster(self, compute: _ComputeCluster) -> ClusterObject:
        """Changes the cluster object; `compute` gives None where it is right as it is.

        Raises:
            StoreUnavailable: it can't be read, or is older than what was read before: to write on
                from there would hide that the store went back in time (R27).
        """

        def write(item: Item | None) -> Write | None:
            present, known = _cluster(item), self._view.cluster
            if known is not None and present.version < known.version:
                raise _BehindError
            changed = compute(present)
            return Write(encoding.encode_cluster(changed)) if changed else None

        async with self._cluster_lock:
            for _ in range(BEHIND_READS_MAX):
                with suppress(_BehindError):
                    return _cluster(await self._writer.update(keys.CLUSTER, write))
        raise StoreUnavailable(
            "the store went back in time (was it restored from a backup?): see what `headrace"
            " cluster recover --from-disks` would put right, then run it with --execute"
        )

    async def _read_cluster(self) -> ClusterObject:
        return _cluster(await self._writer.read(keys.CLUSTER))

    async def _remove_shards(
        self, name: str, topic: TopicObject | None, cluster: ClusterObject
    ) -> None:
        for _ in range(PASSES_MAX):
            items = await self._writer.store.list(keys.shards(name))
            gone = [
                item
                for item in items
                if topic_plan.is_left_over(topic, encoding.decode_shard(item.value), cluster)
            ]
            if not gone:
                return
            await self._writer.update_many({item.key: (item.revision, None) for item in gone})
        raise StoreUnavailable(f"the partition records of {name} couldn't be removed: try again")


def _with_step(shard: Shard, partition: int, me: int) -> Shard | None:
    """The shard with the broker's replica of one partition taken out; None if it is already."""
    records = list(shard.records)
    for place, record in enumerate(records):
        if record.partition == partition and isinstance(record, PartitionRecord):
            step = transitions.remove_broken(record, me)
            if isinstance(step, PartitionRecord):
                records[place] = step
                return Shard(shard.topic_id, shard.index, tuple(records), shard.term)
    return None


def _record_of(
    shard: Shard | Unreadable | None, topic_id: TopicId, partition: int
) -> PartitionRecord | None:
    if not isinstance(shard, Shard) or shard.topic_id != topic_id:
        return None
    found = (r for r in shard.records if r.partition == partition)
    record = next(found, None)
    return record if isinstance(record, PartitionRecord) else None


def _replaced(shard: Shard, record: PartitionRecord) -> Shard:
    records = tuple(record if r.partition == record.partition else r for r in shard.records)
    return replace(shard, records=records)


def _topic(item: Item | None) -> TopicObject | None:
    topic = encoding.decode_topic(item.value) if item else None
    return topic if isinstance(topic, TopicObject) else None


def _is(item: Item | None, topic_id: TopicId) -> bool:
    topic = _topic(item)
    return topic is not None and topic.topic_id == topic_id


def _cluster(item: Item | None) -> ClusterObject:
    """The cluster object; without a readable one nothing may be changed."""
    cluster = encoding.decode_cluster(item.value) if item else Unreadable(b"", "it is missing")
    if isinstance(cluster, Unreadable):
        raise StoreUnavailable(
            f"the store's cluster object can't be read ({cluster.reason}): restore the store"
        )
    return cluster
