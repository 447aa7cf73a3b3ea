"""Consumers as members of a group, against the in-memory cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from headrace.protocol import routes
from headrace.protocol.ids import TopicPartition
from headrace.protocol.record import Record
from headrace.sdk import Admin, Consumer, Producer
from headrace.sdk.errors import (
    BrokerUnavailable,
    Fenced,
    Forbidden,
    GroupNotEmpty,
    InstanceInUse,
    InvalidConfig,
    TopicNotFound,
    UnknownMember,
)
from headrace.sdk.reading import membership
from headrace.sdk.testing import InMemoryCluster

HEARTBEAT = routes.fill(routes.GROUP_HEARTBEAT, group="g")
FAST = {"session_timeout": 1.0, "rebalance_timeout": 2.0, "retry_backoff_ms": 5}


@pytest.fixture
async def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=4)
    async with Producer(headrace_cluster.url) as producer:
        for partition in range(4):
            await producer.send_many("t", [b"%d" % n for n in range(50)], partition=partition)
    return headrace_cluster


def member(cluster: InMemoryCluster, *topics: str, **options: object) -> Consumer:
    return Consumer(cluster.url, *(topics or ("t",)), group="g", **{**FAST, **options})  # type: ignore[arg-type]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


async def test_members_share_the_partitions_and_take_over_from_who_leaves(
    cluster: InMemoryCluster,
) -> None:
    async with member(cluster) as first:
        assert len(first.assignment) == 4
        async with member(cluster) as second:
            await until(lambda: len(second.assignment) == 2)
            assert not first.assignment & second.assignment
        await until(lambda: len(first.assignment) == 4)


async def test_no_record_is_lost_or_read_twice_while_members_come_and_go(
    cluster: InMemoryCluster,
) -> None:
    seen: list[tuple[int, int]] = []

    async def consume(count: int) -> None:
        async with member(cluster) as consumer:
            taken = 0
            async for record in consumer:
                seen.append((record.partition, record.offset))
                await asyncio.sleep(0.001)
                taken += 1
                if taken == count:
                    await consumer.commit()
                    return

    first = asyncio.create_task(consume(10_000))
    for count in (20, 30, 25):
        await consume(count)
    await until(lambda: len(seen) >= 200)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert sorted(seen) == [(p, offset) for p in range(4) for offset in range(50)]


async def test_a_partition_goes_only_when_the_program_has_finished_what_it_has_of_it(
    cluster: InMemoryCluster,
) -> None:
    revoked: list[TopicPartition] = []

    async with member(cluster, on_revoked=lambda _, gone: revoked.extend(gone)) as first:
        assert len(await first.fetch(500, timeout=1)) == 200
        async with member(cluster) as second:
            await asyncio.sleep(0.1)
            assert (second.assignment, revoked) == (frozenset(), [])
            await first.fetch(1, timeout=0)
            await until(lambda: len(second.assignment) == 2)
            assert set(revoked) == second.assignment
            assert {await second.position(where) for where in second.assignment} == {50}


async def test_a_program_that_does_not_finish_is_waited_for_half_the_rebalance_timeout(
    cluster: InMemoryCluster,
) -> None:
    async with member(cluster, rebalance_timeout=0.6) as first:
        assert len(await first.fetch(500, timeout=1)) == 200
        async with member(cluster) as second:
            await until(lambda: len(second.assignment) == 2)
            assert len(await second.fetch(500, timeout=1)) == 100, "they come again"


async def test_callbacks_may_seek_commit_and_be_async(cluster: InMemoryCluster) -> None:
    heard: list[tuple[str, int]] = []

    async def assigned(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        heard.append(("assigned", len(partitions)))
        for where in partitions:
            await consumer.seek(where, 40)

    async def revoked(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        heard.append(("revoked", len(partitions)))
        await consumer.commit(dict.fromkeys(partitions, 45), metadata="by hand")

    async with member(cluster, on_assigned=assigned, on_revoked=revoked, auto_commit=False) as one:
        found = await one.fetch(200, timeout=1)
        assert {record.offset for record in found} <= set(range(40, 50))
        async with member(cluster, auto_commit=False) as two:
            await one.fetch(1, timeout=0.1)
            await until(lambda: len(two.assignment) == 2)
            committed = await two.committed()
            assert set(committed.values()) == {45}
    assert heard[:2] == [("assigned", 4), ("revoked", 2)]
    assert sum(count for kind, count in heard if kind == "revoked") >= 4
    async with Admin(cluster.url) as admin:
        offsets = (await admin.describe_group("g")).offsets
        assert {each.metadata for each in offsets} == {"by hand"}


async def test_what_a_callback_raises_ends_the_consumer(cluster: InMemoryCluster) -> None:
    def assigned(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
        raise ZeroDivisionError("in the callback")

    consumer = member(cluster, on_assigned=assigned)
    with pytest.raises(ZeroDivisionError):
        await consumer.fetch(1, timeout=2)
    await consumer.close()


async def test_a_fatal_error_of_the_group_ends_the_iterator(cluster: InMemoryCluster) -> None:
    async with member(cluster) as consumer:
        await consumer.fetch(500, timeout=1)
        cluster.inject(Forbidden("not any more"), path=HEARTBEAT, times=100)
        with pytest.raises(Forbidden, match="not any more"):
            async for _ in consumer:
                pass
        with pytest.raises(Forbidden):
            await consumer.fetch(1, timeout=1)


async def test_passing_troubles_of_the_coordinator_are_got_over(cluster: InMemoryCluster) -> None:
    cluster.inject(BrokerUnavailable("starting"), path=HEARTBEAT, times=3)
    async with member(cluster) as consumer:
        assert len(consumer.assignment) == 4


async def test_a_member_that_was_removed_joins_again_and_hears_of_its_loss(
    cluster: InMemoryCluster,
) -> None:
    lost: list[int] = []

    async with member(cluster, on_lost=lambda _, gone: lost.append(len(gone))) as consumer:
        await consumer.fetch(10, timeout=1)
        before = consumer.assignment
        cluster.expire_members("g")
        await until(lambda: lost == [4])
        await until(lambda: consumer.assignment == before)
        assert await consumer.fetch(10, timeout=2)


async def test_nothing_is_handed_out_when_no_heartbeat_was_answered_for_a_session(
    cluster: InMemoryCluster,
) -> None:
    lost: list[int] = []

    async with member(cluster, on_lost=lambda _, gone: lost.append(len(gone))) as consumer:
        assert await consumer.fetch(1, timeout=1)
        cluster.inject(BrokerUnavailable("away"), path=HEARTBEAT, times=10_000)
        await until(lambda: lost == [4])
        assert await consumer.fetch(1, timeout=0.1) == []
        cluster.clear_faults()
        assert await consumer.fetch(1, timeout=3)


async def test_commits_of_partitions_that_are_anothers_are_fenced(cluster: InMemoryCluster) -> None:
    async with member(cluster, auto_commit=False) as first, member(cluster) as second:
        await until(lambda: len(first.assignment) == len(second.assignment) == 2)
        [other, *_] = second.assignment
        with pytest.raises(Fenced):
            await first.commit({other: 7})
        async with Admin(cluster.url) as admin:
            with pytest.raises(UnknownMember):
                await admin.alter_group_offsets("g", {other: 7})
            with pytest.raises(GroupNotEmpty):
                await admin.delete_group("g")


async def test_a_static_member_that_restarts_keeps_its_partitions(cluster: InMemoryCluster) -> None:
    moved: list[Sequence[TopicPartition]] = []

    async with member(cluster, on_revoked=lambda _, gone: moved.append(gone)) as other:
        async with member(cluster, instance_id="i") as first:
            await until(lambda: len(first.assignment) == 2)
            had = first.assignment
        moved.clear()
        async with member(cluster, instance_id="i") as again:
            assert again.assignment == had
        assert len(other.assignment) == 2
    assert moved[:-1] == [], "but for its own close nothing was taken from it"


async def test_the_later_of_two_with_one_instance_id_is_refused_while_the_first_lives(
    cluster: InMemoryCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "IN_USE_GRACE_S", 0.2)
    async with member(cluster, instance_id="i") as first:
        later = member(cluster, instance_id="i", session_timeout=0.5)
        with pytest.raises(InstanceInUse):
            await later.fetch(1)
        await later.close()
        assert "belongs to another member" in caplog.text
        assert len(first.assignment) == 4
        assert await first.fetch(1, timeout=1)


async def test_a_deleted_topic_is_told_once_and_its_successor_is_read(
    cluster: InMemoryCluster,
) -> None:
    """A program that goes on after the error must not keep its own heartbeats from being sent."""
    async with member(cluster, metadata_max_age=0.05) as consumer:
        assert await consumer.fetch(10, timeout=1)
        cluster.delete_topic("t")
        errors = 0
        async with asyncio.timeout(5):
            while consumer.assignment:
                try:
                    await consumer.fetch(500, timeout=0.1)
                except TopicNotFound:
                    errors += 1
        assert errors <= 1
        cluster.create_topic("t", partitions=1)
        async with Producer(cluster.url) as producer:
            await producer.send("t", b"new")
        found: list[Record] = []
        async with asyncio.timeout(5):
            while not found:
                try:
                    found = await consumer.fetch(1, timeout=0.1)
                except TopicNotFound:
                    errors += 1
        assert found[0].value == b"new"
        assert errors in (1, 2)


async def test_topics_of_a_pattern_come_and_go_without_an_error(cluster: InMemoryCluster) -> None:
    cluster.create_topic("orders-1", partitions=1)
    async with Consumer(
        cluster.url,
        pattern="orders-.*",
        group="g",
        **FAST,  # type: ignore[arg-type]
    ) as consumer:
        assert await consumer.fetch(1, timeout=0.05) == []
        cluster.delete_topic("orders-1")
        async with asyncio.timeout(5):
            while consumer.assignment:
                assert await consumer.fetch(1, timeout=0.05) == []


async def test_a_program_that_never_awaits_lives_on_in_its_group(cluster: InMemoryCluster) -> None:
    """Sixty records of 30 ms each are more than a session; they come in few batches."""
    lost: list[int] = []

    async with member(cluster, on_lost=lambda _, gone: lost.append(len(gone))) as consumer:
        seen = 0
        async for _ in consumer:
            time.sleep(0.03)  # noqa: ASYNC251
            seen += 1
            if seen == 60:
                break
    assert not lost


async def test_after_a_block_of_a_whole_session_nothing_more_is_handed_out(
    cluster: InMemoryCluster,
) -> None:
    lost: list[int] = []

    async with member(cluster, on_lost=lambda _, gone: lost.append(len(gone))) as consumer:
        records = aiter(consumer)
        first = await anext(records)
        time.sleep(1.2)  # noqa: ASYNC251
        second = await anext(records)
        assert lost == [4], "it is a member anew before it gets more"
        assert second.offset == first.offset == 0, "nothing was committed"


async def test_new_topics_of_a_pattern_are_read(cluster: InMemoryCluster) -> None:
    cluster.create_topic("orders-1", partitions=1)
    async with Consumer(
        cluster.url,
        pattern="orders-.*",
        group="g",
        metadata_max_age=0.05,
        **FAST,  # type: ignore[arg-type]
    ) as consumer:
        assert consumer.assignment == {("orders-1", 0)}
        cluster.create_topic("orders-2", partitions=1)
        await until(lambda: len(consumer.assignment) == 2)


async def test_a_member_may_read_other_topics_from_now_on(cluster: InMemoryCluster) -> None:
    cluster.create_topic("u", partitions=2)
    heard: list[tuple[str, int]] = []

    async with (
        member(
            cluster,
            on_assigned=lambda _, came: heard.append(("assigned", len(came))),
            on_revoked=lambda _, gone: heard.append(("revoked", len(gone))),
        ) as consumer,
        member(cluster) as other,
    ):
        await until(lambda: len(consumer.assignment) == len(other.assignment) == 2)
        with pytest.raises(TopicNotFound):
            await consumer.subscribe("nope")
        with pytest.raises(InvalidConfig):
            await consumer.subscribe("u", pattern="u")
        await consumer.subscribe("u")
        await until(lambda: consumer.assignment == {("u", 0), ("u", 1)})
        await until(lambda: len(other.assignment) == 4)
        await consumer.subscribe(pattern="[tu]")
        await until(lambda: len(consumer.assignment | other.assignment) == 6)
        await until(lambda: len(consumer.assignment) == 3 or len(other.assignment) == 4)
        await consumer.assign([("t", 1)])
        assert consumer.assignment == {("t", 1)}
        await until(lambda: len(other.assignment) == 4)
        await consumer.subscribe("u")
        await until(lambda: consumer.assignment == {("u", 0), ("u", 1)})
    assert ("assigned", 2) in heard
    assert ("revoked", 2) in heard


async def test_a_consumer_without_a_group_may_read_other_topics(cluster: InMemoryCluster) -> None:
    cluster.create_topic("u", partitions=2)
    async with Consumer(cluster.url, "t") as consumer:
        await consumer.subscribe("t", "u")
        assert len(consumer.assignment) == 6
        await consumer.subscribe("u")
        assert consumer.assignment == {("u", 0), ("u", 1)}
        with pytest.raises(InvalidConfig):
            await consumer.subscribe(pattern="t")
    async with Consumer(cluster.url) as late:
        await late.subscribe("t")
        assert len(late.assignment) == 4


async def test_broadcast_gives_everything_to_each(cluster: InMemoryCluster) -> None:
    async with (
        member(cluster, broadcast=True, instance_id="a") as first,
        member(cluster, broadcast=True) as second,
    ):
        for consumer in (first, second):
            seen = 0
            while found := await consumer.fetch(500, timeout=0.05):
                seen += len(found)
            assert seen == 200
        await first.commit()
    assert sum(cluster.committed("g.a").values()) == 200
    assert cluster.committed("g") == {}


async def test_run_lets_a_partition_go_when_its_records_are_handled(
    cluster: InMemoryCluster,
) -> None:
    handled: list[tuple[int, int]] = []

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.002)
        handled.append((record.partition, record.offset))

    async with member(cluster) as first:
        running = asyncio.create_task(first.run(handle, concurrency=4))
        await until(lambda: len(handled) > 10)
        async with member(cluster) as second:
            also = asyncio.create_task(second.run(handle, concurrency=4))
            await until(lambda: len(set(handled)) == 200)
            for task in (running, also):
                task.cancel()
            await asyncio.gather(running, also, return_exceptions=True)
    assert len(handled) == 200, "nothing was handled twice"


async def test_settings_of_groups_that_can_not_be_are_refused() -> None:
    for options in ({"instance_id": "i"}, {"pattern": "("}, {"assignor": "x", "group": "g"}):
        with pytest.raises(InvalidConfig):
            Consumer("http://x", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="exclude"):
        Consumer("http://x", "t", group="g", pattern=".*")
