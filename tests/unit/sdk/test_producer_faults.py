"""The producer against brokers and networks that fail: every acknowledged record once, in order."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from headrace.sdk import (
    Closed,
    ConnectionFailed,
    DeliveryTimeout,
    HeadraceError,
    Producer,
    RequestTimedOut,
    Throttled,
    TopicNotFound,
)
from headrace.sdk.errors import (
    Fenced,
    Forbidden,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    PayloadTooLarge,
    StorageFull,
)
from headrace.sdk.testing import InMemoryCluster

FAST: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture
def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=1)
    return headrace_cluster


def values(cluster: InMemoryCluster) -> list[bytes | None]:
    return [record.value for record in cluster.records("t")]


LOST = ConnectionFailed("lost", details={"sent": True})
FAILURES = [
    LOST,
    RequestTimedOut("no answer"),
    Throttled("slow down", retry_after_ms=5),
    NotLeader("moved"),
    NotEnoughReplicas("too few"),
    StorageFull("full"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.code)
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_retry_delivers_once(
    cluster: InMemoryCluster, error: HeadraceError, applied: bool
) -> None:
    async with Producer(cluster.url, **FAST) as producer:
        await producer.send("t", b"0")
        cluster.inject(error, times=3, applied=applied)
        metas = await producer.send_many("t", [b"1", b"2"])
        assert [meta.offset for meta in metas] == [1, 2]
        assert (await producer.send("t", b"3")).offset == 3
    assert values(cluster) == [b"0", b"1", b"2", b"3"]


async def test_one_partitions_failure_does_not_hold_up_another(
    headrace_cluster: InMemoryCluster,
) -> None:
    headrace_cluster.create_topic("two", partitions=2)
    headrace_cluster.inject(NotEnoughReplicas("too few"), times=1_000, partition=("two", 0))
    async with Producer(headrace_cluster.url, delivery_timeout=0.3, **FAST) as producer:
        stuck = producer.enqueue("two", b"v", partition=0)
        for _ in range(10):
            await producer.send("two", b"v", partition=1)
        with pytest.raises(DeliveryTimeout, match="too few"):
            await stuck


async def test_a_throttled_producer_waits_as_long_as_it_is_told(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, **FAST) as producer:
        await producer.partitions_for("t")
        cluster.inject(Throttled("slow down", retry_after_ms=150))
        began = asyncio.get_running_loop().time()
        await producer.send("t", b"v")
        assert asyncio.get_running_loop().time() - began >= 0.15


async def test_delivery_timeout_tells_the_last_error_and_the_next_record_goes(
    cluster: InMemoryCluster,
) -> None:
    async with Producer(cluster.url, delivery_timeout=0.1, **FAST) as producer:
        await producer.send("t", b"0")
        cluster.inject(NotEnoughReplicasAfterAppend("too few"), times=10_000, applied=True)
        with pytest.raises(DeliveryTimeout, match="too few") as caught:
            await producer.send("t", b"1")
        assert isinstance(caught.value.__cause__, HeadraceError)
        cluster.clear_faults()
        await producer.send("t", b"2")
    assert values(cluster) == [b"0", b"1", b"2"]


async def test_a_forgotten_producer_goes_on_under_a_new_id(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, **FAST) as producer:
        await producer.send("t", b"0")
        cluster.log("t", 0).forget_producers()
        await producer.send("t", b"1")
        await producer.send("t", b"2")
    assert values(cluster) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("error", [OutOfOrderSequence("gap"), Fenced("newer")])
async def test_a_fatal_sequence_error_fails_its_records_and_no_others(
    cluster: InMemoryCluster, error: HeadraceError
) -> None:
    async with Producer(cluster.url, **FAST) as producer:
        await producer.send("t", b"0")
        cluster.inject(RequestTimedOut("no answer"), applied=True)
        cluster.inject(error, times=2, partition=("t", 0))
        with pytest.raises(type(error)):
            await producer.send("t", b"1")
        cluster.clear_faults()
        await producer.send("t", b"2")
    assert values(cluster)[0] == b"0"
    assert values(cluster)[-1] == b"2"


async def test_errors_that_retrying_cannot_cure_are_raised_at_once(
    cluster: InMemoryCluster,
) -> None:
    async with Producer(cluster.url) as producer:
        await producer.send("t", b"0")
        cluster.inject(Forbidden("not you"))
        with pytest.raises(Forbidden):
            await producer.send("t", b"1")
        assert (await producer.send("t", b"2")).offset == 1


async def test_a_body_too_large_for_the_broker_is_sent_in_smaller_ones(
    headrace_cluster: InMemoryCluster,
) -> None:
    headrace_cluster.create_topic("two", partitions=2)
    async with Producer(headrace_cluster.url, **FAST) as producer:
        await producer.partitions_for("two")
        headrace_cluster.inject(PayloadTooLarge("too large"))
        await asyncio.gather(*[producer.send("two", b"v", partition=p) for p in range(2)])
    assert len(headrace_cluster.records("two")) == 2


async def test_a_deleted_topic_fails_what_waits_and_a_new_one_is_found(
    cluster: InMemoryCluster,
) -> None:
    async with Producer(cluster.url, **FAST) as producer:
        await producer.send("t", b"0")
        cluster.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await producer.send("t", b"1")
        cluster.create_topic("t", partitions=2)
        assert (await producer.send("t", b"2")).offset == 0


async def test_a_leader_that_moves_is_followed() -> None:
    async with InMemoryCluster(brokers=3) as cluster:
        cluster.create_topic("t", partitions=3)
        async with Producer(cluster.url, **FAST) as producer:
            for turn in range(6):
                cluster.set_leader("t", 0, turn % 3)
                assert (await producer.send("t", b"v", partition=0)).offset == turn
            cluster.set_leader("t", 0, None)
            waiting = asyncio.create_task(producer.send("t", b"v", partition=0))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            cluster.set_leader("t", 0, 2)
            assert (await waiting).offset == 6


async def test_a_leader_out_of_reach_is_reached_through_the_bootstrap_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with InMemoryCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        cluster.set_reachable(1, False)
        with caplog.at_level(logging.WARNING, logger="headrace.sdk"):
            async with Producer(cluster.url, **FAST) as producer:
                for _ in range(5):
                    await producer.send("t", b"v", partition=1)
        assert len([r for r in caplog.records if "can't be reached" in r.message]) == 1
        assert len(cluster.records("t", 1)) == 5


async def test_no_broker_at_all_ends_with_connection_failed_or_delivery_timeout() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", partitions=1)
    async with Producer(cluster.url, delivery_timeout=0.1, request_timeout=0.2, **FAST) as producer:
        await producer.send("t", b"0")
        cluster.close()
        with pytest.raises(DeliveryTimeout, match="can't be reached"):
            await producer.send("t", b"1")
        with pytest.raises(ConnectionFailed):
            await producer.send("other", b"1")


async def test_cancelled_in_the_block_the_producer_does_not_wait(cluster: InMemoryCluster) -> None:
    cluster.inject(NotEnoughReplicas("too few"), times=100_000)

    async def work() -> None:
        async with Producer(cluster.url) as producer:
            await producer.send("t", b"v")

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    task.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_handle_outlives_a_producer_closed_in_distress(cluster: InMemoryCluster) -> None:
    cluster.inject(NotEnoughReplicas("too few"), times=100_000)
    producer = Producer(cluster.url)
    handle = producer.enqueue("t", b"v")
    waiting = asyncio.ensure_future(handle)
    await asyncio.sleep(0.02)
    await producer.__aexit__(asyncio.CancelledError)
    with pytest.raises(Closed):
        await waiting


@pytest.mark.parametrize("seed", range(8))
async def test_under_random_failures_every_acknowledged_record_is_there_once_in_order(
    seed: int,
) -> None:
    chance = random.Random(seed)
    async with InMemoryCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=3)
        async with Producer(cluster.url, batch_bytes=1_024, **FAST) as producer:
            await producer.partitions_for("t")
            handles = []
            for number in range(600):
                if chance.random() < 0.1:
                    where = ("t", chance.randrange(3)) if chance.random() < 0.5 else None
                    errors = [error for error in FAILURES if where is None or error is not LOST]
                    cluster.inject(
                        chance.choice(errors), applied=chance.random() < 0.5, partition=where
                    )
                if chance.random() < 0.03:
                    cluster.set_leader("t", chance.randrange(3), chance.randrange(2))
                partition = number % 3
                handles.append(producer.enqueue("t", b"%d" % number, partition=partition))
                if chance.random() < 0.2:
                    await asyncio.sleep(0)
            metas = [await handle for handle in handles]
    for partition in range(3):
        records = cluster.records("t", partition)
        assert [record.value for record in records] == [
            b"%d" % number for number in range(partition, 600, 3)
        ]
        assert [meta.offset for meta in metas[partition::3]] == list(range(200))
