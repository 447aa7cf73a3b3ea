"""A broker that leaves waits until others lead what they can, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.broker.controller.timing import SYSTEM_TIME
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from testkit.coordination import Node, start_node
from testkit.peer_net import PeerNet


@pytest.fixture
async def pair() -> AsyncIterator[list[Node]]:
    cluster, net = MemoryCluster(), PeerNet()
    nodes = [
        await start_node(MemoryStore(cluster), broker_id=n, clock=SYSTEM_TIME, net=net)
        for n in range(2)
    ]
    await nodes[0].coordination.create_topic("orders", partitions=4, replicas=2)
    yield nodes
    for node in nodes:
        await node.coordination.stop(clean=False)


async def test_the_wait_ends_as_soon_as_others_lead(pair: list[Node]) -> None:
    leaving = pair[0].coordination  # which is the controller, too
    await leaving.drain()
    began = asyncio.get_running_loop().time()
    assert await leaving.handed_over(timeout_s=5) == 0
    assert asyncio.get_running_loop().time() - began < 0.5
    assert {r.leader.broker_id for r in pair[0].records("orders") if r.leader} == {1}
    assert {member.broker_id for r in pair[0].records("orders") for member in r.isr} == {1}


async def test_a_follower_that_leaves_is_waited_for_by_nobody(pair: list[Node]) -> None:
    leaving = pair[1].coordination
    await leaving.drain()
    assert await leaving.handed_over(timeout_s=5) == 0
    records = pair[1].records("orders")
    assert {member.broker_id for record in records for member in record.isr} == {0}


async def test_a_follower_that_the_minimum_needs_stays_in_sync_to_the_end(
    pair: list[Node],
) -> None:
    leaving = pair[1].coordination
    await leaving.create_topic(
        "needed", partitions=2, replicas=2, config={"min.insync.replicas": 2}
    )
    await leaving.drain()
    assert await leaving.handed_over(timeout_s=5) == 0
    records = pair[1].records("needed")
    assert all(len(record.isr) == 2 for record in records)
    assert {record.leader.broker_id for record in records if record.leader} == {0}


async def test_what_nobody_else_can_lead_is_not_waited_for(pair: list[Node]) -> None:
    leaving = pair[0].coordination
    await pair[1].coordination.drain()
    await leaving.create_topic("alone", partitions=2, replicas=1)
    await leaving.drain()
    began = asyncio.get_running_loop().time()
    assert await leaving.handed_over(timeout_s=5) == 0
    assert asyncio.get_running_loop().time() - began < 0.5
    assert {r.leader.broker_id for r in pair[0].records("alone") if r.leader} == {0}


async def test_a_cluster_without_a_controller_does_not_hold_the_stop_for_ever(
    pair: list[Node],
) -> None:
    controller, leaving = pair
    await controller.coordination.stop(clean=False)
    await leaving.coordination.drain()
    assert await leaving.coordination.handed_over(timeout_s=0.2) == 2
