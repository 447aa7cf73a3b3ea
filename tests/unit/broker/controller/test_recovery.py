"""A store that goes back in time, or is lost, harms nothing and is put right from disks (R27)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from headrace.broker.core import encoding
from headrace.broker.core.model import Leader, PartitionRecord, Shard
from headrace.broker.store import keys
from headrace.broker.store.base import Change, Item
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from headrace.protocol.errors import Conflict, InvalidConfig, StoreUnavailable
from testkit.coordination import Node, start_node
from testkit.peer_net import PeerNet


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(8):
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
    nodes = [await start_node(MemoryStore(cluster), broker_id=n, net=net) for n in range(3)]
    await nodes[0].coordination.create_topic("orders", partitions=3, replicas=3)
    await until(lambda: all(len(n.records("orders")) == 3 for n in nodes))
    yield nodes
    for node in nodes:
        await node.coordination.stop(clean=False)


def put_back(cluster: MemoryCluster, saved: dict[str, Item]) -> None:
    """As a restored backup: the contents of then under revisions of now."""
    for key in [k for k in cluster.objects if k not in saved and not k.startswith("leases/")]:
        cluster.apply(Change(key, None, cluster.objects[key].revision))
    for key, item in saved.items():
        present = cluster.objects.get(key)
        cluster.apply(Change(key, item.value, present.revision if present else None))


def state(cluster: MemoryCluster, *prefixes: str) -> dict[str, Item]:
    return {k: i for k, i in cluster.objects.items() if k.startswith(prefixes)}


async def stopped(nodes: list[Node]) -> None:
    for node in nodes:
        await node.coordination.copies.flush()
        await node.kill()


async def test_a_record_that_went_back_is_suspect_and_nobody_is_elected_for_it(
    three: list[Node], cluster: MemoryCluster
) -> None:
    coordination = three[0].coordination
    topic = coordination.view.topics["orders"]
    old = state(cluster, "partitions/orders")
    await three[2].coordination.mark_failed(topic.topic_id, 0)
    await until(lambda: len(three[0].records("orders")[0].isr) == 2)
    await until(lambda: three[0].records("orders")[0].leader is not None)
    put_back(cluster, {**cluster.objects, **old})
    await until(lambda: bool(coordination.suspects))
    assert {where.partition for where in coordination.suspects} == {0}
    before = three[0].records("orders")[0]
    await three[before.leader.broker_id].kill()  # type: ignore[union-attr]
    await asyncio.sleep(0.3)
    left = next(n for n in three if n.coordination.broker_id != before.leader.broker_id)  # type: ignore[union-attr]
    assert left.records("orders")[0] == before


async def test_nobody_leaves_or_is_preferred_by_a_record_that_is_in_doubt(
    three: list[Node], cluster: MemoryCluster
) -> None:
    coordination = three[0].coordination
    topic = coordination.view.topics["orders"]
    key = keys.shard("orders", 0)
    shard = encoding.decode_shard(cluster.objects[key].value)
    assert isinstance(shard, Shard)
    known = shard.records[0]
    assert isinstance(known, PartitionRecord)
    # By hand: the same epochs, another ISR and another first replica.
    other = replace(known, isr=known.isr[:1], replicas=(*known.replicas[1:], known.replicas[0]))
    raw = encoding.encode_shard(replace(shard, records=(other, *shard.records[1:])))
    cluster.apply(Change(key, raw, cluster.objects[key].revision))
    await until(lambda: all(n.coordination.suspects for n in three))
    with pytest.raises(StoreUnavailable, match="in doubt"):
        await three[2].coordination.mark_failed(topic.topic_id, 0)
    await coordination.reassignments._elect(
        [("orders", replace(known, partition_epoch=known.partition_epoch + 1))]
    )
    assert cluster.objects[key].value == raw


async def test_the_command_puts_a_record_right_with_epochs_above_all(
    three: list[Node], cluster: MemoryCluster
) -> None:
    coordination = three[1].coordination
    topic = coordination.view.topics["orders"]
    old = state(cluster, "partitions/orders")
    await three[2].coordination.mark_failed(topic.topic_id, 0)
    await until(lambda: all(len(n.records("orders")[0].isr) == 2 for n in three))
    was = three[1].records("orders")[0]
    put_back(cluster, {**cluster.objects, **old})
    await until(lambda: bool(coordination.suspects))
    shown = await coordination.recover(execute=False)
    assert [r.record.partition for r in shown.repairs] == [0]
    assert coordination.suspects
    done = await coordination.recover(execute=True)
    assert done.repairs == shown.repairs
    assert not coordination.suspects
    await until(lambda: three[1].records("orders")[0].leader is not None)
    now = three[1].records("orders")[0]
    assert now.leader_epoch > was.leader_epoch
    assert {m.broker_id for m in now.isr} == {0, 1}
    assert not (await coordination.recover(execute=False)).repairs


async def test_a_store_restored_from_a_backup_elects_nobody_until_it_is_put_right(
    three: list[Node], cluster: MemoryCluster, net: PeerNet
) -> None:
    backup = state(cluster, "cluster", "topics/", "partitions/", "brokers/")
    await three[0].coordination.create_topic("later", partitions=2, replicas=3)
    topic = three[0].coordination.view.topics["orders"]
    await three[0].coordination.mark_failed(topic.topic_id, 1)
    await until(lambda: all(len(n.records("later")) == 2 for n in three))
    await until(lambda: all(len(n.records("orders")[1].isr) == 2 for n in three))
    await three[0].coordination.alter_cluster_config({"num.partitions": 9})
    await until(lambda: all(n.coordination.cluster_config for n in three))
    was = three[1].records("orders")
    await stopped(three)
    put_back(cluster, backup)
    again = [await _start(cluster, net, node) for node in three]
    first = again[0].coordination
    await until(lambda: first.store_went_back and len(first.suspects) >= 3)
    assert all(not n.coordination.is_controller for n in again)
    assert [r.leader_epoch for r in again[0].records("orders")] == [r.leader_epoch for r in was]
    done = await first.recover(execute=True)
    assert "later" in {t.name for t in done.topics}
    await until(lambda: any(n.coordination.is_controller for n in again))
    names = ("orders", "later")
    await until(lambda: all(r.leader for name in names for r in again[2].records(name)))
    assert again[2].coordination.cluster_config == {"num.partitions": 9}
    assert {m.broker_id for m in again[2].records("orders")[1].isr} == {1, 2}
    await until(lambda: not again[0].coordination.store_went_back)
    for node in again:
        await node.coordination.stop(clean=False)


async def _start(
    cluster: MemoryCluster, net: PeerNet, node: Node, *, rebuild: bool = False
) -> Node:
    return await start_node(
        MemoryStore(cluster), broker_id=node.coordination.broker_id, volume=node.volume, net=net,
        rebuild=rebuild,
    )  # fmt: skip


async def test_a_lost_store_is_rebuilt_from_the_disks(
    three: list[Node], cluster: MemoryCluster, net: PeerNet
) -> None:
    await three[0].coordination.create_topic(
        "kept", partitions=70, replicas=3, config={"retention.ms": 5}
    )
    await until(lambda: all(len(n.records("kept")) == 70 for n in three))
    cluster_id = three[0].coordination.cluster_id
    await stopped(three)
    empty = MemoryCluster()
    with pytest.raises(InvalidConfig, match="the store is empty"):
        await _start(empty, net, three[0])
    again = [await _start(empty, net, node, rebuild=True) for node in three]
    first = again[0].coordination
    assert first.cluster_id == cluster_id
    done = await first.recover(execute=True)
    assert {t.name for t in done.topics} >= {"orders", "kept"}
    await until(lambda: all(r.leader for r in again[1].records("kept")))
    kept = again[1].coordination.view.topics["kept"]
    assert (kept.partition_count, kept.config) == (70, {"retention.ms": 5})
    assert len(again[1].records("kept")) == 70
    assert all(r.recovery == "none" for r in again[1].records("kept"))
    assert keys.topic("kept") in empty.objects
    for node in again:
        await node.coordination.stop(clean=False)


async def test_with_a_broker_away_that_may_know_more_a_person_must_accept_that(
    three: list[Node], cluster: MemoryCluster, net: PeerNet
) -> None:
    coordination = three[1].coordination
    topic = coordination.view.topics["orders"]
    old = state(cluster, "partitions/orders")
    await coordination.mark_failed(topic.topic_id, 0)
    await until(lambda: all(len(n.records("orders")[0].isr) == 2 for n in three))
    put_back(cluster, {**cluster.objects, **old})
    await until(lambda: bool(coordination.suspects))
    net.silent.add(2)
    with pytest.raises(Conflict, match="broker 2 didn't answer"):
        await coordination.recover(execute=True)
    await coordination.recover(execute=True, accept_missing=True)
    assert not coordination.suspects


async def test_a_topic_deleted_while_a_broker_was_down_is_not_brought_back(
    three: list[Node], cluster: MemoryCluster, net: PeerNet
) -> None:
    await stopped(three[2:])
    gone = await three[0].coordination.delete_topic("orders")
    again = await _start(cluster, net, three[2])
    assert again.coordination.view.topic("orders") is None
    assert again.coordination.view.is_tombstoned(gone)
    await again.coordination._suspects.look()
    assert not again.coordination.suspects
    async with asyncio.timeout(10):  # records that are just being changed are older on some disk
        while True:
            plan = await three[0].coordination.recover(execute=False)
            if (plan.topics, plan.repairs) == ((), ()):
                break
            await asyncio.sleep(0.05)
    await again.coordination.stop(clean=False)


async def test_objects_removed_by_hand_are_not_begun_anew(
    three: list[Node], cluster: MemoryCluster
) -> None:
    was = three[0].records("orders")
    key = keys.shard("orders", 0)
    cluster.apply(Change(key, None, cluster.objects[key].revision))
    await until(lambda: len(three[0].coordination.suspects) == 3)
    await three[0].coordination.alter_topic("orders", config={"flush.ms": 7})
    await asyncio.sleep(0.2)
    assert key not in cluster.objects
    await three[0].coordination.recover(execute=True)
    await until(lambda: all(r.leader for r in three[0].records("orders")))
    now = three[0].records("orders")
    assert all(n.leader_epoch > w.leader_epoch for n, w in zip(now, was, strict=True))


async def test_a_restarted_broker_remembers_its_partitions_without_the_store(
    three: list[Node],
) -> None:
    topic = three[0].coordination.view.topics["orders"]
    expected = three[2].records("orders")[0]
    await stopped(three)
    kept = three[2].coordination.copies.record(topic.topic_id, 0)
    assert kept is not None
    assert kept.replicas == expected.replicas
    assert isinstance(kept.leader, Leader)
