"""A store that went back is put right: what is written is newer than all that was seen anywhere."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core.model import (
    ClusterObject,
    Generation,
    Leader,
    Member,
    PartitionRecord,
    TopicObject,
)
from headrace.broker.core.recovery_plan import Copies, RecoveryPlan, plan
from headrace.protocol.ids import TopicId, TopicIdPartition

ID = TopicId(b"t" * 16)
KEY = TopicIdPartition(ID, 0)
TOPIC = TopicObject("orders", ID, 1, 3, version=2)
CLUSTER = ClusterObject("c", store_term=5, version=9)


def record(partition_epoch: int, leader_epoch: int, leader: int = 0) -> PartitionRecord:
    return PartitionRecord(
        topic_id=ID,
        partition=0,
        partition_epoch=partition_epoch,
        leader_epoch=min(leader_epoch, partition_epoch),
        leader=Leader(leader, 1),
        isr=tuple(Member(b, Generation(0, 0)) for b in range(3)),
        elr=(),
        replicas=(0, 1, 2),
        min_isr=2,
    )


records = st.builds(record, st.integers(0, 9), st.integers(0, 5), st.integers(0, 2))


def copies_of(found: PartitionRecord) -> Copies:
    return Copies(CLUSTER, {ID: TOPIC}, {KEY: found})


def after(store: Copies, done: RecoveryPlan) -> Copies:
    return Copies(
        done.cluster or store.cluster,
        {**store.topics, **{t.topic_id: t for t in done.topics}},
        {**store.records, KEY: done.repairs[0].record} if done.repairs else store.records,
    )


@given(st.none() | records, st.lists(records, min_size=1, max_size=3))
def test_what_is_written_is_above_everything_seen_and_doing_it_again_changes_nothing(
    present: PartitionRecord | None, seen: list[PartitionRecord]
) -> None:
    store = Copies(CLUSTER, {ID: TOPIC}, {KEY: present} if present else {})
    copies = {broker: copies_of(each) for broker, each in enumerate(seen)}
    done = plan(store, copies, answered={0, 1, 2})
    everything = [*seen, *([present] if present else [])]
    newest = max(each.partition_epoch for each in everything)
    if not done.repairs:
        assert present is not None
        assert present.partition_epoch == newest
        return
    (repair,) = done.repairs
    assert repair.record.partition_epoch == newest + 1
    assert repair.record.leader_epoch == max(each.leader_epoch for each in everything) + 1
    assert repair.record.leader is None
    assert repair.unheard == ()
    assert not plan(after(store, done), copies, answered={0, 1, 2}).repairs


def test_a_lost_store_is_rebuilt_with_its_topics() -> None:
    done = plan(Copies(), {1: copies_of(record(4, 2))}, answered={1})
    assert [t.name for t in done.topics] == ["orders"]
    assert done.cluster is not None
    assert done.cluster.store_term == 6
    assert done.repairs[0].before is None
    assert done.repairs[0].unheard == (0, 2)
    assert done.unheard == {0, 2}


def test_a_store_that_is_the_newest_is_left_alone() -> None:
    store = copies_of(record(7, 3))
    assert plan(store, {0: copies_of(record(6, 3))}, answered={0}) == RecoveryPlan()


def test_dead_topics_stay_dead_whoever_knows_it() -> None:
    dead = replace(CLUSTER, tombstones={ID: 3})
    assert not plan(Copies(dead), {0: copies_of(record(4, 2))}, answered={0}).repairs
    told = Copies(dead, {}, {})
    done = plan(Copies(CLUSTER), {0: copies_of(record(4, 2)), 1: told}, answered={0, 1})
    assert not done.topics


def test_a_name_that_another_topic_has_by_now_is_not_taken() -> None:
    other = replace(TOPIC, topic_id=TopicId(b"o" * 16))
    store = Copies(CLUSTER, {other.topic_id: other}, {})
    done = plan(store, {0: copies_of(record(4, 2))}, answered={0})
    assert not done.repairs
    assert "another topic has that name" in done.skipped[0]


def test_equal_epochs_with_other_content_are_lifted_above_each_other() -> None:
    mine, theirs = record(5, 2, leader=0), record(5, 2, leader=1)
    done = plan(copies_of(mine), {0: copies_of(theirs)}, answered={0, 1, 2})
    assert done.repairs[0].record.partition_epoch == 6
