"""The cluster as this broker knows it: one watch over the store, turned into values and events.

Everything in the store is level-triggered and may arrive late, merged, or twice. The view takes a
topic, registration or cluster object only with a greater version and a partition record only with
a greater (topic id, partition epoch) than it has (replication.md R8). It never concludes from an
absence that data may go: only a tombstone ends a topic (R25). Own writes are applied at once, so
that a caller sees what it has done. What can't be read or went back in time changes nothing here
and is kept in `faults`, by key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.broker.core import encoding
from headrace.broker.core.model import (
    PARTITIONS_PER_SHARD,
    AnyRecord,
    ClusterObject,
    PartitionRecord,
    Registration,
    Shard,
    TopicObject,
    Unreadable,
    UnreadableRecord,
    shard_of,
)
from headrace.broker.store import keys
from headrace.broker.store.base import Gone, Item, Put, Snapshot, WatchEvent
from headrace.protocol.ids import TopicId, TopicIdPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic is new (`before` None) or was altered; also when it began to be deleted."""

    topic: TopicObject
    before: TopicObject | None


@dataclass(frozen=True, slots=True)
class TopicTombstoned:
    """The topic id is dead for good: its data may be removed. `topic` None: never seen alive."""

    topic_id: TopicId
    topic: TopicObject | None


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A partition's record is new (`before` None) or changed. Always after its `TopicChanged`."""

    topic: TopicObject
    record: AnyRecord
    before: AnyRecord | None


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker registered or changed its registration."""

    registration: Registration
    before: Registration | None


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """The cluster object changed: its defaults of topic settings may have."""

    cluster: ClusterObject
    before: ClusterObject | None


ViewEvent = TopicChanged | TopicTombstoned | RecordChanged | BrokerChanged | ClusterChanged
Listener = Callable[[ViewEvent], None]

_NO_RECORDS: Mapping[int, AnyRecord] = MappingProxyType({})


class ClusterView:
    """What is known of the cluster, and who wants to hear of changes. Loop only."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self._items: dict[str, Item] = {}
        self._shards: dict[str, Shard | Unreadable] = {}
        self._shards_of: dict[str, dict[int, str]] = {}
        self._cluster: ClusterObject | None = None
        self._brokers: dict[int, Registration] = {}
        self._by_name: dict[str, TopicObject] = {}
        self._by_id: dict[TopicId, TopicObject] = {}
        self._records: dict[TopicId, dict[int, AnyRecord]] = {}
        self._dead: dict[str, TopicObject] = {}
        self._late: set[str] = set()
        self._doubts: dict[TopicIdPartition, str] = {}
        self._listeners: list[Listener] = []

    @property
    def cluster(self) -> ClusterObject | None:
        """The cluster object; None until the first was read."""
        return self._cluster

    @property
    def brokers(self) -> Mapping[int, Registration]:
        """All registered brokers, alive or not, by id."""
        return MappingProxyType(self._brokers)

    @property
    def topics(self) -> Mapping[str, TopicObject]:
        """Topics in use by name: not those that are being deleted."""
        return {name: topic for name, topic in self._by_name.items() if not topic.deleting}

    @property
    def all_topics(self) -> Mapping[str, TopicObject]:
        """Topics by name, those that are being deleted among them."""
        return MappingProxyType(self._by_name)

    def topic(self, name: str) -> TopicObject | None:
        """The topic of that name, unless it is being deleted."""
        topic = self._by_name.get(name)
        return None if topic is None or topic.deleting else topic

    def topic_by_id(self, topic_id: TopicId) -> TopicObject | None:
        """The topic of that id, unless it is being deleted or dead."""
        topic = self._by_id.get(topic_id)
        return None if topic is None or topic.deleting else topic

    def record(self, topic_id: TopicId, partition: int) -> AnyRecord | None:
        """The newest record of a partition."""
        return self._records.get(topic_id, _NO_RECORDS).get(partition)

    def records(self, topic_id: TopicId) -> Mapping[int, AnyRecord]:
        """The newest records of a topic by partition."""
        return MappingProxyType(self._records.get(topic_id, {}))

    def is_tombstoned(self, topic_id: TopicId) -> bool:
        """Whether the topic is dead for good."""
        return self._cluster is not None and topic_id in self._cluster.tombstones

    def item(self, key: str) -> Item | None:
        """An object as last read, with the revision to write from."""
        return self._items.get(key)

    def shards(self, name: str) -> dict[int, Shard | Unreadable]:
        """The shards under a topic's name as last read, also of an earlier topic."""
        return {index: self._shards[key] for index, key in self._shards_of.get(name, {}).items()}

    def left_over_names(self) -> set[str]:
        """Names under which objects of dead topics are still in the store."""
        orphans = {name for name in self._shards_of if name not in self._by_name}
        return orphans | self._dead.keys()

    def stale_partitions(self, shard: Shard) -> set[int]:
        """The partitions of a shard as read whose record isn't the newest that is known: nobody
        may decide anything from those (R8, R27)."""
        known = self._records.get(shard.topic_id, _NO_RECORDS)
        return {r.partition for r in shard.records if known.get(r.partition) != r}

    def preload(
        self,
        cluster: ClusterObject | None,
        topics: Iterable[TopicObject],
        records: Iterable[PartitionRecord],
    ) -> None:
        """Before anything was read: what this broker's own disk remembers (R27). What the store
        says counts only if it is newer, so that a store that went back in time shows."""
        self._cluster = cluster
        for topic in topics:
            if not self.is_tombstoned(topic.topic_id):
                self._by_id[topic.topic_id] = self._by_name[topic.name] = topic
        for record in records:
            if record.topic_id in self._by_id:
                self._records.setdefault(record.topic_id, {})[record.partition] = record

    def is_stored(self, name: str) -> bool:
        """Whether the topic's object was in the store when it was last looked at."""
        return keys.topic(name) in self._items

    def suspects(self) -> dict[TopicIdPartition, str]:
        """The partitions whose record in the store contradicts what was read before, or isn't there
        any more, and why (R27). Right after a watch was late this may be wrong: to be asked again
        after a fresh read of `suspect_keys`."""
        found = {k: why for k, why in self._doubts.items() if k.topic_id in self._by_id}
        for name, topic in self._by_name.items():
            if topic.deleting:
                continue
            present = self._shards_of.get(name, {})
            gone = not self.is_stored(name) and keys.topic(name) not in self.faults
            for partition in self._records.get(topic.topic_id, _NO_RECORDS):
                where = TopicIdPartition(topic.topic_id, partition)
                index = shard_of(partition)
                if gone:
                    found.setdefault(where, "its topic is gone from the store")
                elif index not in present and keys.shard(name, index) not in self.faults:
                    found.setdefault(where, "its record is gone from the store")
        return found

    def unreadable(self) -> set[TopicIdPartition]:
        """The partitions whose record in the store can't be read: what was known of them before
        goes on, and nothing about them is changed until somebody puts the record right."""
        found: set[TopicIdPartition] = set()
        for key in self.faults:
            name = keys.topic_of_shard(key) if key.startswith(keys.PARTITIONS) else ""
            topic, shard = self._by_name.get(name), self._shards.get(key)
            if topic is None or shard is None:
                continue
            if isinstance(shard, Unreadable):
                first = int(key.rpartition("/")[2]) * PARTITIONS_PER_SHARD
                numbers = range(first, min(first + PARTITIONS_PER_SHARD, topic.partition_count))
                found.update(TopicIdPartition(topic.topic_id, number) for number in numbers)
            else:
                broken = (r for r in shard.records if isinstance(r, UnreadableRecord))
                found.update(TopicIdPartition(topic.topic_id, r.partition) for r in broken)
        return found

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` (synchronously, on the loop) with every change from now on; first with
        what is known already, as if it were new. Returns what ends it. An exception of a listener
        is logged and doesn't keep the others from hearing."""
        for event in list(self._all_as_events()):
            _call(listener, event)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def apply(self, events: Iterable[WatchEvent]) -> None:
        """Takes in what a watch told or what was written or read by hand."""
        for event in events:
            if isinstance(event, Put):
                self._put(event.item)
            elif isinstance(event, Gone):
                self._gone(event.key)
            else:
                self._relist(event)

    def _relist(self, snapshot: Snapshot) -> None:
        present = {item.key for item in snapshot.items}
        for key in [key for key in self._items if key not in present]:
            self._gone(key)
        for item in sorted(snapshot.items, key=lambda item: _ORDER.get(_kind(item.key), 0)):
            self._put(item)

    def _put(self, item: Item) -> None:
        """Takes one object in. What is older than what is known changes nothing, not even the
        revision to write from: it is a late event, or a store that went back (R27)."""
        known = self._items.get(item.key)
        if known is not None and known.revision == item.revision and item.key not in self._late:
            return
        fault = _TAKERS.get(_kind(item.key), ClusterView._take_other)(self, item)
        if isinstance(fault, _Older):
            self.faults[item.key] = str(fault)
            self._late.add(item.key)
            return
        self._late.discard(item.key)
        self._items[item.key] = item
        if fault is None:
            self.faults.pop(item.key, None)
        elif self.faults.get(item.key) != fault:
            self.faults[item.key] = fault
            log.error("store object %s is ignored: %s", item.key, fault)

    def _gone(self, key: str) -> None:
        """Forgets the object, not what it told: absence proves nothing (R25)."""
        self._items.pop(key, None)
        self.faults.pop(key, None)
        self._late.discard(key)
        if key.startswith(keys.TOPICS):
            self._dead.pop(key.removeprefix(keys.TOPICS), None)
        if self._shards.pop(key, None) is not None:
            name = keys.topic_of_shard(key)
            places = self._shards_of[name]
            self._shards_of[name] = {at: k for at, k in places.items() if k != key}
            if not self._shards_of[name]:
                del self._shards_of[name]

    # --- one kind of object each: what is wrong with it, or None ---

    def _take_cluster(self, item: Item) -> str | None:
        cluster = encoding.decode_cluster(item.value)
        if isinstance(cluster, Unreadable):
            return cluster.reason
        before = self._cluster
        if before is not None and before.cluster_id != cluster.cluster_id:
            return f"it is of another cluster ({cluster.cluster_id})"
        if before is not None and cluster.version <= before.version:
            return _went_back(cluster.version, before.version)
        self._cluster = cluster
        self._tell(ClusterChanged(cluster, before))
        known = before.tombstones if before else {}
        for topic_id in cluster.tombstones.keys() - known.keys():
            self._bury(topic_id)
        return None

    def _take_broker(self, item: Item) -> str | None:
        registration = encoding.decode_registration(item.value)
        if isinstance(registration, Unreadable):
            return registration.reason
        before = self._brokers.get(registration.broker_id)
        if before is not None and registration.version <= before.version:
            return _went_back(registration.version, before.version)
        self._brokers[registration.broker_id] = registration
        self._tell(BrokerChanged(registration, before))
        return None

    def _take_topic(self, item: Item) -> str | None:
        topic = encoding.decode_topic(item.value)
        if isinstance(topic, Unreadable):
            return topic.reason
        if keys.topic(topic.name) != item.key:
            return f"it names the topic {topic.name!r}"
        if self.is_tombstoned(topic.topic_id):
            self._dead[topic.name] = topic
            return None
        before = self._by_id.get(topic.topic_id)
        if before is not None and topic.version <= before.version:
            return _went_back(topic.version, before.version)
        self._by_id[topic.topic_id] = self._by_name[topic.name] = topic
        self._dead.pop(topic.name, None)
        self._tell(TopicChanged(topic, before))
        for shard in self.shards(topic.name).values():
            self._take_records(shard)
        return None

    def _take_shard(self, item: Item) -> str | None:
        index = item.key.rpartition("/")[2]
        if not index.isdecimal():
            return "its key doesn't end in a number"
        shard = encoding.decode_shard(item.value)
        if isinstance(shard, Shard) and shard.index != int(index):
            shard = Unreadable(item.value, f"it has the content of shard {shard.index}")
        fault = self._take_records(shard)
        if not isinstance(fault, _Older):
            self._shards[item.key] = shard
            self._shards_of.setdefault(keys.topic_of_shard(item.key), {})[int(index)] = item.key
        return fault

    def _take_other(self, _item: Item) -> str | None:
        return None

    def _take_records(self, shard: Shard | Unreadable) -> str | None:
        if isinstance(shard, Unreadable):
            return shard.reason
        topic = self._by_id.get(shard.topic_id)
        if topic is None:
            return None  # its topic comes later and takes them, or is dead
        known = self._records.setdefault(shard.topic_id, {})
        fault = None
        for record in shard.records:
            before = known.get(record.partition)
            wrong = _why_not_newer(record, before)
            where = TopicIdPartition(shard.topic_id, record.partition)
            if wrong is None:
                self._doubts.pop(where, None)
            elif not isinstance(record, UnreadableRecord):
                self._doubts[where] = str(wrong)
            if record != before and (wrong is None or before is None):
                known[record.partition] = record
                self._tell(RecordChanged(topic, record, before))
            fault = wrong or fault
        return fault

    def _bury(self, topic_id: TopicId) -> None:
        topic = self._by_id.pop(topic_id, None)
        self._records.pop(topic_id, None)
        for where in [where for where in self._doubts if where.topic_id == topic_id]:
            del self._doubts[where]
        if topic is not None and self._by_name.get(topic.name) == topic:
            del self._by_name[topic.name]
            if keys.topic(topic.name) in self._items:
                self._dead[topic.name] = topic
        self._tell(TopicTombstoned(topic_id, topic))

    def _tell(self, event: ViewEvent) -> None:
        for listener in list(self._listeners):
            _call(listener, event)

    def _all_as_events(self) -> Iterator[ViewEvent]:
        if self._cluster is not None:
            yield ClusterChanged(self._cluster, None)
            for topic_id in self._cluster.tombstones:
                yield TopicTombstoned(topic_id, None)
        for registration in self._brokers.values():
            yield BrokerChanged(registration, None)
        for topic in self._by_id.values():
            yield TopicChanged(topic, None)
            for record in self._records.get(topic.topic_id, {}).values():
                yield RecordChanged(topic, record, None)


class _Older(str):
    """A fault that is none if something newer follows."""


def _why_not_newer(record: AnyRecord, before: AnyRecord | None) -> str | None:
    """What is wrong with a record as read, given the one that is known. An unreadable one is taken
    only where nothing is known: elsewhere those who lead and follow go on with what they have."""
    if isinstance(record, UnreadableRecord):
        return f"partition {record.partition}: {record.reason}"
    if before is None or isinstance(before, UnreadableRecord):
        return None
    if record.partition_epoch < before.partition_epoch:
        return _went_back(record.partition_epoch, before.partition_epoch)
    if record.leader_epoch < before.leader_epoch:
        return f"partition {record.partition}: its leader epoch went back"
    if record.partition_epoch == before.partition_epoch and record != before:
        return f"partition {record.partition}: other content in the same partition epoch"
    return None


def _went_back(now: int, before: int) -> str | None:
    if now == before:
        return None
    return _Older(f"it is older ({now}) than what was read before ({before})")


def _call(listener: Listener, event: ViewEvent) -> None:
    try:
        listener(event)
    except Exception:
        log.exception("a listener failed on %s", type(event).__name__)


def _kind(key: str) -> str:
    return key.partition("/")[0]


_TAKERS: dict[str, Callable[[ClusterView, Item], str | None]] = {
    "cluster": ClusterView._take_cluster,
    "brokers": ClusterView._take_broker,
    "topics": ClusterView._take_topic,
    "partitions": ClusterView._take_shard,
}
_ORDER = {kind: place for place, kind in enumerate(_TAKERS)}
