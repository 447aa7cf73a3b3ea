"""A coordinator answers only while it surely leads (G4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord
from headrace.broker.core.replica_set import ReplicaSet
from headrace.broker.groups.leadership import Leadership
from headrace.protocol.errors import NotCoordinator, StoreUnavailable
from headrace.protocol.ids import TopicId, TopicIdPartition

ID = TopicIdPartition(TopicId(b"o" * 16), 3)
GENERATION = Generation(0, 0)


@dataclass
class Time:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return round(self.now * 1000)


@dataclass
class Led:
    """What a leadership is judged by."""

    replicas: ReplicaSet
    leader_epoch: int = 7
    id: TopicIdPartition = ID


def record(*isr: int, epoch: int = 7) -> PartitionRecord:
    members = tuple(Member(each, GENERATION) for each in isr)
    return PartitionRecord(ID.topic_id, 3, 1, epoch, Leader(0, 1), members, (), (0, 1, 2))


def led(*isr: int) -> Led:
    return Led(ReplicaSet(record(*isr), me=Leader(0, 1), epoch_start=0, now_s=90.0))


def fetch(partition: Led, broker: int, now: float, *, answered: float | None = None) -> None:
    partition.replicas.fetched(
        broker, generation=GENERATION, session=1, offset=0, end_offset=0, now_s=now,
        confirmed_s=now if answered is None else answered,
    )  # fmt: skip


class Reads:
    """The store: a record, or no answer."""

    def __init__(self, answer: PartitionRecord | None) -> None:
        self.answer = answer
        self.count = 0

    async def __call__(self, index: int) -> PartitionRecord | None:
        self.count += 1
        if self.answer is None:
            raise StoreUnavailable("away")
        return self.answer


async def test_all_other_members_have_fetched_lately() -> None:
    clock, reads, partition = Time(), Reads(None), led(0, 1, 2)
    leadership = Leadership(reads, clock)
    for broker in (1, 2):
        fetch(partition, broker, 98.0)
    await leadership.confirm(cast(Any, partition), 5.0)
    assert reads.count == 0
    clock.now = 104.0
    fetch(partition, 1, 104.0)
    with pytest.raises(NotCoordinator):
        await leadership.confirm(cast(Any, partition), 5.0)


async def test_a_fetch_that_lay_unread_tells_only_of_the_time_before_it_was_sent() -> None:
    clock, partition = Time(), led(0, 1, 2)
    leadership = Leadership(Reads(None), clock)
    for broker in (1, 2):
        fetch(partition, broker, 100.0, answered=94.0)
    with pytest.raises(NotCoordinator):
        await leadership.confirm(cast(Any, partition), 5.0)
    for broker in (1, 2):
        partition.replicas.still_there(broker, seen_s=100.0, end_offset=0, confirmed_s=99.0)
    await leadership.confirm(cast(Any, partition), 5.0)


async def test_the_store_confirms_where_followers_are_silent() -> None:
    clock, reads, partition = Time(), Reads(record(0, 1)), led(0, 1)
    leadership = Leadership(reads, clock)
    await leadership.confirm(cast(Any, partition), 5.0)
    await leadership.confirm(cast(Any, partition), 5.0)
    assert reads.count == 1
    clock.now = 110.0
    reads.answer = record(1, epoch=8)
    with pytest.raises(NotCoordinator):
        await leadership.confirm(cast(Any, partition), 5.0)


async def test_who_is_alone_needs_nobody() -> None:
    await Leadership(Reads(None), Time()).confirm(cast(Any, led(0)), 5.0)
