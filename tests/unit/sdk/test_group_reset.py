"""Moving a group's offsets: the plan, what is refused, and the commit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.cli.groups import duration_of
from headrace.sdk import Admin, Consumer, Producer
from headrace.sdk.errors import GroupNotEmpty, GroupNotFound, InvalidRequest
from headrace.sdk.group_reset import Shift
from headrace.sdk.testing import InMemoryCluster


@pytest.fixture
async def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=2)
    async with Producer(headrace_cluster.url) as producer:
        for number in range(20):
            await producer.send("t", b"v", partition=number % 2, timestamp_ms=1_000 * number)
    return headrace_cluster


async def test_each_kind_of_place_is_planned_within_the_partition(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url) as admin:
        with pytest.raises(GroupNotFound):
            await admin.plan_group_reset("g", "earliest")
        await admin.alter_group_offsets("g", {("t", 0): 4, ("t", 1): 6})
        for to, expected in (
            ("earliest", [0, 0]),
            ("latest", [10, 10]),
            (7, [7, 7]),
            (99, [10, 10]),
            (Shift(-5), [0, 1]),
            (Shift(2), [6, 8]),
            (datetime.fromtimestamp(10, UTC), [5, 5]),
            (datetime.fromtimestamp(99, UTC), [10, 10]),
        ):
            plan = await admin.plan_group_reset("g", to)  # type: ignore[arg-type]
            assert [each.new for each in plan] == expected, to
            assert [each.old for each in plan] == [4, 6]
        assert cluster.committed("g") == {("t", 0): 4, ("t", 1): 6}
        plan = await admin.plan_group_reset("g", "latest", partitions=[1])
        await admin.reset_group_offsets("g", plan)
        assert cluster.committed("g") == {("t", 0): 4, ("t", 1): 10}


async def test_a_new_group_can_be_placed_on_named_topics_but_not_shifted(
    cluster: InMemoryCluster,
) -> None:
    async with Admin(cluster.url) as admin:
        plan = await admin.plan_group_reset("new", "latest", topics=["t"])
        await admin.reset_group_offsets("new", plan)
        assert set(cluster.committed("new").values()) == {10}
        with pytest.raises(InvalidRequest, match="shift"):
            await admin.plan_group_reset("other", Shift(1), topics=["t"])


async def test_a_group_with_members_is_reset_by_force_only(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url) as admin, Consumer(cluster.url, "t", group="g") as consumer:
        await consumer.fetch(1)
        plan = await admin.plan_group_reset("g", "latest", topics=["t"])
        with pytest.raises(GroupNotEmpty):
            await admin.reset_group_offsets("g", plan)
        assert cluster.committed("g") == {}
        await admin.reset_group_offsets("g", plan, force=True)
        assert set(cluster.committed("g").values()) == {10}


def test_durations_are_read() -> None:
    assert duration_of("1h30m").total_seconds() == 5_400
    assert duration_of("250ms").total_seconds() == 0.25
