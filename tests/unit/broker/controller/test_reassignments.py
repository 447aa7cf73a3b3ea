"""Replicas move over a memory store: brokers without logs, whose leaders take followers in as soon
as they are told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from headrace.broker.controller.view import RecordChanged, ViewEvent
from headrace.broker.core import encoding, transitions
from headrace.broker.core.model import Leader, PartitionRecord, Shard, shard_of
from headrace.broker.core.transitions import Progress
from headrace.broker.store import keys
from headrace.broker.store.base import Change
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from headrace.protocol.errors import (
    BrokerNotFound,
    Conflict,
    HeadraceError,
    InvalidRequest,
    PlanRefused,
    TopicNotFound,
)
from testkit.coordination import Node, dying_at, start_node

Record = PartitionRecord


@dataclass
class Brokers:
    """Some brokers of one cluster. `held_back` ones never catch up as followers."""

    cluster: MemoryCluster
    nodes: dict[int, Node] = field(default_factory=dict)
    held_back: set[int] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    most_at_a_time: int = 0

    async def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            node = await start_node(MemoryStore(self.cluster), broker_id=broker_id)
            self.nodes[broker_id] = node
            work = asyncio.get_running_loop().create_task(self._lead(broker_id))
            self.tasks.add(work)

    async def _lead(self, broker_id: int) -> None:
        """Takes in whoever isn't in the ISR of what the broker leads, one after the other."""
        store = MemoryStore(self.cluster)
        while True:
            node = self.nodes[broker_id]
            if node.coordination.is_controller:
                self._count_copies(node)
            for name in list(node.coordination.view.topics):
                known = name in node.coordination.view.topics
                for record in node.records(name) if known else ():
                    if record.leader and record.leader.broker_id == broker_id:
                        await self._take_in(store, node, name, record)
            await asyncio.sleep(0.005)

    def _count_copies(self, node: Node) -> None:
        copying: Counter[int] = Counter()
        for name in node.coordination.view.topics:
            for record in node.records(name):
                copying.update(b for b in record.adding if record.in_isr(b) is None)
        self.most_at_a_time = max([self.most_at_a_time, *copying.values()])

    async def _take_in(self, store: MemoryStore, node: Node, name: str, known: Record) -> None:
        statuses = node.coordination.broker_statuses()
        key = keys.shard(name, shard_of(known.partition))
        item = await store.get(key)
        shard = encoding.decode_shard(item.value) if item else None
        if item is None or not isinstance(shard, Shard):
            return
        records = list(shard.records)
        record = records[known.partition % 64]
        if not isinstance(record, PartitionRecord) or record.leader is None:
            return
        for follower in record.replicas:
            if follower in self.held_back or follower not in statuses:
                continue
            step = transitions.expand(
                record,
                leader=Leader(node.coordination.broker_id, node.coordination.registration.session),
                follower=follower,
                progress=Progress(
                    leader_epoch=record.leader_epoch,
                    generation=statuses[follower].generation,
                    offset=0,
                ),
                status=statuses[follower],
                high_watermark=0,
                epoch_start_offset=0,
            )
            if isinstance(step, PartitionRecord):
                records[known.partition % 64] = step
                shard = Shard(shard.topic_id, shard.index, tuple(records), shard.term)
                await store.cas(Change(key, encoding.encode_shard(shard), item.revision))
                return

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for node in self.nodes.values():
            await node.coordination.stop(clean=False)

    def replicas(self, name: str) -> list[tuple[int, ...]]:
        return [record.replicas for record in self.any.records(name)]

    @property
    def any(self) -> Node:
        return next(iter(self.nodes.values()))

    @property
    def controller(self) -> Node:
        return next(n for n in self.nodes.values() if n.coordination.is_controller)

    def still(self, name: str) -> bool:
        """Whether nothing is left to do, as the first broker sees it."""
        topic = self.any.coordination.view.topic(name)
        moving = any(transitions.is_moving(record) for record in self.any.records(name))
        return topic is not None and not topic.moves and not moving


async def eventually(holds: Callable[[], bool], *, within_s: float = 30) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers(MemoryCluster())
    try:
        yield made
    finally:
        await made.stop()


async def with_topic(brokers: Brokers, *ids: int, partitions: int = 6, replicas: int = 2) -> None:
    await brokers.start(*ids)
    node = brokers.any.coordination
    await eventually(lambda: len(node.view.brokers) == len(ids))
    # The offsets topic grows by a plan of the controller's own, which mustn't come between.
    await eventually(lambda: {len(h) for h in brokers.replicas("__offsets")} == {min(3, len(ids))})
    await eventually(lambda: brokers.still("__offsets"))
    await node.create_topic("orders", partitions=partitions, replicas=replicas)
    brokers.most_at_a_time = 0


async def test_new_brokers_get_their_share_and_nothing_is_left_behind(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1)
    await brokers.start(2, 3)
    there = brokers.nodes[3].coordination
    asked = there.reassignments
    await eventually(
        lambda: sum(s.state == "running" for s in there.broker_statuses().values()) == 4
    )
    await eventually(lambda: there.view.topic("orders") is not None)
    await eventually(lambda: brokers.still("__offsets"))
    while True:
        try:
            await asked.apply(asked.planner().spread())
            break
        except Conflict:  # the offsets topic was grown at the same moment: plan again
            await asyncio.sleep(0.05)
    await eventually(lambda: asked.progress().total == 0)
    await eventually(lambda: brokers.still("orders"))
    await eventually(lambda: len({b for held in brokers.replicas("orders") for b in held}) == 4)
    await eventually(lambda: brokers.still("orders"))
    for record in brokers.any.records("orders"):
        assert {entry.broker_id for entry in record.isr} == set(record.replicas)


async def test_a_broker_receives_a_few_partitions_at_a_time(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, partitions=20)
    node = brokers.any.coordination
    await node.reassignments.set_limits({"reassignment.max.concurrent.moves": 2})
    await brokers.start(2)
    await eventually(lambda: len(node.reassignments.planner().spread().moves) > 5)
    await node.reassignments.apply(node.reassignments.planner().spread())
    await eventually(lambda: brokers.still("orders"))
    assert 1 <= brokers.most_at_a_time <= 2


async def test_a_drained_broker_is_empty_in_the_end_and_gets_nothing_new(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, 2)
    node = brokers.any.coordination
    await node.reassignments.set_cordoned(2, cordoned=True)
    await node.reassignments.apply(node.reassignments.planner().drain([2]))
    await eventually(lambda: brokers.still("orders"))
    assert all(2 not in held for held in brokers.replicas("orders"))
    await node.create_topic("later", partitions=6, replicas=2)
    assert all(2 not in held for held in brokers.replicas("later"))
    assert node.reassignments.is_cordoned(2)
    with pytest.raises(HeadraceError, match="live brokers"):
        await node.create_topic("three", replicas=3)
    await node.reassignments.set_cordoned(2, cordoned=False)
    await node.create_topic("three", replicas=3)


async def test_a_drain_that_would_cost_copies_is_refused_topic_by_topic(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1)
    reassignments = brokers.any.coordination.reassignments
    with pytest.raises(PlanRefused, match="orders") as refused:
        await reassignments.apply(reassignments.planner().drain([1]))
    topics = refused.value.details["topics"]
    assert isinstance(topics, dict)
    assert "orders" in topics
    assert brokers.still("orders")


async def test_another_number_of_replicas_keeps_writers_going_meanwhile(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, 2, replicas=1)
    node, seen = brokers.any.coordination, []

    def note(event: ViewEvent) -> None:
        if isinstance(event, RecordChanged) and isinstance(event.record, PartitionRecord):
            seen.append(event.record)

    node.view.listen(note)
    plan = node.reassignments.planner().factor("orders", 3)
    await node.reassignments.apply(plan)
    await eventually(lambda: brokers.still("orders"))
    assert all(len(record.isr) >= record.min_effective for record in seen)
    await eventually(lambda: all(r.min_isr == 2 for r in brokers.any.records("orders")))
    assert all(len(held) == 3 for held in brokers.replicas("orders"))
    topic = node.view.topic("orders")
    assert topic is not None
    assert topic.replicas == 3
    fewer = node.reassignments.planner().factor("orders", 1)
    await node.reassignments.apply(fewer)
    await eventually(lambda: brokers.still("orders"))
    assert all(len(held) == 1 for held in brokers.replicas("orders"))
    await eventually(lambda: all(r.min_isr == 1 for r in brokers.any.records("orders")))


async def test_cancelled_half_way_everything_goes_back_to_where_it_was(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, partitions=3)
    before = brokers.replicas("orders")
    brokers.held_back.add(2)
    await brokers.start(2)
    node = brokers.any.coordination
    wanted = {("orders", at): (2, now[0]) for at, now in enumerate(before)}
    await eventually(lambda: node.reassignments.planner().spread().moves != ())
    await node.reassignments.apply(node.reassignments.planner().by_hand(wanted))
    await eventually(lambda: all(len(held) == 3 for held in brokers.replicas("orders")))
    stuck = node.reassignments.progress()
    mine = [status for status in stuck.statuses if status.topic == "orders"]
    assert {status.state for status in mine} == {"copying"}
    assert "waiting for broker 2" in mine[0].reason
    assert "orders" in await node.reassignments.cancel()
    await eventually(lambda: brokers.still("orders"))
    assert brokers.replicas("orders") == before


async def test_a_target_that_dies_is_named_and_the_old_replicas_go_on(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, partitions=3)
    before = brokers.replicas("orders")
    brokers.held_back.add(2)
    await brokers.start(2)
    node = brokers.any.coordination
    await eventually(lambda: node.reassignments.planner().spread().moves != ())
    wanted = {("orders", at): (now[0], 2) for at, now in enumerate(before)}
    await node.reassignments.apply(node.reassignments.planner().by_hand(wanted))
    await eventually(lambda: all(len(held) == 3 for held in brokers.replicas("orders")))
    await brokers.nodes[2].coordination.stop()

    def named() -> bool:
        statuses = node.reassignments.progress().statuses
        mine = [status for status in statuses if status.topic == "orders"]
        return all("broker 2 is not live" in status.reason for status in mine)

    await eventually(named)
    assert all(record.leader is not None for record in brokers.any.records("orders"))
    await node.reassignments.cancel(["orders"])
    await eventually(lambda: brokers.still("orders"))
    assert brokers.replicas("orders") == before


async def test_a_topic_deleted_meanwhile_ends_its_part(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, partitions=3)
    brokers.held_back.add(2)
    await brokers.start(2)
    node = brokers.any.coordination
    await eventually(lambda: node.reassignments.planner().spread().moves != ())
    wanted = {("orders", at): (now[0], 2) for at, now in enumerate(brokers.replicas("orders"))}
    plan = node.reassignments.planner().by_hand(wanted)
    await node.reassignments.apply(plan)
    assert node.reassignments.progress().total >= 3
    await node.delete_topic("orders")
    brokers.held_back.clear()
    await eventually(lambda: node.reassignments.progress().total == 0)
    await node.reassignments.apply(plan)
    assert node.reassignments.progress().total == 0


async def test_a_plan_that_others_have_overtaken_is_not_taken_up(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, 2, partitions=1, replicas=1)
    reassignments = brokers.any.coordination.reassignments
    (here,) = brokers.replicas("orders")[0]
    there, elsewhere = (broker for broker in range(3) if broker != here)
    outdated = reassignments.planner().by_hand({("orders", 0): [there]})
    await reassignments.apply(reassignments.planner().by_hand({("orders", 0): [elsewhere]}))
    with pytest.raises(Conflict, match="plan again"):
        await reassignments.apply(outdated)


async def test_whoever_is_controller_next_goes_on(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, 2, partitions=12)
    first = brokers.controller
    others = [node for node in brokers.nodes.values() if node is not first]
    asked = others[0].coordination.reassignments
    leaving = first.coordination.broker_id
    await asked.apply(asked.planner().drain([leaving]))
    await eventually(lambda: not brokers.still("orders"))
    brokers.nodes = {n.coordination.broker_id: n for n in others} | {leaving: first}
    await first.coordination.stop()
    await eventually(lambda: brokers.still("orders"))
    assert all(leaving not in held for held in brokers.replicas("orders"))
    await eventually(lambda: asked.progress().total == 0)
    assert await asked.cancel() == [], "what is over isn't called off, whoever carried it out"


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("number", range(1, 14))
async def test_a_controller_that_dies_between_any_two_writes_loses_nothing(
    number: int, applied: bool
) -> None:
    """The store stops answering the one controller at each of its calls in turn; the next one
    takes up what is left."""
    brokers = Brokers(MemoryCluster())
    try:
        await with_topic(brokers, 0, 1, 2, partitions=2)
        leaving = brokers.replicas("orders")[0][1]
        asked = brokers.any.coordination.reassignments
        await asked.apply(asked.planner().drain([leaving]))
        with contextlib.suppress(HeadraceError):
            store = MemoryStore(brokers.cluster, fate=dying_at(number, applied=applied))
            dying = asked.at(store)
            await dying.round()
            await dying.round()
        await eventually(lambda: brokers.still("orders"))
        assert all(leaving not in held for held in brokers.replicas("orders"))
    finally:
        await brokers.stop()


async def test_a_cluster_shrinks_to_one_broker_with_its_offsets_topic(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1, 2, replicas=1)
    await eventually(lambda: {len(held) for held in brokers.replicas("__offsets")} == {3})
    reassignments = brokers.any.coordination.reassignments
    for broker in (2, 1):
        await reassignments.set_cordoned(broker, cordoned=True)
    await reassignments.apply(reassignments.planner().drain([1, 2]))
    await eventually(lambda: set(brokers.replicas("__offsets")) == {(0,)})
    await eventually(lambda: set(brokers.replicas("orders")) == {(0,)})
    await eventually(lambda: reassignments.progress().total == 0)
    assert reassignments.replicas_on(1) == reassignments.replicas_on(2) == 0


async def test_what_cannot_be_planned_is_said(brokers: Brokers) -> None:
    await with_topic(brokers, 0, 1)
    reassignments = brokers.any.coordination.reassignments
    with pytest.raises(BrokerNotFound):
        reassignments.planner().drain([7])
    with pytest.raises(BrokerNotFound):
        reassignments.planner().spread(brokers=[7])
    with pytest.raises(BrokerNotFound):
        await reassignments.set_cordoned(7, cordoned=True)
    with pytest.raises(BrokerNotFound):
        reassignments.planner().by_hand({("orders", 0): [0, 7]})
    with pytest.raises(TopicNotFound):
        reassignments.planner().factor("nothing", 2)
    with pytest.raises(TopicNotFound):
        await reassignments.cancel(["nothing"])
    with pytest.raises(InvalidRequest):
        reassignments.planner().factor("orders", 0)


async def test_leadership_returns_to_the_first_replica_once_it_is_in_sync(
    brokers: Brokers,
) -> None:
    await with_topic(brokers, 0, 1, partitions=4)
    node = brokers.nodes[0].coordination
    await node.reassignments.set_limits({"leader.rebalance.enable": False})
    brokers.held_back.add(1)
    await brokers.nodes[1].coordination.stop()
    brokers.nodes.pop(1)

    def led_by(broker: int) -> int:
        records = brokers.any.records("orders")
        return sum(r.leader is not None and r.leader.broker_id == broker for r in records)

    await eventually(lambda: led_by(0) == 4)
    brokers.held_back.clear()
    await brokers.start(1)
    await eventually(lambda: all(len(r.isr) == 2 for r in brokers.any.records("orders")))
    assert led_by(0) == 4, "it is switched off"
    await node.reassignments.set_limits(
        {"leader.rebalance.enable": True, "leader.rebalance.delay.ms": 1}
    )
    await eventually(lambda: led_by(0) == led_by(1) == 2)


async def test_the_offsets_topic_grows_with_the_cluster(brokers: Brokers) -> None:
    await brokers.start(0)
    assert {len(held) for held in brokers.replicas("__offsets")} == {1}
    await brokers.start(1, 2)
    await eventually(lambda: {len(held) for held in brokers.replicas("__offsets")} == {3})
    await eventually(lambda: {r.min_isr for r in brokers.any.records("__offsets")} == {2})
