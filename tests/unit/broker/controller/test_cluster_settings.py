"""Settings of the whole cluster and batches of topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from headrace.broker.controller.topics import NewTopic
from headrace.broker.core.model import Member, TopicObject
from headrace.broker.core.topic_config import resolve
from headrace.broker.store.memory import Call, Fate, MemoryCluster, MemoryStore
from headrace.protocol.errors import InvalidConfig, InvalidName, InvalidRequest, TopicExists
from headrace.protocol.names import OFFSETS_TOPIC
from testkit.coordination import Node, start_node


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def three() -> AsyncIterator[list[Node]]:
    cluster = MemoryCluster()
    nodes = [await start_node(MemoryStore(cluster), broker_id=n) for n in range(3)]
    yield nodes
    for node in nodes:
        await node.coordination.stop(clean=False)


async def test_defaults_of_new_topics_can_be_changed_while_running(three: list[Node]) -> None:
    asked = three[1].coordination
    await asked.alter_cluster_config({"num.partitions": "2", "default.replication.factor": 1})
    topic = await asked.create_topic("orders")
    assert (topic.partition_count, topic.replicas) == (2, 1)
    await asked.alter_cluster_config({"num.partitions": None, "default.replication.factor": None})
    topic = await asked.create_topic("more")
    assert (topic.partition_count, topic.replicas) == (6, 3)


async def test_a_changed_minimum_comes_into_every_record(three: list[Node]) -> None:
    asked = three[1].coordination
    await asked.create_topic("three", partitions=2, replicas=3)
    await asked.create_topic("own", partitions=2, replicas=3, config={"min.insync.replicas": 2})
    await asked.create_topic("one", partitions=2, replicas=1)
    await asked.alter_cluster_config({"min.insync.replicas": 3})
    await until(lambda: {r.min_isr for r in three[1].records("three")} == {3})
    assert {r.min_isr for r in three[1].records("own")} == {2}
    assert {r.min_isr for r in three[1].records("one")} == {1}
    await asked.alter_cluster_config({"min.insync.replicas": None})
    await until(lambda: {r.min_isr for r in three[1].records("three")} == {2})


async def test_defaults_that_lose_records_dont_reach_the_offsets_of_groups(
    three: list[Node],
) -> None:
    asked = three[1].coordination
    await asked.create_topic("orders", partitions=2, replicas=3)
    await asked.alter_cluster_config(
        {"unclean.leader.election.enable": True, "record.ttl.ms": 1000}
    )
    await until(lambda: {r.unclean for r in three[1].records("orders")} == {True})
    assert {r.unclean for r in three[1].records(OFFSETS_TOPIC)} == {False}
    offsets, cluster = asked.view.topic(OFFSETS_TOPIC), asked.view.cluster
    assert offsets is not None
    assert cluster is not None
    assert resolve(offsets.config, cluster.config, replicas=3).record_ttl_ms == -1


async def test_who_isnt_the_controller_keeps_no_list_of_what_it_would_do(three: list[Node]) -> None:
    others = [each.coordination for each in three if not each.coordination.is_controller]
    assert len(others) == 2
    for number in range(5):
        await others[0].create_topic(f"brief-{number}", partitions=1, replicas=3)
        await others[0].delete_topic(f"brief-{number}")
    await until(lambda: all("brief-4" not in each.view.all_topics for each in others))
    assert [each._controller._dirty for each in others] == [set(), set()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_partitions": 3}, r"did you mean num\.partitions"),
        ({"nonsense": 3}, "no cluster setting"),
        ({"data.dir": "/x"}, "each broker's own setting"),
        ({"num.partitions": 0}, "num.partitions"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"leader.rebalance.enable": "maybe"}, "neither true nor false"),
        ({"min.compaction.lag.ms": 9, "max.compaction.lag.ms": 8}, "above"),
    ],
)
async def test_what_cannot_be_set_is_refused_and_changes_nothing(
    three: list[Node], changes: dict[str, str | int], message: str
) -> None:
    asked = three[0].coordination
    with pytest.raises(InvalidConfig, match=message):
        await asked.alter_cluster_config(
            {"retention.bytes": 7, **changes}, static_keys={"data.dir"}
        )
    assert asked.cluster_config == {}


async def test_a_batch_of_topics_has_an_outcome_for_each(three: list[Node]) -> None:
    asked = three[1].coordination
    await asked.create_topic("there", partitions=1)
    wanted = [
        NewTopic(name="a", partitions=70),
        NewTopic(name="there"),
        NewTopic(name="b/c"),
        NewTopic(name="d", replicas=9),
        NewTopic(name="e", config={"nonsense": 1}),
        NewTopic(name="twice"),
        NewTopic(name="twice"),
        NewTopic(name="f", partitions=3, replicas=3),
    ]
    outcomes = await asked.create_topics(wanted)
    kinds = [type(each) for each in outcomes]
    assert kinds == [
        TopicObject, TopicExists, InvalidName, InvalidConfig, InvalidConfig, InvalidRequest,
        InvalidRequest, TopicObject,
    ]  # fmt: skip
    assert len(three[1].records("a")) == 70
    assert {len(r.isr) for r in three[1].records("f")} == {3}


async def test_a_batch_costs_few_calls_of_the_store_and_is_spread_evenly(
    three: list[Node],
) -> None:
    store = three[1].coordination._store
    assert isinstance(store, MemoryStore)
    before = store.calls
    outcomes = await three[1].coordination.create_topics(
        [NewTopic(name=f"t{n}", partitions=1, replicas=1) for n in range(300)]
    )
    assert all(isinstance(each, TopicObject) for each in outcomes)
    assert store.calls - before < 30
    holders: dict[Member, int] = {}
    for n in range(300):
        for record in three[1].records(f"t{n}"):
            holders[record.isr[0]] = holders.get(record.isr[0], 0) + 1
    assert max(holders.values()) - min(holders.values()) <= 20


async def test_lost_answers_in_a_batch_only_slow_it_down() -> None:
    def fate(call: Call) -> Fate:
        return Fate("lost_after") if call.verb == "cas" and call.number % 4 == 0 else Fate()

    node = await start_node(MemoryStore(fate=fate))
    for first in range(0, 40, 10):
        outcomes = await node.coordination.create_topics(
            [NewTopic(name=f"t{first + n}", partitions=2) for n in range(10)]
        )
        assert all(isinstance(each, TopicObject) for each in outcomes), outcomes
    assert all(len(node.records(f"t{n}")) == 2 for n in range(40))
    await node.coordination.stop()
