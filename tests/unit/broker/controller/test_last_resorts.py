"""All members of a partition lost their tails, or one is gone for good: the longest log, or a
person, decides (R24)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.broker.core.election import LogEnd
from headrace.broker.core.model import Leader
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from headrace.protocol.errors import Conflict, PartitionNotFound, TopicNotFound
from testkit.coordination import Node, make_node, start_node
from testkit.peer_net import PeerNet


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(8):
        while not condition():
            await asyncio.sleep(0.005)


async def three(cluster: MemoryCluster, net: PeerNet) -> list[Node]:
    return [await start_node(MemoryStore(cluster), broker_id=n, net=net) for n in range(3)]


async def start_again(cluster: MemoryCluster, net: PeerNet, node: Node, end: LogEnd) -> Node:
    again = make_node(
        MemoryStore(cluster), broker_id=node.coordination.broker_id, volume=node.volume,
        net=net,
    )  # fmt: skip
    again.ends[0] = end
    await again.coordination.start()
    net.handlers[node.coordination.broker_id] = again.coordination.peer_handlers
    await again.coordination.activate()
    return again


async def test_after_a_power_cut_of_all_the_longest_log_leads() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    nodes = await three(cluster, net)
    await nodes[0].coordination.create_topic("orders", partitions=1, replicas=3)
    for node in nodes:
        await node.kill()
        node.volume.power_cut()
    ends = [LogEnd(1, 90), LogEnd(2, 30), LogEnd(2, 40)]
    again = [
        await start_again(cluster, net, node, end) for node, end in zip(nodes, ends, strict=True)
    ]
    await until(lambda: again[0].records("orders")[0].leader == Leader(2, 2))
    record = again[0].records("orders")[0]
    assert record.recovery == "possible_loss"
    assert [m.broker_id for m in record.isr] == [2]
    for node in again:
        await node.coordination.stop()


async def test_with_a_member_away_nobody_leads_until_a_person_says_who() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    nodes = await three(cluster, net)
    first = nodes[0].coordination
    topic = await first.create_topic("orders", partitions=1, replicas=3)
    with pytest.raises(Conflict, match="leads it"):
        await first.elect_leader("orders", 0, 1)
    for node in nodes[1:]:
        await node.coordination.mark_failed(topic.topic_id, 0)
    await nodes[0].kill()  # the only one with all records
    await until(lambda: any(n.coordination.is_controller for n in nodes[1:]))
    await until(lambda: nodes[1].coordination.why_offline(topic.topic_id, 0) is not None)
    reason = nodes[1].coordination.why_offline(topic.topic_id, 0)
    assert reason is not None
    assert "waiting for broker 0" in reason
    with pytest.raises(Conflict, match="broker 0 is not running"):
        await nodes[1].coordination.elect_leader("orders", 0, 0)
    record = await nodes[1].coordination.elect_leader("orders", 0, 2)
    assert (record.leader, record.recovery) == (Leader(2, 1), "unclean")
    await asyncio.sleep(0.1)
    assert nodes[1].records("orders")[0].leader == Leader(2, 1)
    with pytest.raises(TopicNotFound):
        await nodes[1].coordination.elect_leader("absent", 0, 2)
    with pytest.raises(PartitionNotFound):
        await nodes[1].coordination.elect_leader("orders", 1, 2)
    for node in nodes[1:]:
        await node.coordination.stop()


async def test_a_sole_replica_that_broke_is_brought_back_by_command() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    node = await start_node(MemoryStore(cluster), net=net)
    topic = await node.coordination.create_topic("orders", partitions=1)
    await node.coordination.mark_failed(topic.topic_id, 0)
    await asyncio.sleep(0.1)
    assert node.records("orders")[0].leader is None
    reason = node.coordination.why_offline(topic.topic_id, 0)
    assert reason is not None
    assert "headrace topic elect-leader" in reason
    await node.coordination.elect_leader("orders", 0, 0)
    assert node.records("orders")[0].leader == Leader(0, 1)
    assert node.coordination.why_offline(topic.topic_id, 0) is None
    await node.coordination.stop()
