"""What is wrong with a partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord
from headrace.broker.core.partition_health import problems_of
from headrace.protocol.ids import TopicId

MEMBERS = {broker: Member(broker, Generation(1, 0)) for broker in range(3)}


def record(*isr: int, leader: int | None = 0) -> PartitionRecord:
    return PartitionRecord(
        topic_id=TopicId(b"t" * 16),
        partition=0,
        partition_epoch=1,
        leader_epoch=1,
        leader=None if leader is None else Leader(leader, 1),
        isr=tuple(MEMBERS[broker] for broker in isr),
        elr=(),
        replicas=(0, 1, 2),
        min_isr=2,
    )


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        (record(0, 1, 2), ()),
        (record(0, 1), ("under_replicated",)),
        (record(0), ("under_min_isr", "under_replicated")),
        (record(0, 1, leader=None), ("offline", "under_replicated")),
        (record(0, 1, leader=2), ("offline", "under_replicated")),
        (None, ("offline",)),
    ],
)
def test_problems_come_worst_first(
    found: PartitionRecord | None, problems: tuple[str, ...]
) -> None:
    assert problems_of(found, live={0, 1}) == problems


def test_a_replica_that_is_being_added_is_not_missed_yet() -> None:
    moving = replace(record(0, 1), adding=(2,))
    assert problems_of(moving, live={0, 1}) == ()
    assert problems_of(replace(moving, isr=moving.isr[:1]), live={0}) == (
        "under_min_isr",
        "under_replicated",
    )
