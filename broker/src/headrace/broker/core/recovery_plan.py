"""How a store that went back in time, or was lost, is put right from the brokers' copies; pure.

Goals: the newest state that anybody has seen counts again, and nothing that was written since can
be mistaken for it (replication.md R27).
Constraints: nothing that the store still has newer is touched; a topic that is dead stays dead.
Algorithm: for each partition the record with the greatest partition epoch, of the store and of all
copies. Where that isn't the store's (or the store has none), it is written with a partition epoch
and a leader epoch above all that were seen anywhere, and without a leader: an election follows.
Topics and the cluster object likewise by version; the store's term rises above all.
Example: copies of brokers 1 and 2 have epoch 7 of a partition, the restored store 4: written is
epoch 8 with the ISR of 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.broker.core.model import ClusterObject, PartitionRecord, TopicObject
from headrace.protocol.ids import TopicId, TopicIdPartition


@dataclass(frozen=True, slots=True)
class Copies:
    """What one broker has on its disk, or what the store holds."""

    cluster: ClusterObject | None = None
    topics: Mapping[TopicId, TopicObject] = field(default_factory=dict)
    records: Mapping[TopicIdPartition, PartitionRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repair:
    """One partition to put right: `record` is to be written; `source` has the copy it is made of
    (None: no broker, only epochs are lifted); `before` is what the store has. `unheard`: replicas
    that may know something newer and didn't answer."""

    name: str
    record: PartitionRecord
    source: int | None
    before: PartitionRecord | None
    unheard: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What to write, and what can't be put right (`skipped`, for a person)."""

    cluster: ClusterObject | None = None
    topics: tuple[TopicObject, ...] = ()
    repairs: tuple[Repair, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def unheard(self) -> set[int]:
        """Brokers that didn't answer and may know something newer."""
        return {broker for repair in self.repairs for broker in repair.unheard}


def plan(store: Copies, copies: Mapping[int, Copies], *, answered: Collection[int]) -> RecoveryPlan:
    """What to write so that the newest that was seen counts again. `copies` by broker; `answered`:
    the brokers whose copies those are."""
    clusters = [c.cluster for c in (store, *copies.values()) if c.cluster is not None]
    dead = {topic_id for cluster in clusters for topic_id in cluster.tombstones}
    topics, skipped = _newest_topics(store, copies.values(), dead)
    repairs = [
        repair
        for key in sorted({k for c in copies.values() for k in c.records})
        if (topic := topics.get(key.topic_id)) is not None and key.partition < topic.partition_count
        if (repair := _repair(topic.name, key, store, copies, answered)) is not None
    ]
    changed = [t for t in topics.values() if store.topics.get(t.topic_id) != t]
    return RecoveryPlan(
        _newest_cluster(store.cluster, clusters),
        tuple(sorted(changed, key=lambda topic: topic.name)),
        tuple(repairs),
        tuple(skipped),
    )


def _newest_topics(
    store: Copies, copies: Iterable[Copies], dead: set[TopicId]
) -> tuple[dict[TopicId, TopicObject], list[str]]:
    """The newest of each topic that isn't dead; one whose name another topic has is skipped."""
    newest = {i: t for i, t in store.topics.items() if i not in dead}
    seen: dict[TopicId, TopicObject] = {}
    for each in copies:
        for topic_id, topic in each.topics.items():
            known = seen.get(topic_id)
            if topic_id not in dead and (known is None or topic.version > known.version):
                seen[topic_id] = topic
    skipped = []
    taken = {topic.name: topic_id for topic_id, topic in newest.items()}
    for topic_id, topic in sorted(seen.items()):
        present = newest.get(topic_id)
        if present is not None and present.version >= topic.version:
            continue
        if taken.setdefault(topic.name, topic_id) != topic_id:
            skipped.append(
                f"topic {topic.name!r} ({topic_id.hex()}): another topic has that name now; its"
                " records stay where they are"
            )
            continue
        newest[topic_id] = replace(topic, version=topic.version + 1)
    return newest, skipped


def _repair(
    name: str,
    key: TopicIdPartition,
    store: Copies,
    copies: Mapping[int, Copies],
    answered: Collection[int],
) -> Repair | None:
    present = store.records.get(key)
    seen = {broker: c.records[key] for broker, c in copies.items() if key in c.records}
    source = max(seen, key=lambda b: (seen[b].partition_epoch, seen[b].leader_epoch, -b))
    best = seen[source]
    if present is not None and _is_as_new(present, seen.values()):
        return None
    if present is not None and present.partition_epoch > best.partition_epoch:
        best, source_or_none = present, None
    else:
        source_or_none = source
    everything = [*seen.values(), *([present] if present else [])]
    record = replace(
        best,
        partition_epoch=max(each.partition_epoch for each in everything) + 1,
        leader_epoch=max(each.leader_epoch for each in everything) + 1,
        leader=None,
    )
    members = {*best.replicas, *(e.broker_id for e in (*best.isr, *best.elr))}
    unheard = tuple(sorted(members - set(answered)))
    return Repair(name, record, source_or_none, present, unheard)


def _is_as_new(present: PartitionRecord, seen: Iterable[PartitionRecord]) -> bool:
    """Whether the store's record is at least as new as every copy, and no copy contradicts it."""
    return all(
        each == present
        or (
            each.partition_epoch < present.partition_epoch
            and each.leader_epoch <= present.leader_epoch
        )
        for each in seen
    )


def _newest_cluster(
    present: ClusterObject | None, seen: list[ClusterObject]
) -> ClusterObject | None:
    """The cluster object to write, or None if the store's is the newest."""
    if not seen:
        return None
    newest = max(seen, key=lambda each: (each.version, each.store_term))
    if present is not None and (present.version, present.store_term) >= (
        newest.version,
        max(each.store_term for each in seen),
    ):
        return None
    tombstones = {i: term for each in seen for i, term in each.tombstones.items()}
    return replace(
        newest,
        version=newest.version + 1,
        store_term=max(each.store_term for each in seen) + 1,
        tombstones=tombstones,
    )
