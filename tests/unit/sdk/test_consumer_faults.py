"""The consumer against failures: nothing twice, nothing missing, one bad partition alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from headrace.protocol import routes
from headrace.sdk import (
    Admin,
    ConnectionFailed,
    Consumer,
    CorruptBatch,
    OffsetOutOfRange,
    Producer,
    Record,
    RequestTimedOut,
    TopicNotFound,
)
from headrace.sdk.errors import BrokerUnavailable, Forbidden, NotLeader, StoreUnavailable
from headrace.sdk.testing import InMemoryCluster

FAST: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture
async def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=2)
    async with Producer(headrace_cluster.url) as producer:
        for number in range(3):
            for partition in range(2):
                values = [b"%d" % number] * 10
                await producer.send_many("t", values, partition=partition)
    return headrace_cluster


@pytest.mark.parametrize(
    "error",
    [
        ConnectionFailed("lost", details={"sent": True}),
        RequestTimedOut("no answer"),
        NotLeader("moved"),
        BrokerUnavailable("starting"),
    ],
    ids=lambda error: error.code,
)
async def test_what_may_pass_is_retried_silently(
    cluster: InMemoryCluster, error: ConnectionFailed
) -> None:
    cluster.inject(error, path=routes.FETCH, times=3)
    async with Consumer(cluster.url, "t", **FAST) as consumer:
        found: list[int] = []
        while len(found) < 60:
            found += [record.partition for record in await consumer.fetch(timeout=5)]
        assert consumer.problems == {}


async def test_an_offline_partition_shows_in_problems_and_the_rest_goes_on(
    cluster: InMemoryCluster,
) -> None:
    cluster.set_offline("t", 0, True)
    async with Consumer(cluster.url, "t", **FAST) as consumer:
        first = await consumer.fetch(100, timeout=5)
        assert {record.partition for record in first} == {1}
        await asyncio.sleep(0.02)
        assert [error.code for error in consumer.problems.values()] == ["partition_offline"]  # type: ignore[attr-defined]
        cluster.set_offline("t", 0, False)
        assert {r.partition for r in await consumer.fetch(100, timeout=5)} == {0}
        assert consumer.problems == {}


async def test_a_corrupt_batch_is_raised_once_with_its_offsets(cluster: InMemoryCluster) -> None:
    cluster.log("t", 0).damage(1)
    async with Consumer(cluster.url, "t") as consumer:
        await consumer.assign([("t", 0)])
        assert len(await consumer.fetch(100, timeout=5)) == 10
        with pytest.raises(CorruptBatch, match="offsets 10 to 19") as caught:
            await consumer.fetch(100, timeout=5)
        assert caught.value.details == {"first_offset": 10, "last_offset": 19}
        assert await consumer.position(("t", 0)) == 10
        await consumer.seek(("t", 0), 20)
        assert [record.offset for record in await consumer.fetch(100, timeout=5)] == list(
            range(20, 30)
        )


async def test_a_corrupt_batch_does_not_stop_the_other_partition(cluster: InMemoryCluster) -> None:
    cluster.log("t", 0).damage(0)
    async with Consumer(cluster.url, "t") as consumer:
        found, errors = list[Record](), 0
        while len(found) < 30:
            try:
                found += await consumer.fetch(100, timeout=5)
            except CorruptBatch:
                errors += 1
        assert errors == 1
        assert {record.partition for record in found} == {1}
        assert list(consumer.problems) == [("t", 0)]


async def test_corrupt_batches_can_be_skipped(
    cluster: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.log("t", 0).damage(1)
    async with Consumer(cluster.url, on_corrupt="skip") as consumer:
        await consumer.assign([("t", 0)])
        offsets = [record.offset for record in await consumer.fetch(100, timeout=5)]
    assert offsets == [*range(10), *range(20, 30)]
    assert "offsets 10 to 19" in caplog.text


async def test_an_offset_that_is_gone_follows_offset_reset(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url) as admin:
        await admin.alter_group_offsets("g", {("t", 0): 5, ("t", 1): 5})
        await admin.delete_records({("t", 0): 20})
    async with Consumer(cluster.url, group="g", **FAST) as consumer:
        await consumer.assign([("t", 0)])
        assert (await consumer.fetch(1, timeout=5))[0].offset == 20
    async with Admin(cluster.url) as admin:
        await admin.alter_group_offsets("g", {("t", 0): 5})
    async with Consumer(cluster.url, group="g", offset_reset="error", **FAST) as consumer:
        await consumer.assign([("t", 0)])
        with pytest.raises(OffsetOutOfRange, match="offset_reset"):
            await consumer.fetch(1, timeout=5)
        with pytest.raises(OffsetOutOfRange):
            await consumer.fetch(1, timeout=5)
        await consumer.seek_to_earliest()
        assert (await consumer.fetch(1, timeout=5))[0].offset == 20


async def test_a_topic_created_again_is_told_apart(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "t", group="g", **FAST) as consumer:
        while await consumer.fetch(100, timeout=0.05):
            pass
        await consumer.commit()
        cluster.delete_topic("t")
        cluster.create_topic("t", partitions=2)
        with pytest.raises(TopicNotFound, match="created again"):
            await consumer.fetch(timeout=5)
    async with Consumer(cluster.url, "t", group="g", **FAST) as consumer:
        assert await consumer.position(("t", 0)) == 0


async def test_a_deleted_topic_is_told(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "t", offset_reset="latest", **FAST) as consumer:
        waiting = asyncio.create_task(consumer.fetch())
        await asyncio.sleep(0.02)
        cluster.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(waiting, 5)


async def test_who_may_not_read_is_told(cluster: InMemoryCluster) -> None:
    cluster.inject(Forbidden("not you"), path=routes.FETCH, times=10)
    async with Consumer(cluster.url, "t") as consumer:
        with pytest.raises(Forbidden):
            await consumer.fetch(timeout=5)


async def test_the_start_is_retried(cluster: InMemoryCluster) -> None:
    cluster.inject(StoreUnavailable("wait"), path="/v1/topics/t", method="GET", times=2)
    cluster.inject(BrokerUnavailable("starting"), path=routes.OFFSETS, times=2)
    cluster.inject(BrokerUnavailable("starting"), path="/v1/groups/g/offsets", method="GET")
    cluster.inject(BrokerUnavailable("starting"), path="/v1/groups/g/offsets")
    async with Consumer(cluster.url, "t", group="g", **FAST) as consumer:
        assert await consumer.fetch(timeout=5)
        await consumer.commit()
    assert sum(cluster.committed("g").values()) == 60


async def test_a_partition_offline_at_the_start_does_not_hold_up_the_others(
    cluster: InMemoryCluster,
) -> None:
    cluster.set_offline("t", 0, True)
    async with asyncio.timeout(5):
        async with Consumer(cluster.url, "t", **FAST) as consumer:
            assert {r.partition for r in await consumer.fetch(100)} == {1}
            assert await consumer.position(("t", 0)) is None
            cluster.set_offline("t", 0, False)
            assert {r.partition for r in await consumer.fetch(100)} == {0}


async def test_many_partitions_that_come_and_go_share_few_polls() -> None:
    async with InMemoryCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=20)
        async with Consumer(cluster.url, "t") as consumer, Producer(cluster.url) as producer:
            for number in range(60):
                await producer.send("t", b"%d" % number, partition=number % 20)
                assert [r.value for r in await consumer.fetch(timeout=5)] == [b"%d" % number]


@pytest.mark.parametrize("seed", range(8))
async def test_under_random_failures_every_record_comes_once_in_order(seed: int) -> None:
    chance = random.Random(seed)
    async with InMemoryCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=3)
        async with Producer(cluster.url, batch_bytes=1_024, **FAST) as producer:
            await producer.send_many("t", [b"v" * 20] * 900)
        sizes = {(r.partition, r.offset) for r in cluster.records("t")}
        seen: list[tuple[int, int]] = []
        async with Consumer(
            cluster.url, "t", partition_bytes=2_048, fetch_bytes=4_096, **FAST
        ) as consumer:
            while len(seen) < 900:
                if chance.random() < 0.3:
                    error = chance.choice(
                        [ConnectionFailed("lost"), RequestTimedOut("late"), NotLeader("moved")]
                    )
                    cluster.inject(error, path=routes.FETCH)
                if chance.random() < 0.1:
                    cluster.set_leader("t", chance.randrange(3), chance.randrange(2))
                found = await consumer.fetch(chance.randrange(1, 100), timeout=5)
                seen += [(record.partition, record.offset) for record in found]
        for partition in range(3):
            offsets = [offset for number, offset in seen if number == partition]
            assert offsets == sorted(offsets)
        assert len(seen) == 900
        assert set(seen) == sizes
