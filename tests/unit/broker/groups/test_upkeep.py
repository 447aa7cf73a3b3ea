"""What happens to groups by time: offsets that nobody came back for, sessions that are over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.broker.core.groups.assignors import TopicShape
from headrace.broker.core.groups.model import Subscription
from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord
from headrace.broker.core.quota import Rates
from headrace.broker.core.topic_config import resolve
from headrace.broker.groups.coordinator import Beat, Commit, GroupCoordinator
from headrace.broker.groups.group_partition import GroupPartition
from headrace.broker.groups.upkeep import RETENTION_INTERVAL_S, GroupUpkeep
from headrace.broker.log.config import LogConfig
from headrace.broker.log.flusher import Flusher
from headrace.broker.partition.partition import Partition
from headrace.protocol.errors import UnknownMember
from headrace.protocol.ids import TopicIdPartition
from testkit.logs import PARTITION, Bench, InlineWorkers

WEEK_MS = 7 * 86_400_000
WHERE = TopicIdPartition(PARTITION.topic_id, 0)
SUBSCRIPTION = Subscription(topics=("t",), session_timeout_ms=10_000, rebalance_timeout_ms=30_000)


class HandClock:
    """Stands still but for `pass_s`."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def pass_s(self, seconds: float) -> None:
        self.seconds += seconds


class Groups:
    """A coordinator over a real log, and its upkeep."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock()
        bench = Bench(str(folder), LogConfig(), workers=InlineWorkers())
        log, _ = bench.open()
        self.partition = Partition(
            "__offsets", log, config=resolve({}, {}, replicas=1),
            flusher=Flusher(bench.disk, bench.workers), rates=Rates.unlimited(),
            now_ms=self.clock.now_ms,
        )  # fmt: skip
        me = Member(0, Generation(0, 0))
        self.partition.become_leader(
            PartitionRecord(PARTITION.topic_id, 0, 1, 1, Leader(0, 1), (me,), (), (0,))
        )
        self.running: list[asyncio.Future[None]] = []
        self.coordinator = GroupCoordinator(
            self.clock,
            spawn=lambda name, work: self.running.append(asyncio.ensure_future(work)),
            is_dead=lambda topic_id: False,
            topics=lambda: {"t": TopicShape(PARTITION.topic_id, 1)},
        )
        self.upkeep = GroupUpkeep(self.coordinator, self.clock, offsets_retention_ms=WEEK_MS)

    async def commit(self, group: str, offset: int) -> None:
        await self.coordinator.commit(group, [Commit(WHERE, offset, -1, "")])

    async def beat(self, member_id: str, epoch: int = 0) -> int:
        told = await self.coordinator.heartbeat(
            "g", Beat(member_id=member_id, epoch=epoch, subscription=SUBSCRIPTION)
        )
        return told.epoch

    async def committed(self, group: str) -> list[int]:
        return [each.offset for each in (await self.coordinator.offsets(group)).values()]

    async def pass_s(self, seconds: float) -> None:
        self.clock.pass_s(seconds)
        await self.upkeep.work()


@pytest.fixture
async def groups(tmp_path: Path) -> Groups:
    made = Groups(tmp_path)
    made.coordinator.lead(made.partition, 1)
    await asyncio.wait_for(made.running[0], 5)
    return made


async def test_offsets_of_a_group_without_members_are_forgotten_after_their_time(
    groups: Groups,
) -> None:
    await groups.commit("old", 5)
    await groups.pass_s(WEEK_MS / 1000 - 60)
    await groups.commit("new", 7)
    await groups.pass_s(RETENTION_INTERVAL_S + 1)
    assert await groups.committed("old") == []
    assert await groups.committed("new") == [7]
    again = GroupPartition(groups.partition)
    await again.load()
    assert again.state.groups.keys() == {"new"}, "and the log says so as well"


async def test_offsets_of_a_group_are_kept_while_it_has_members_and_its_time_after_the_last(
    groups: Groups,
) -> None:
    await groups.commit("g", 5)
    epoch = await groups.beat("m1")
    for _ in range(4):
        await groups.pass_s(8)
        epoch = await groups.beat("m1", epoch)
    groups.clock.pass_s(2 * WEEK_MS / 1000)
    epoch = await groups.beat("m1", epoch)
    await groups.upkeep.work()
    assert await groups.committed("g") == [5]
    await groups.coordinator.leave("g", "m1", keep=False)
    await groups.pass_s(WEEK_MS / 1000 - 60)
    assert await groups.committed("g") == [5]
    await groups.pass_s(RETENTION_INTERVAL_S + 120)
    assert await groups.committed("g") == []
    assert await groups.coordinator.group("g") is None


async def test_a_member_that_is_silent_for_its_session_is_none_any_more(groups: Groups) -> None:
    epoch = await groups.beat("m1")
    await groups.pass_s(9)
    epoch = await groups.beat("m1", epoch)
    await groups.pass_s(9)
    epoch = await groups.beat("m1", epoch)
    await groups.pass_s(11)
    with pytest.raises(UnknownMember):
        await groups.beat("m1", epoch)
