"""Restart checks fail closed: whatever is in doubt is a no, and names what is in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from headrace.broker.controller.timing import SYSTEM_TIME
from headrace.broker.store import keys
from headrace.broker.store.base import Change
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from headrace.protocol.errors import BrokerNotFound
from testkit.coordination import Node, start_node
from testkit.peer_net import PeerNet


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def net() -> PeerNet:
    return PeerNet()


@pytest.fixture
async def three(cluster: MemoryCluster, net: PeerNet) -> AsyncIterator[list[Node]]:
    nodes = [
        await start_node(MemoryStore(cluster), broker_id=n, clock=SYSTEM_TIME, net=net)
        for n in range(3)
    ]
    first = nodes[0].coordination
    await first.delete_topic("__offsets")  # made when there was one broker, with one replica
    await first.create_topic("orders", partitions=3, replicas=3)
    yield nodes
    for node in nodes:
        await node.coordination.stop(clean=False)


async def reasons(node: Node, broker_id: int, phase: str = "before") -> list[str]:
    found = await node.coordination.restart_blockers(broker_id, phase)  # type: ignore[arg-type]
    found = [b for b in found if b.topic != "__offsets"]
    return [f"{b.topic}/{b.partition}: {b.reason}" for b in found]


async def test_a_broker_of_a_whole_cluster_may_be_stopped(three: list[Node]) -> None:
    for asked in three:
        for broker_id in range(3):
            assert await reasons(asked, broker_id) == []
            assert await reasons(asked, broker_id, "after") == []


async def test_with_one_replica_out_of_sync_the_next_stop_would_go_under_the_minimum(
    three: list[Node],
) -> None:
    topic = three[0].coordination.view.topics["orders"]
    await three[2].coordination.mark_failed(topic.topic_id, 1)
    blocked = await reasons(three[0], 1)
    assert len(blocked) == 1
    assert blocked[0].startswith("orders/1: without broker 1 1 of the 2 in-sync replicas")
    assert await reasons(three[0], 2) == []
    assert await reasons(three[0], 2, "after") == ["orders/1: broker 2 isn't in sync yet"]


async def test_a_silent_broker_does_not_count_though_its_lease_still_does(
    three: list[Node], net: PeerNet
) -> None:
    net.silent.add(2)
    assert len(await reasons(three[0], 1)) == 3
    assert await reasons(three[0], 2, "after") == ["/-1: broker 2 is not live"]


async def test_two_brokers_are_not_let_go_one_after_the_other(three: list[Node]) -> None:
    await three[2].coordination.drain()
    assert len(await reasons(three[0], 1)) == 3


async def test_a_store_that_does_not_answer_is_a_no(
    three: list[Node],
) -> None:
    store = three[0].coordination._store
    assert isinstance(store, MemoryStore)
    store.outage = True
    assert "the store doesn't answer" in (await reasons(three[0], 1))[0]
    store.outage = False


async def test_a_record_that_cannot_be_read_is_a_no(
    three: list[Node], cluster: MemoryCluster
) -> None:
    key = keys.shard("orders", 0)
    cluster.apply(Change(key, b"by hand", cluster.objects[key].revision))
    assert "is in doubt" in (await reasons(three[0], 1))[0]


async def test_a_partition_with_one_replica_can_never_be_spared(three: list[Node]) -> None:
    topic = await three[0].coordination.create_topic("alone", partitions=1, replicas=1)
    record = three[0].coordination.view.record(topic.topic_id, 0)
    holder = record.replicas[0]  # type: ignore[union-attr]
    found = await three[0].coordination.restart_blockers(holder, "before")
    mine = [b for b in found if b.topic == "alone"]
    assert [b.unavoidable for b in mine] == [True]


async def test_a_broker_that_nobody_knows_is_refused(three: list[Node]) -> None:
    with pytest.raises(BrokerNotFound):
        await three[0].coordination.restart_blockers(9, "before")
