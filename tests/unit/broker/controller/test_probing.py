"""A death is noticed by a refused connection long before the lease tells (H7); silence isn't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from headrace.broker.controller.timing import SYSTEM_TIME
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from testkit.coordination import Node, start_node
from testkit.peer_net import PeerNet

QUICK_S = 1.5
"""Less than a single renewal of a lease, in real time."""


async def until(condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def net() -> PeerNet:
    return PeerNet()


@pytest.fixture
async def three(net: PeerNet) -> AsyncIterator[list[Node]]:
    cluster = MemoryCluster()
    nodes = [
        await start_node(MemoryStore(cluster), broker_id=n, clock=SYSTEM_TIME, net=net)
        for n in range(3)
    ]
    await nodes[1].coordination.create_topic("orders", partitions=6, replicas=3)
    await until(lambda: all(n.coordination.controller_id == 0 for n in nodes))
    yield nodes
    for node in nodes:
        await node.coordination.stop(clean=False)


def leaders(node: Node) -> set[int | None]:
    return {r.leader.broker_id if r.leader else None for r in node.records("orders")}


async def test_the_partitions_of_a_killed_broker_are_led_again_at_once(three: list[Node]) -> None:
    await three[2].kill()
    await until(lambda: leaders(three[1]) == {0, 1}, within_s=QUICK_S)
    assert all(len(r.isr) == 2 for r in three[1].records("orders"))


async def test_a_killed_controller_is_followed_at_once(three: list[Node]) -> None:
    await three[0].kill()
    survivors = three[1:]
    await until(lambda: leaders(survivors[0]) == {1, 2}, within_s=QUICK_S)
    assert sum(n.coordination.is_controller for n in survivors) == 1


async def test_a_silent_broker_keeps_what_it_leads_until_its_lease_tells(
    three: list[Node], net: PeerNet
) -> None:
    net.silent.add(2)
    await asyncio.sleep(QUICK_S)
    assert leaders(three[1]) == {0, 1, 2}


async def test_most_brokers_refusing_at_once_is_the_observers_own_trouble(
    three: list[Node], net: PeerNet
) -> None:
    gone = {n: net.handlers.pop(n) for n in (1, 2)}
    await asyncio.sleep(QUICK_S)
    assert leaders(three[0]) == {0, 1, 2}
    assert all(s.live for s in three[0].coordination.broker_statuses().values())
    net.handlers.update(gone)


async def test_a_broker_that_answers_again_counts_as_live_again(
    three: list[Node], net: PeerNet
) -> None:
    handlers = net.handlers.pop(2)
    await until(lambda: leaders(three[0]) == {0, 1}, within_s=QUICK_S)
    assert not three[0].coordination.broker_statuses()[2].live
    net.handlers[2] = handlers
    await until(lambda: three[0].coordination.broker_statuses()[2].live, within_s=QUICK_S)


async def test_a_controller_that_only_one_broker_cannot_reach_is_overthrown_once_at_most(
    three: list[Node], net: PeerNet
) -> None:
    terms = []
    handlers = net.handlers.pop(0)  # its listener is gone, its process renews the lease
    for _ in range(40):
        await asyncio.sleep(0.05)
        cluster = three[2].coordination.view.cluster
        terms.append(cluster.store_term if cluster else 0)
    assert terms[-1] - terms[0] <= 3
    net.handlers[0] = handlers
