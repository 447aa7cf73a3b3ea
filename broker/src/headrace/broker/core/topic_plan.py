"""The next step of a topic's life, from what the store holds now (pure).

A topic is made in two steps (its object, then the shards of partition records) and ends in four
(deleting, tombstone, shards gone, object gone). Whoever finds it in between takes the next step:
the broker that was asked, or the controller after that one died. So nothing here remembers how far
somebody was; each function looks at values and says what to write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from headrace.broker.core import election, topic_config, transitions
from headrace.broker.core.election import Brokers, LogEnd
from headrace.broker.core.model import (
    PARTITIONS_PER_SHARD,
    TOMBSTONES_MAX,
    AnyRecord,
    ClusterObject,
    PartitionRecord,
    Shard,
    TopicObject,
    Unreadable,
    shard_count,
)
from headrace.broker.core.placement import place
from headrace.broker.core.transitions import Refusal
from headrace.protocol.ids import TopicId

LogEnds = Mapping[int, Mapping[int, LogEnd]]
"""Partition -> broker -> log end, as far as known."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a partition that a person should find in the log."""

    partition: int
    text: str
    possible_loss: bool = False
    ask: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Adjusted:
    """What a shard should become (None: it is right as it is), and why. `asks`: by partition, the
    brokers whose log ends would allow a decision (R24)."""

    shard: Shard | None
    notes: tuple[Note, ...] = ()
    asks: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def missing_shards(
    topic: TopicObject,
    shards: Mapping[int, Shard | Unreadable],
    *,
    cluster: ClusterObject,
    brokers: Brokers,
    term: int,
    load: Mapping[int, int] | None = None,
) -> dict[int, Shard]:
    """The shards to create or to lengthen so that every partition has a record. Nothing that is
    there is changed; a shard left over from a tombstoned topic of the same name is replaced.
    Empty also when too few brokers live to place them: later, then."""
    present = {
        index: _records_of(topic, shards.get(index), cluster)
        for index in range(shard_count(topic.partition_count))
    }
    lacking = [
        partition
        for index, records in present.items()
        if records is not None
        for partition in _partitions(topic, index)[len(records) :]
    ]
    made = _make_records(topic, lacking, cluster=cluster, brokers=brokers, load=load)
    return {
        index: Shard(topic.topic_id, index, (*(present[index] or ()), *records), term)
        for index in present
        if (records := [made[p] for p in _partitions(topic, index) if p in made])
    }


def adjust_shard(
    shard: Shard,
    topic: TopicObject,
    *,
    cluster: ClusterObject,
    brokers: Brokers,
    term: int,
    frozen: Collection[int] = (),
    log_ends: LogEnds | None = None,
) -> Adjusted:
    """One step for each record that needs one: a leader where there is none with a valid session,
    dead and leaving followers out of the ISR, the minimum and `unclean` as the settings say.
    Unreadable and `frozen` records stay untouched."""
    setting = topic_config.effective(topic.config, cluster.config, replicas=topic.replicas)
    unclean = bool(setting["unclean.leader.election.enable"].value)
    minima: dict[int, int] = {}
    ends = log_ends or {}
    records: list[AnyRecord] = []
    notes: list[Note] = []
    for record in shard.records:
        following: AnyRecord = record
        if isinstance(record, PartitionRecord) and record.partition not in frozen:
            # Replicas on their way don't count yet: the minimum of a topic that gets more of them
            # would stop its writers until the first copy is there.
            count = len(record.replicas) - len(record.adding)
            if count not in minima:
                minima[count] = topic_config.min_insync_replicas(
                    topic.config, cluster.config, replicas=count
                )
            following, note = _adjust(
                record, brokers, minima[count], unclean, ends.get(record.partition, {})
            )
            notes.extend([note] if note else [])
        records.append(following)
    changed = any(new is not old for new, old in zip(records, shard.records, strict=True))
    asks = {note.partition: note.ask for note in notes if note.ask}
    if not changed:
        return Adjusted(None, tuple(notes), asks)
    following_shard = replace(shard, records=tuple(records), term=max(term, shard.term))
    return Adjusted(following_shard, tuple(notes), asks)


def with_tombstone(cluster: ClusterObject, topic_id: TopicId) -> ClusterObject | None:
    """The cluster object with the topic dead for good; None if it is already."""
    if topic_id in cluster.tombstones:
        return None
    tombstones = dict(cluster.tombstones)
    while len(tombstones) >= TOMBSTONES_MAX:
        del tombstones[min(tombstones, key=lambda known: tombstones[known])]
    tombstones[topic_id] = cluster.store_term
    return replace(cluster, tombstones=tombstones, version=cluster.version + 1)


def is_left_over(
    topic: TopicObject | None, shard: Shard | Unreadable, cluster: ClusterObject
) -> bool:
    """Whether a shard belongs to a topic that is dead, so that it may go. One that can't be read
    goes with the dead topic under whose name it lies."""
    if isinstance(shard, Unreadable):
        return topic is not None and topic.topic_id in cluster.tombstones
    if shard.topic_id not in cluster.tombstones:
        return False
    return topic is None or topic.deleting or topic.topic_id != shard.topic_id


def _partitions(topic: TopicObject, index: int) -> range:
    first = index * PARTITIONS_PER_SHARD
    return range(first, min(first + PARTITIONS_PER_SHARD, topic.partition_count))


def _records_of(
    topic: TopicObject, shard: Shard | Unreadable | None, cluster: ClusterObject
) -> tuple[AnyRecord, ...] | None:
    """The records there are; None where nothing may be written, since what is there can't be read
    or is somebody else's and not dead."""
    if shard is None:
        return ()
    if isinstance(shard, Unreadable):
        return None
    if shard.topic_id == topic.topic_id:
        return shard.records
    return () if shard.topic_id in cluster.tombstones else None


def _make_records(
    topic: TopicObject,
    partitions: list[int],
    *,
    cluster: ClusterObject,
    brokers: Brokers,
    load: Mapping[int, int] | None,
) -> dict[int, PartitionRecord]:
    racks = {
        broker: status.rack
        for broker, status in brokers.items()
        if status.live and status.state == "running" and not status.cordoned
    }
    if not partitions or len(racks) < topic.replicas:
        return {}
    minimum = topic_config.min_insync_replicas(
        topic.config, cluster.config, replicas=topic.replicas
    )
    setting = topic_config.effective(topic.config, cluster.config, replicas=topic.replicas)
    start = int.from_bytes(topic.topic_id[:4]) + partitions[0]
    placed = place(len(partitions), topic.replicas, racks, start=start, load=load)
    steps = {
        partition: transitions.create(
            topic.topic_id,
            partition,
            replicas,
            brokers=brokers,
            min_isr=minimum,
            unclean=bool(setting["unclean.leader.election.enable"].value),
        )
        for partition, replicas in zip(partitions, placed, strict=True)
    }
    return {at: step for at, step in steps.items() if not isinstance(step, Refusal)}


def _adjust(
    record: PartitionRecord,
    brokers: Brokers,
    minimum: int,
    unclean: bool,
    ends: Mapping[int, LogEnd],
) -> tuple[PartitionRecord, Note | None]:
    for step in (
        transitions.set_min(record, minimum),
        transitions.set_unclean(record, unclean),
    ):
        if not isinstance(step, Refusal):
            return step, None
    decision = election.decide(record, brokers, ends)
    if isinstance(decision, election.Elected):
        led = decision.record
        text = f"leader {led.leader and led.leader.broker_id}, epoch {led.leader_epoch}"
        lost = led.recovery != "none"
        return led, Note(record.partition, f"{text}: {decision.reason}", possible_loss=lost)
    if isinstance(decision, election.Offline):
        # The record stays as it is: its ISR and ELR say who may lead once they are back.
        return record, Note(record.partition, decision.reason, ask=decision.ask)
    dead = {e.broker_id for e in record.isr if not _is_live(e.broker_id, brokers)}
    removed = transitions.remove_dead(record, dead | election.leaving(record, brokers))
    return (record if isinstance(removed, Refusal) else removed), None


def _is_live(broker: int, brokers: Brokers) -> bool:
    return broker in brokers and brokers[broker].live
