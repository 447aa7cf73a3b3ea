"""Replicas move between real brokers: data stays equal, moves are bounded, called off, resumed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.protocol.models import PartitionInfo
from headrace.sdk import Admin, Consumer, Producer
from headrace.sdk.errors import PlanRefused
from testkit.brokers import BrokerProcess
from testkit.clusters import ClusterProcesses
from testkit.command_line import headrace

MEBIBYTE = 1 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Four brokers, of which the last isn't started yet."""
    made = ClusterProcesses(tmp_path, count=4, HEADRACE_REPLICA_LAG_TIME_MAX_MS="2000")
    newcomer = made.brokers.pop()
    try:
        made.start()
        made.brokers.append(newcomer)
        yield made
    finally:
        for broker in made.brokers:
            if broker.is_launched:
                broker.kill()


async def until(holds: Callable[[], Awaitable[bool]], *, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < deadline, "it didn't come to pass"
        await asyncio.sleep(0.05)


async def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    async with Producer(bootstrap) as producer:
        await producer.send_many(topic, values)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with Consumer(bootstrap, topic, offset_reset="earliest") as consumer:
        deadline = time.monotonic() + 20
        while len(found) < count and time.monotonic() < deadline:
            batch = await consumer.fetch(max_records=1000, timeout=0.5)
            found.extend(record.value or b"" for record in batch)
    return sorted(found)


async def partitions(admin: Admin, topic: str) -> list[PartitionInfo]:
    return (await admin.describe_topic(topic)).partitions


async def join(admin: Admin, newcomer: BrokerProcess) -> None:
    """Starts the last broker; returns once the one that is asked has heard of it."""
    newcomer.launch()
    await asyncio.to_thread(newcomer.wait_ready)

    async def is_known() -> bool:
        return any(each.id == 3 and each.state == "running" for each in await admin.brokers())

    await until(is_known)


async def is_over(admin: Admin) -> bool:
    return (await admin.reassignments()).state == "none"


async def test_a_broker_joins_and_leaves_again_with_the_data(cluster: ClusterProcesses) -> None:
    values = sorted(os.urandom(100) for _ in range(2_000))
    first, newcomer = cluster.brokers[0], cluster.brokers[3]
    async with Admin(first.url) as admin:
        await admin.create_topic("orders", partitions=8, replicas=2)
        await write(first.url, "orders", values)
        await join(admin, newcomer)
        shown = headrace("cluster", "reassign", bootstrap=first.url)
        assert shown.code == 0, shown.err
        assert "would move" in shown.text
        assert await is_over(admin)
        moved = headrace("cluster", "reassign", "--execute", bootstrap=newcomer.url)
        assert moved.code == 0, moved.err
        found = await partitions(admin, "orders")
        copies = Counter(broker for each in found for broker in each.replicas)
        assert copies[3] > 0
        assert all(sorted(each.isr) == sorted(each.replicas) for each in found)
        assert await read(first.url, "orders", len(values)) == values
        drained = headrace("cluster", "drain", "3", bootstrap=first.url)
        assert drained.code == 0, drained.err
        assert "no replicas any more" in drained.err
        assert (await admin.placement(3)).replicas == 0
        assert all(3 not in each.replicas for each in await partitions(admin, "orders"))
    assert newcomer.stop() == 0
    assert await read(first.url, "orders", len(values)) == values


async def test_another_number_of_replicas_and_a_drain_too_many(cluster: ClusterProcesses) -> None:
    values = sorted(os.urandom(50) for _ in range(500))
    address = cluster.brokers[0].url
    async with Admin(address) as admin:
        await admin.create_topic("few", partitions=3, replicas=1)
        await write(address, "few", values)
        altered = headrace("topic", "alter", "few", "--replicas", "3", bootstrap=address)
        assert altered.code == 0, altered.err
        await until(lambda: is_over(admin))
        assert all(len(each.isr) == 3 for each in await partitions(admin, "few"))
        refused = headrace("cluster", "drain", "1", bootstrap=address)
        assert refused.code == 1
        assert "topic few" in refused.err
        with pytest.raises(PlanRefused):
            await admin.drain(1)
        assert not (await admin.placement(1)).cordoned
        too_many = headrace("topic", "alter", "few", "--replicas", "5", bootstrap=address)
        assert too_many.code == 1
        cluster.brokers[0].kill()
    assert await read(cluster.brokers[1].url, "few", len(values)) == values


async def test_copying_is_throttled_shown_and_called_off(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    address, newcomer = cluster.brokers[0].url, cluster.brokers[3]
    values = [os.urandom(MEBIBYTE // 4) for _ in range(24)]
    async with Admin(address) as admin:
        made = await admin.create_topic("big", partitions=1, replicas=1)
        await write(address, "big", values)
        await join(admin, newcomer)
        here = made.partitions[0].replicas
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"big/0": [3]}))
        begun = headrace(
            "cluster", "reassign", "--plan", str(plan), "--execute", "--no-wait",
            "--throttle", str(MEBIBYTE // 2), bootstrap=address,
        )  # fmt: skip
        assert begun.code == 0, begun.err

        async def is_copying() -> bool:
            now = await admin.reassignments()
            return any(each.topic == "big" and each.bytes_remaining for each in now.partitions)

        await until(is_copying)
        now = await admin.reassignments()
        assert now.throttle_bytes_per_second == MEBIBYTE // 2
        assert 0 < (now.bytes_remaining or 0) <= 7 * MEBIBYTE
        status = headrace("cluster", "reassign", "--status", bootstrap=address)
        assert "to copy" in status.text
        called_off = headrace("cluster", "reassign", "--cancel", bootstrap=address)
        assert called_off.code == 0, called_off.err
        await until(lambda: is_over(admin))
        assert (await partitions(admin, "big"))[0].replicas == here
        started_s = time.monotonic()
        await admin.reassign({("big", 0): [3]}, throttle=3 * MEBIBYTE)
        await until(lambda: is_over(admin))
        assert time.monotonic() - started_s > 0.7, "6 MiB at 3 MiB/s, with a second's allowance"
        assert (await partitions(admin, "big"))[0].replicas == [3]
    assert await read(address, "big", len(values)) == sorted(values)


async def test_a_target_is_killed_and_the_move_is_called_off(cluster: ClusterProcesses) -> None:
    address, newcomer = cluster.brokers[0].url, cluster.brokers[3]
    values = [os.urandom(MEBIBYTE // 4) for _ in range(8)]
    async with Admin(address) as admin:
        made = await admin.create_topic("kept", partitions=1, replicas=2)
        await write(address, "kept", values)
        await join(admin, newcomer)
        before = made.partitions[0].replicas
        await admin.reassign({("kept", 0): [before[0], 3]}, throttle=MEBIBYTE // 4)
        newcomer.kill()

        async def is_named() -> bool:
            parts = (await admin.reassignments()).partitions
            return any("broker 3 is not live" in each.reason for each in parts)

        await until(is_named)
        await write(address, "kept", [b"meanwhile"])
        assert await admin.cancel_reassignment() != []
        await until(lambda: is_over(admin))
        assert (await partitions(admin, "kept"))[0].replicas == before
    assert await read(address, "kept", 9) == sorted([*values, b"meanwhile"])
