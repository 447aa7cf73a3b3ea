"""How a cluster of several brokers shows itself while one of them is dead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.sdk import Admin
from testkit.clusters import ClusterProcesses
from testkit.command_line import headrace
from testkit.http import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    running = ClusterProcesses(tmp_path / "cluster").start()
    yield running
    running.stop()


async def test_what_a_dead_broker_leaves_behind_is_found_by_filters(
    cluster: ClusterProcesses,
) -> None:
    where = cluster.bootstrap
    async with Admin(where) as admin:
        await admin.create_topic("three", partitions=3, replicas=3)
        await admin.create_topic("one", partitions=3, replicas=1)
        before = await admin.cluster_health()
        assert (before.offline, before.under_min_isr, before.under_replicated) == (0, 0, 0)
        assert [load.state for load in before.brokers] == ["running"] * 3
        cluster.brokers[2].kill()

        async def noticed() -> bool:
            health = await admin.cluster_health()
            return health.offline == 1 and health.under_replicated >= 3

        await eventually(noticed, timeout_s=15)
        lost = await admin.cluster_health(problem="offline")
        assert [(each.topic, each.replicas) for each in lost.troubled] == [("one", [2])]
        assert "dead" in [load.state for load in lost.brokers]
        parts = (await admin.cluster_health(problem="under_replicated", topic="three")).troubled
        assert [(each.partition, sorted(each.isr)) for each in parts] == [
            (partition, [0, 1]) for partition in range(3)
        ]
    listed = headrace("topic", "list", "--offline", "--output", "json", bootstrap=where).json
    assert [each["name"] for each in listed["topics"]] == ["one"]
    shown = headrace("topic", "describe", "--under-replicated", bootstrap=where).text
    assert "under replicated" in shown
    assert "three" in shown
    calm = headrace("topic", "describe", "--under-min-isr", "three", bootstrap=where).text
    assert "no partition is under min isr" in calm
    described = headrace("cluster", "describe", bootstrap=where).text
    assert "dead" in described
    assert "1 offline" in described
    assert headrace("topic", "describe", bootstrap=where).code == 2
    assert headrace("topic", "list", "--offline", "--under-min-isr", bootstrap=where).code == 2
