"""R23: a broken log leaves the ISR, and is replaced only where somebody else has the records."""

from __future__ import annotations

from dataclasses import replace

from headrace.broker.core.broken_replica import Mending, next_step
from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord
from headrace.protocol.ids import TopicId

GEN = Generation(0, 0)
RECORD = PartitionRecord(
    topic_id=TopicId(b"t" * 16), partition=0, partition_epoch=0, leader_epoch=0,
    leader=Leader(0, 1), isr=(Member(0, GEN), Member(1, GEN)), elr=(), replicas=(0, 1, 2),
)  # fmt: skip


def test_a_member_leaves_first() -> None:
    for broker_id in (0, 1):
        assert next_step(RECORD, broker_id, has_left=False) is Mending.LEAVE
        assert next_step(RECORD, broker_id, has_left=True) is Mending.LEAVE


def test_whoever_counts_no_more_copies_the_leader() -> None:
    assert next_step(RECORD, 2, has_left=True) is Mending.REPLACE


def test_who_may_be_taken_in_at_this_moment_leaves_as_well() -> None:
    assert next_step(RECORD, 2, has_left=False) is Mending.LEAVE


def test_the_last_member_keeps_its_files() -> None:
    alone = replace(RECORD, isr=(Member(1, GEN),), leader=None)
    assert next_step(alone, 1, has_left=False) is Mending.WAIT


def test_the_last_member_gives_way_where_losing_records_is_better_than_waiting() -> None:
    alone = replace(RECORD, isr=(Member(1, GEN),), unclean=True)
    assert next_step(alone, 1, has_left=False) is Mending.LEAVE
    assert next_step(replace(alone, replicas=(1,)), 1, has_left=False) is Mending.WAIT


def test_without_another_leader_the_files_stay() -> None:
    assert next_step(replace(RECORD, leader=None), 2, has_left=True) is Mending.WAIT
