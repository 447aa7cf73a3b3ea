"""Disks put back, taken over and exchanged; clocks that are wrong: what a start makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.broker.controller import leases
from headrace.broker.controller.timing import TimeSource
from headrace.broker.core import encoding
from headrace.broker.core.model import Generation, Leader, Registration
from headrace.broker.store import keys
from headrace.broker.store.base import Applied, Change
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from headrace.protocol.errors import Conflict, InvalidConfig
from testkit.coordination import Node, Volume, fast_time, make_node, start_node
from testkit.peer_net import PeerNet


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(8):
        while not condition():
            await asyncio.sleep(0.005)


def told_beat(cluster: MemoryCluster) -> int:
    lease = leases.decode(cluster.objects[keys.broker_lease(0)].value)
    assert lease is not None
    return lease.disk_beat


def lost_disk(before: Node) -> Generation:
    """The generation of a broker that lost the disk it had."""
    generation = before.coordination.registration.generation
    return Generation(generation.disk_gen + 1, generation.power_gen)


async def test_a_disk_put_back_to_an_earlier_minute_of_its_session_counts_as_lost() -> None:
    cluster = MemoryCluster()
    node = await start_node(MemoryStore(cluster))
    await until(lambda: told_beat(cluster) >= 3)
    assert node.volume.copies.beat >= 3
    snapshot = node.volume.state  # whose beat is that of the start
    await node.kill()
    again = await start_node(MemoryStore(cluster), volume=Volume(snapshot))
    assert again.coordination.registration.generation == lost_disk(node)
    await again.coordination.stop()


async def test_a_killed_broker_whose_disk_has_the_last_beat_keeps_its_standing() -> None:
    cluster = MemoryCluster()
    node = await start_node(MemoryStore(cluster))
    await until(lambda: told_beat(cluster) >= 2)
    await node.kill()
    meta = node.volume.state.meta
    assert meta is not None
    kept = replace(node.volume.state, meta=replace(meta, beat=node.volume.copies.beat))
    again = await start_node(MemoryStore(cluster), volume=Volume(kept))
    kept_generation = node.coordination.registration.generation
    assert again.coordination.registration.generation == kept_generation
    await again.coordination.stop()


async def test_a_disk_from_an_old_backup_loses_its_standing_and_others_lead() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    nodes = [await start_node(MemoryStore(cluster), broker_id=n, net=net) for n in range(3)]
    backup = nodes[2].volume.state
    await nodes[0].coordination.create_topic("orders", partitions=3, replicas=3)
    await nodes[2].kill()
    second = await start_node(MemoryStore(cluster), broker_id=2, volume=nodes[2].volume, net=net)
    await second.kill()
    third = await start_node(MemoryStore(cluster), broker_id=2, volume=Volume(backup), net=net)
    assert third.coordination.registration.generation == lost_disk(nodes[2])
    await until(
        lambda: all(r.leader and r.leader.broker_id != 2 for r in nodes[0].records("orders"))
    )
    for node in (*nodes[:2], third):
        await node.coordination.stop()


async def test_the_disks_of_two_brokers_exchanged_are_refused() -> None:
    cluster = MemoryCluster()
    nodes = [await start_node(MemoryStore(cluster), broker_id=n) for n in range(2)]
    for node in nodes:
        await node.kill()
    wrong = make_node(MemoryStore(cluster), broker_id=0, volume=nodes[1].volume)
    with pytest.raises(InvalidConfig, match="belongs to broker 1"):
        await wrong.coordination.start()


async def test_a_second_process_on_another_disk_waits_for_the_first_to_be_silent() -> None:
    cluster = MemoryCluster()
    first = await start_node(MemoryStore(cluster))
    second = make_node(MemoryStore(cluster), volume=Volume())
    with pytest.raises(Conflict, match="in use by a live process"):
        await second.coordination.start()
    await first.kill()
    third = await start_node(MemoryStore(cluster), volume=Volume())
    assert third.coordination.registration.generation == lost_disk(first)
    await third.coordination.stop()


async def test_a_clock_that_is_an_hour_off_changes_nothing() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    right = fast_time()
    wrong = TimeSource(lambda: right.monotonic() + 3600.0, right.sleep)
    clocks = [right, wrong, right]
    nodes = [
        await start_node(MemoryStore(cluster), broker_id=n, clock=clocks[n], net=net)
        for n in range(3)
    ]
    await nodes[1].coordination.create_topic("orders", partitions=3, replicas=3)
    await until(lambda: all(len(n.records("orders")) == 3 for n in nodes))
    before = nodes[0].records("orders")
    await asyncio.sleep(0.3)
    assert nodes[1].records("orders") == before
    assert all(s.live for n in nodes for s in n.coordination.broker_statuses().values())
    await nodes[0].kill()
    await until(lambda: any(n.coordination.is_controller for n in nodes[1:]))
    await until(
        lambda: all(r.leader in (Leader(1, 1), Leader(2, 1)) for r in nodes[1].records("orders"))
    )
    for node in nodes[1:]:
        await node.coordination.stop()


async def remove(cluster: MemoryCluster, *removed: str) -> None:
    """As a person does it: `kubectl delete`, or a store that lost a few objects."""
    store = MemoryStore(cluster)
    for key in removed:
        item = await store.get(key)
        assert item is not None
        assert isinstance(await store.cas(Change(key, None, item.revision)), Applied)


async def test_a_registration_that_was_removed_comes_back_by_itself() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    nodes = [await start_node(MemoryStore(cluster), broker_id=n, net=net) for n in range(2)]
    before = nodes[1].coordination.registration
    await remove(cluster, keys.broker(1))
    await until(lambda: keys.broker(1) in cluster.objects)
    back = encoding.decode_registration(cluster.objects[keys.broker(1)].value)
    assert isinstance(back, Registration)
    assert (back.session, back.nonce, back.state) == (before.session, before.nonce, "running")
    await until(lambda: nodes[0].coordination.view.brokers[1] == back)
    for node in nodes:
        await node.coordination.stop()


async def test_a_broker_says_that_it_leaves_although_its_registration_is_gone() -> None:
    cluster = MemoryCluster()
    node = await start_node(MemoryStore(cluster), broker_id=0)
    await remove(cluster, keys.broker(0))
    await node.coordination.drain()
    found = encoding.decode_registration(cluster.objects[keys.broker(0)].value)
    assert isinstance(found, Registration)
    assert found.state == "draining"
    assert not node.overtaken
    await node.coordination.stop()


async def test_a_registration_that_went_back_in_time_is_written_again() -> None:
    cluster = MemoryCluster()
    first = await start_node(MemoryStore(cluster), broker_id=0)
    old = cluster.objects[keys.broker(0)].value
    await first.kill()
    node = await start_node(MemoryStore(cluster), broker_id=0, volume=first.volume)
    assert node.coordination.registration.session == 2
    cluster.apply(Change(keys.broker(0), old, cluster.objects[keys.broker(0)].revision))
    await until(lambda: session_in(cluster) == 2)
    await node.coordination.drain()
    assert not node.overtaken
    await node.coordination.stop()


def session_in(cluster: MemoryCluster) -> int:
    found = encoding.decode_registration(cluster.objects[keys.broker(0)].value)
    assert isinstance(found, Registration)
    return found.session


async def test_who_restarts_without_its_registration_is_known_to_the_others() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    nodes = [await start_node(MemoryStore(cluster), broker_id=n, net=net) for n in range(2)]
    await nodes[0].coordination.create_topic("orders", partitions=2, replicas=2)
    await nodes[1].kill()
    again = await start_node(MemoryStore(cluster), broker_id=1, volume=nodes[1].volume, net=net)
    await again.kill()
    await remove(cluster, keys.broker(1), keys.broker_lease(1))
    again = await start_node(MemoryStore(cluster), broker_id=1, volume=again.volume, net=net)
    assert again.coordination.registration.session == 3
    await until(lambda: nodes[0].coordination.view.brokers[1].session == 3)
    for node in (nodes[0], again):
        await node.coordination.stop()


async def test_a_lost_disk_whose_registration_is_lost_too_has_no_standing() -> None:
    cluster, net = MemoryCluster(), PeerNet()
    nodes = [await start_node(MemoryStore(cluster), broker_id=n, net=net) for n in range(2)]
    await nodes[0].coordination.create_topic("orders", partitions=2, replicas=2)
    former = nodes[1].coordination.registration.generation
    await nodes[1].kill()
    await remove(cluster, keys.broker(1))
    fresh = await start_node(MemoryStore(cluster), broker_id=1, volume=Volume(), net=net)
    assert fresh.coordination.registration.generation != former
    await until(
        lambda: all(r.leader and r.leader.broker_id == 0 for r in nodes[0].records("orders"))
    )
    for node in (nodes[0], fresh):
        await node.coordination.stop()


async def test_an_id_whose_lease_moves_is_in_use_even_without_a_registration() -> None:
    cluster = MemoryCluster()
    node = await start_node(MemoryStore(cluster), broker_id=0)
    second = make_node(MemoryStore(cluster), broker_id=0, volume=Volume())
    await remove(cluster, keys.broker(0))
    with pytest.raises(Conflict, match="in use by a live process"):
        await second.coordination.start()
    assert not node.overtaken
    await second.coordination.stop()
    await node.coordination.stop()
