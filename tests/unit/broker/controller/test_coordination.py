"""A cluster of one, and of a few, over the memory store: what users and crashes do to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from headrace.broker.controller.view import RecordChanged, TopicChanged, TopicTombstoned
from headrace.broker.core.model import Leader
from headrace.broker.core.standing import LocalMeta, LocalState
from headrace.broker.store import keys
from headrace.broker.store.base import Applied, Change
from headrace.broker.store.memory import Call, Fate, MemoryCluster, MemoryStore
from headrace.broker.store.sqlite import SqliteStore
from headrace.protocol.errors import (
    Conflict,
    HeadraceError,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    StoreUnavailable,
    TopicExists,
    TopicNotFound,
)
from testkit.coordination import Node, Volume, dying_at, fast_time, make_node, start_node


@pytest.fixture
async def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
async def node(cluster: MemoryCluster) -> AsyncIterator[Node]:
    started = await start_node(MemoryStore(cluster))
    yield started
    await started.coordination.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_first_start_makes_the_cluster_and_its_internal_topic(node: Node) -> None:
    coordination = node.coordination
    assert coordination.is_controller
    assert coordination.controller_id == 0
    assert coordination.registration.session == 1
    offsets = coordination.view.topics["__offsets"]
    assert offsets.partition_count == 16
    assert offsets.config["cleanup.policy"] == "compact"
    assert offsets.config["unclean.leader.election.enable"] is False
    assert [r.leader for r in node.records("__offsets")] == [Leader(0, 1)] * 16


async def test_a_created_topic_is_complete_and_heard_of_when_the_call_returns(node: Node) -> None:
    topic = await node.coordination.create_topic("orders", partitions=130, config={"flush.ms": "5"})
    assert node.coordination.view.topic("orders") == topic
    assert topic.config == {"flush.ms": 5}
    assert [r.partition for r in node.records("orders")] == list(range(130))
    assert all(r.leader == Leader(0, 1) and r.min_isr == 1 for r in node.records("orders"))
    mine = [e for e in node.events if isinstance(e, (TopicChanged, RecordChanged))]
    mine = [e for e in mine if e.topic.name == "orders"]
    assert isinstance(mine[0], TopicChanged)
    assert len(mine) == 131


async def test_a_topic_is_created_once(node: Node) -> None:
    results = await asyncio.gather(
        *(node.coordination.create_topic("orders") for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(r, TopicExists) for r in results) == 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "a/b"}, InvalidName),
        ({"name": "a", "partitions": 0}, InvalidRequest),
        ({"name": "a", "partitions": 5000}, InvalidRequest),
        ({"name": "a", "replicas": 2}, InvalidConfig),
        ({"name": "a", "replicas": 0}, InvalidRequest),
        ({"name": "a", "config": {"retention": 1}}, InvalidConfig),
        ({"name": "a", "config": {"cleanup.policy": "shred"}}, InvalidConfig),
    ],
)
async def test_what_cannot_be_a_topic_is_refused_and_leaves_nothing(
    node: Node, cluster: MemoryCluster, arguments: dict[str, object], error: type[HeadraceError]
) -> None:
    before = {k for k in cluster.objects if k.startswith(("topics/", "partitions/"))}
    with pytest.raises(error):
        await node.coordination.create_topic(**arguments)  # type: ignore[arg-type]
    assert {k for k in cluster.objects if k.startswith(("topics/", "partitions/"))} == before


async def test_altering_changes_settings_and_adds_partitions(node: Node) -> None:
    coordination = node.coordination
    await coordination.create_topic("orders", partitions=60, config={"flush.ms": 5})
    altered = await coordination.alter_topic(
        "orders", config={"flush.ms": None, "retention.ms": 7}, partitions=70
    )
    assert altered.config == {"retention.ms": 7}
    assert coordination.view.topic("orders") == altered
    assert [r.partition for r in node.records("orders")] == list(range(70))
    assert all(r.leader == Leader(0, 1) for r in node.records("orders"))
    assert {r.partition_epoch for r in node.records("orders")} == {0}


async def test_altering_refuses_what_cannot_be(node: Node) -> None:
    coordination = node.coordination
    await coordination.create_topic("orders", partitions=3)
    with pytest.raises(InvalidRequest, match="only be more"):
        await coordination.alter_topic("orders", partitions=2)
    with pytest.raises(InvalidConfig, match=r"did you mean retention\.ms"):
        await coordination.alter_topic("orders", config={"retention_ms": 2})
    with pytest.raises(InvalidConfig):
        await coordination.alter_topic("orders", config={"nonsense": None})
    with pytest.raises(TopicNotFound):
        await coordination.alter_topic("absent", partitions=2)


async def test_a_deleted_topic_leaves_a_tombstone_and_frees_its_name(
    node: Node, cluster: MemoryCluster
) -> None:
    coordination = node.coordination
    first = await coordination.create_topic("orders", partitions=100)
    assert await coordination.delete_topic("orders") == first.topic_id
    assert TopicTombstoned in {type(e) for e in node.events}
    assert coordination.view.is_tombstoned(first.topic_id)
    assert coordination.view.topic("orders") is None
    assert not [key for key in cluster.objects if "orders" in key]
    with pytest.raises(TopicNotFound):
        await coordination.delete_topic("orders")
    second = await coordination.create_topic("orders", partitions=2)
    assert second.topic_id != first.topic_id
    assert len(node.records("orders")) == 2


async def test_a_killed_broker_leads_again_in_a_new_epoch_with_its_log_counted(
    cluster: MemoryCluster,
) -> None:
    first = await start_node(MemoryStore(cluster))
    await first.coordination.create_topic("orders", partitions=3)
    await first.coordination.stop(clean=False)
    again = await start_node(MemoryStore(cluster), volume=first.volume)
    for record in again.records("orders"):
        assert (record.leader, record.leader_epoch) == (Leader(0, 2), 1)
        assert record.recovery == "none"
    await again.coordination.stop()


async def test_after_a_power_cut_a_sole_replica_leads_with_possible_loss(
    cluster: MemoryCluster,
) -> None:
    first = await start_node(MemoryStore(cluster))
    await first.coordination.create_topic("orders", partitions=3)
    await first.coordination.stop(clean=False)
    first.volume.power_cut()
    again = await start_node(MemoryStore(cluster), volume=first.volume)
    assert {r.recovery for r in again.records("orders")} == {"possible_loss"}
    assert {r.leader for r in again.records("orders")} == {Leader(0, 2)}
    await again.coordination.stop()


async def test_a_broken_replica_is_out_and_its_partition_offline_while_others_go_on(
    node: Node,
) -> None:
    topic = await node.coordination.create_topic("orders", partitions=3)
    await node.coordination.mark_failed(topic.topic_id, 1)
    await node.coordination.mark_failed(topic.topic_id, 1)
    await asyncio.sleep(0.1)
    states = [(r.leader, r.isr == (), r.leader_epoch) for r in node.records("orders")]
    assert states == [(Leader(0, 1), False, 0), (None, True, 2), (Leader(0, 1), False, 0)]


async def test_a_partition_record_that_cannot_be_read_freezes_only_itself(
    cluster: MemoryCluster,
) -> None:
    first = await start_node(MemoryStore(cluster))
    await first.coordination.create_topic("orders", partitions=3)
    await first.coordination.stop(clean=False)
    key = keys.shard("orders", 0)
    item = cluster.objects[key]
    document = msgspec.json.decode(item.value)
    document["records"][0] = ["by hand"]
    raw = msgspec.json.encode(document)
    assert isinstance(cluster.apply(Change(key, raw, item.revision)), Applied)
    again = await start_node(MemoryStore(cluster), volume=first.volume)
    async with asyncio.timeout(10):
        while [r.partition for r in again.records("orders")] != [1, 2]:
            await asyncio.sleep(0.01)
    assert {r.leader for r in again.records("orders")} == {Leader(0, 2)}
    assert b'["by hand"]' in cluster.objects[key].value
    await again.coordination.stop()


async def test_records_that_go_back_in_time_are_not_believed(
    node: Node, cluster: MemoryCluster
) -> None:
    topic = await node.coordination.create_topic("orders", partitions=1)
    key = keys.shard("orders", 0)
    old = cluster.objects[key].value
    await node.coordination.mark_failed(topic.topic_id, 0)
    now = node.records("orders")
    cluster.apply(Change(key, old, cluster.objects[key].revision))
    await asyncio.sleep(0.1)
    assert node.records("orders") == now
    assert key in node.coordination.view.faults


async def test_absence_of_objects_ends_no_topic(node: Node, cluster: MemoryCluster) -> None:
    topic = await node.coordination.create_topic("orders", partitions=1)
    for key in [k for k in cluster.objects if "orders" in k]:
        cluster.apply(Change(key, None, cluster.objects[key].revision))
    await asyncio.sleep(0.1)
    assert node.coordination.view.topic("orders") == topic
    assert len(node.records("orders")) == 1


async def test_an_outage_of_the_store_changes_nothing_and_passes(cluster: MemoryCluster) -> None:
    store = MemoryStore(cluster)
    node = await start_node(store)
    await node.coordination.create_topic("orders", partitions=2)
    before = node.records("orders")
    store.outage = True
    with pytest.raises(StoreUnavailable):
        await node.coordination.create_topic("more")
    await asyncio.sleep(0.3)
    assert node.records("orders") == before
    assert node.overtaken == []
    store.outage = False
    await node.coordination.create_topic("more")
    await node.coordination.stop()


async def test_a_data_directory_of_another_cluster_or_broker_is_refused(
    cluster: MemoryCluster,
) -> None:
    node = await start_node(MemoryStore(cluster))
    meta = node.volume.state.meta
    assert meta is not None
    await node.coordination.stop()
    foreign = LocalMeta("another", 0, meta.generation, 1)
    other_id = LocalMeta(meta.cluster_id, 5, meta.generation, 1)
    for wrong, message in ((foreign, "cluster another"), (other_id, "belongs to broker 5")):
        starting = make_node(MemoryStore(cluster), volume=Volume(LocalState(meta=wrong)))
        with pytest.raises(InvalidConfig, match=message):
            await starting.coordination.start()
    empty = make_node(MemoryStore(), volume=Volume(LocalState(meta=meta)))
    with pytest.raises(InvalidConfig, match="the store is empty"):
        await empty.coordination.start()


async def test_a_second_process_with_the_same_id_is_refused_while_the_first_lives(
    cluster: MemoryCluster, node: Node
) -> None:
    second = make_node(MemoryStore(cluster))
    with pytest.raises(Conflict, match="in use by a live process"):
        await second.coordination.start()
    await second.coordination.stop(clean=False)
    assert node.overtaken == []


async def test_without_its_volume_a_start_waits_for_the_former_lease_to_stand_still(
    cluster: MemoryCluster,
) -> None:
    first = await start_node(MemoryStore(cluster))
    await first.coordination.stop(clean=False)
    clock = fast_time()
    began = clock.monotonic()
    second = await start_node(MemoryStore(cluster), clock=clock)
    assert clock.monotonic() - began >= 8
    before = first.coordination.registration.generation
    assert second.coordination.registration.generation.disk_gen == before.disk_gen + 1
    await second.coordination.stop()


async def test_a_process_whose_id_was_taken_stops_at_once(cluster: MemoryCluster) -> None:
    store = MemoryStore(cluster)
    frozen = await start_node(store)
    store.outage = True  # as if stopped: its lease stands still
    second = await start_node(MemoryStore(cluster))
    store.outage = False
    await until(lambda: bool(frozen.overtaken))
    await frozen.coordination.stop()
    assert second.overtaken == []
    await second.coordination.stop()


async def test_three_brokers_share_a_topic_and_its_leaders_move_when_one_dies(
    cluster: MemoryCluster,
) -> None:
    nodes = [await start_node(MemoryStore(cluster), broker_id=n) for n in range(3)]
    await nodes[1].coordination.create_topic("orders", partitions=6)
    await until(lambda: all(len(n.records("__offsets")) == 16 for n in nodes))
    records = nodes[1].records("orders")
    assert sorted(r.leader.broker_id for r in records if r.leader) == [0, 0, 1, 1, 2, 2]
    assert all(len(r.isr) == 3 and r.min_isr == 2 for r in records)
    assert [n.coordination.is_controller for n in nodes] == [True, False, False]
    await nodes[0].coordination.stop(clean=False)
    survivors = nodes[1:]
    await until(lambda: any(n.coordination.is_controller for n in survivors))
    await until(
        lambda: all(
            r.leader and r.leader.broker_id != 0 and len(r.isr) == 2
            for r in survivors[0].records("orders")
        )
    )
    for node in survivors:
        await node.coordination.stop()


async def test_a_draining_broker_hands_its_partitions_over(cluster: MemoryCluster) -> None:
    nodes = [await start_node(MemoryStore(cluster), broker_id=n) for n in range(2)]
    await nodes[0].coordination.create_topic("orders", partitions=4, replicas=2)
    await nodes[1].coordination.drain()
    await until(
        lambda: all(r.leader and r.leader.broker_id == 0 for r in nodes[0].records("orders"))
    )
    for node in nodes:
        await node.coordination.stop()


async def test_ten_thousand_partitions_get_leaders_in_a_few_seconds(
    cluster: MemoryCluster,
) -> None:
    first = await start_node(MemoryStore(cluster))
    for n in range(10):
        await first.coordination.create_topic(f"t{n}", partitions=1000)
    await first.coordination.stop(clean=False)
    began_s = time.process_time()
    again = await start_node(MemoryStore(cluster), volume=first.volume)
    took_s = time.process_time() - began_s
    assert all(r.leader == Leader(0, 2) for n in range(10) for r in again.records(f"t{n}"))
    assert took_s < 5, "CPU time, so that a busy machine fails nothing"
    await again.coordination.stop()


async def test_over_sqlite_everything_is_there_again_after_a_kill(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    first = await start_node(store)
    topic = await first.coordination.create_topic("orders", partitions=2000)
    await first.coordination.create_topic("gone")
    gone = await first.coordination.delete_topic("gone")
    await first.coordination.stop(clean=False)
    await store.close()
    store = await SqliteStore.open(tmp_path / "store.db")
    again = await start_node(store, volume=first.volume)
    assert again.coordination.cluster_id == first.coordination.cluster_id
    assert again.coordination.view.topic("orders") == topic
    assert {r.leader for r in again.records("orders")} == {Leader(0, 2)}
    assert again.coordination.view.is_tombstoned(gone)
    await again.coordination.stop()
    await store.close()


Scenario = Callable[[Node], Awaitable[None]]


async def _start_only(_node: Node) -> None:
    return None


async def _create(node: Node) -> None:
    await node.coordination.create_topic("orders", partitions=70)


async def _create_and_delete(node: Node) -> None:
    await node.coordination.create_topic("orders", partitions=70)
    await node.coordination.delete_topic("orders")


async def _recreate(node: Node) -> None:
    await _create_and_delete(node)
    await node.coordination.create_topic("orders", partitions=3)
    await node.coordination.alter_topic("orders", partitions=66)


@pytest.mark.parametrize("scenario", [_start_only, _create, _create_and_delete, _recreate])
async def test_a_crash_at_any_call_of_the_store_is_put_right_by_the_next_start(
    scenario: Scenario,
) -> None:
    counting = MemoryStore()
    node = await start_node(counting)
    await scenario(node)
    calls = counting.calls
    await node.coordination.stop()
    assert calls > 5
    for number in range(calls):
        for applied in (False, True):
            await _crash_and_restart(scenario, number, applied=applied)


async def _crash_and_restart(scenario: Scenario, number: int, *, applied: bool) -> None:
    cluster, volume = MemoryCluster(), Volume()
    store = MemoryStore(cluster, fate=dying_at(number, applied=applied))
    node = make_node(store, volume=volume)
    try:
        await node.coordination.start()
        await node.coordination.activate()
        await scenario(node)
    except StoreUnavailable:
        pass
    await node.coordination.stop(clean=False)
    again = await start_node(MemoryStore(cluster), volume=volume)
    coordination = again.coordination
    for name, topic in coordination.view.all_topics.items():
        assert not topic.deleting
        assert len(again.records(name)) == topic.partition_count
        me = Leader(0, coordination.registration.session)
        assert {r.leader for r in again.records(name)} == {me}
        assert {r.recovery for r in again.records(name)} == {"none"}
    assert not coordination.view.left_over_names()
    assert "__offsets" in coordination.view.topics
    if coordination.view.topic("orders") is None:
        await coordination.create_topic("orders", partitions=5)
        assert len(again.records("orders")) == 5
    await coordination.delete_topic("orders")
    assert not [key for key in cluster.objects if "orders" in key]
    await coordination.stop()


@pytest.mark.parametrize("ending", ["lost_before", "lost_after", "late"])
async def test_lost_answers_now_and_then_only_slow_things_down(ending: str) -> None:
    def fate(call: Call) -> Fate:
        if call.verb == "cas" and call.number % 3 == 0:
            return Fate(ending, late_s=0.003)  # type: ignore[arg-type]
        return Fate()

    node = await start_node(MemoryStore(fate=fate))
    topic = await node.coordination.create_topic("orders", partitions=70)
    await node.coordination.alter_topic("orders", partitions=80)
    await node.coordination.mark_failed(topic.topic_id, 3)
    assert len(node.records("orders")) == 80
    assert node.records("orders")[3].isr == ()
    await node.coordination.delete_topic("orders")
    await node.coordination.create_topic("orders", partitions=2)
    await asyncio.sleep(0.05)
    assert len(node.records("orders")) == 2
    await node.coordination.stop()


async def test_listeners_hear_what_is_known_first_and_one_that_fails_harms_nobody(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_event: object) -> None:
        raise ValueError("listener's fault")

    heard: list[object] = []
    view = node.coordination.view
    view.listen(broken)
    end = view.listen(heard.append)
    assert sum(isinstance(e, RecordChanged) for e in heard) == 16
    end()
    count = len(heard)
    await node.coordination.create_topic("orders")
    assert len(heard) == count
    assert "listener's fault" in caplog.text
