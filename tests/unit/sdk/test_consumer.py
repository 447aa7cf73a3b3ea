"""The consumer over the in-memory cluster: order, positions, commits, seeks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from headrace.protocol import batch as batches
from headrace.sdk import (
    Admin,
    Closed,
    Consumer,
    OffsetOutOfRange,
    PartitionNotFound,
    Producer,
    Record,
    TopicNotFound,
    TopicPartition,
    json,
)
from headrace.sdk.errors import InvalidConfig, InvalidRequest
from headrace.sdk.testing import InMemoryCluster


@pytest.fixture
async def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=3)
    headrace_cluster.create_topic("one", partitions=1)
    async with Producer(headrace_cluster.url) as producer:
        for start in range(0, 30, 10):
            numbers = range(start, start + 10)
            await producer.send_many(
                "one", [b"%d" % n for n in numbers], timestamps_ms=[n * 1_000 for n in numbers]
            )
    return headrace_cluster


async def take(consumer: Consumer, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(5):
        async for record in consumer:
            found.append(record)
            if len(found) == count:
                break
    return found


async def test_records_come_in_order_with_all_their_fields(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        await producer.send("one", None, key=b"k", headers={"h": None}, timestamp_ms=7)
    async with Consumer(cluster.url, "one") as consumer:
        records = await take(consumer, 31)
    assert [record.offset for record in records] == list(range(31))
    assert records[5] == Record("one", 0, 5, None, b"5", 5_000, {})
    assert records[30] == Record("one", 0, 30, b"k", None, 7, {"h": None})


async def test_fetch_gives_at_most_what_is_asked_for_and_waits_for_the_first(
    cluster: InMemoryCluster,
) -> None:
    async with Consumer(cluster.url, "one") as consumer:
        assert len(await consumer.fetch(max_records=7)) == 7
        assert len(await consumer.fetch(max_records=100, timeout=1)) == 23
        began = asyncio.get_running_loop().time()
        assert await consumer.fetch(timeout=0.05) == []
        assert asyncio.get_running_loop().time() - began >= 0.04
        assert await consumer.fetch(timeout=0) == []
        waiting = asyncio.create_task(consumer.fetch(timeout=5))
        await asyncio.sleep(0.01)
        async with Producer(cluster.url) as producer:
            await producer.send("one", b"late")
        assert [record.value for record in await waiting] == [b"late"]
        with pytest.raises(InvalidRequest):
            await consumer.fetch(0)


async def test_fetch_with_timeout_zero_gets_there(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one") as consumer:
        found: list[Record] = []
        for _ in range(1_000):
            found += await consumer.fetch(timeout=0)
        assert len(found) == 30


async def test_fetch_goes_on_where_async_for_stopped(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one") as consumer:
        await take(consumer, 3)
        assert (await consumer.fetch(2))[0].offset == 3
        assert (await take(consumer, 1))[0].offset == 5
        assert await consumer.position(("one", 0)) == 6


async def test_partitions_take_turns(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        for _ in range(5):
            for partition in range(3):
                await producer.send("t", b"v", partition=partition)
    async with Consumer(cluster.url, "t") as consumer:
        await consumer.fetch(1)
        await asyncio.sleep(0.02)
        order = [record.partition for record in await take(consumer, 14)]
    assert {frozenset(order[i : i + 3]) for i in range(0, 12, 3)} == {frozenset({0, 1, 2})}


async def test_offset_reset_says_where_to_begin(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one", offset_reset="latest") as consumer:
        assert await consumer.position(("one", 0)) == 30
    with pytest.raises(OffsetOutOfRange, match="no committed offset"):
        async with Consumer(cluster.url, "one", offset_reset="error", group="g"):
            pass


async def test_a_group_goes_on_where_it_committed(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one", group="g", auto_commit=False) as consumer:
        await take(consumer, 4)
        await consumer.commit()
        assert cluster.committed("g") == {("one", 0): 4}
        await take(consumer, 4)
        await consumer.commit({("one", 0): 6}, metadata="half")
        assert await consumer.committed() == {TopicPartition("one", 0): 6}
        assert await consumer.committed(("one", 0), ("t", 1)) == {("one", 0): 6, ("t", 1): None}
    async with Consumer(cluster.url, "one", group="g") as consumer:
        assert (await take(consumer, 1))[0].offset == 6


async def test_auto_commit_counts_a_record_once_the_next_is_asked_for(
    cluster: InMemoryCluster,
) -> None:
    async with Consumer(cluster.url, "one", group="g") as consumer:
        await take(consumer, 5)
    assert cluster.committed("g") == {("one", 0): 4}
    async with Consumer(cluster.url, "one", group="g") as consumer:
        assert (await consumer.fetch(3))[0].offset == 4
    assert cluster.committed("g") == {("one", 0): 4}
    async with Consumer(cluster.url, "one", group="g") as consumer:
        await consumer.fetch(3)
        await consumer.fetch(3)
    assert cluster.committed("g") == {("one", 0): 7}


async def test_auto_commit_happens_in_the_background(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one", group="g", auto_commit_interval=0.01) as consumer:
        await take(consumer, 11)
        await asyncio.sleep(0.05)
        assert cluster.committed("g") == {("one", 0): 10}


async def test_an_exception_in_the_loop_leaves_its_record_uncommitted(
    cluster: InMemoryCluster,
) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with Consumer(cluster.url, "one", group="g") as consumer:
            async for record in consumer:
                if record.offset == 3:
                    raise ZeroDivisionError
    assert cluster.committed("g") == {("one", 0): 3}


async def test_without_a_group_nothing_can_be_committed(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one") as consumer:
        with pytest.raises(InvalidRequest, match="group="):
            await consumer.commit()
        with pytest.raises(InvalidRequest, match="group="):
            await consumer.committed()


async def test_seek_takes_effect_at_once(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one") as consumer:
        seen = []
        async with asyncio.timeout(5):
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 2 and len(seen) == 3:
                    await consumer.seek(("one", 0), 20)
                if record.offset == 21:
                    break
        assert seen == [0, 1, 2, 20, 21]
        await consumer.seek_to_earliest()
        assert (await consumer.fetch(1))[0].offset == 0
        await consumer.seek_to_latest(("one", 0))
        assert await consumer.position(("one", 0)) == 30
        await consumer.seek_to_time(datetime.fromtimestamp(12.5, tz=UTC))
        assert (await consumer.fetch(1))[0].offset == 13
        await consumer.seek(("one", 0), datetime.fromtimestamp(1e6, tz=UTC))
        assert await consumer.position(("one", 0)) == 30
        with pytest.raises(PartitionNotFound):
            await consumer.seek(("one", 1), 0)
        with pytest.raises(InvalidRequest):
            await consumer.seek(("one", 0), -1)


async def test_seek_while_a_long_poll_is_parked_is_not_held_up(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one", offset_reset="latest") as consumer:
        assert await consumer.fetch(timeout=0.02) == []
        await consumer.seek(("one", 0), 29)
        async with asyncio.timeout(1):
            assert [record.offset for record in await consumer.fetch()] == [29]


async def test_pause_holds_records_back_and_resume_gives_them(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one") as consumer:
        await take(consumer, 3)
        await consumer.pause()
        assert consumer.paused == {("one", 0)}
        assert await consumer.fetch(timeout=0.02) == []
        waiting = asyncio.create_task(consumer.fetch(100))
        await asyncio.sleep(0.01)
        await consumer.resume(("one", 0))
        assert (await waiting)[0].offset == 3


async def test_pausing_in_the_loop_stops_that_partition_there(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        for partition in range(2):
            await producer.send_many("t", [b"v"] * 5, partition=partition)
    async with Consumer(cluster.url, "t") as consumer:
        seen = []
        async with asyncio.timeout(5):
            async for record in consumer:
                seen.append((record.partition, record.offset))
                if len(seen) == 2:
                    paused = record.partition
                    await consumer.pause(("t", paused))
                if len(seen) == 7:
                    break
        assert [offset for partition, offset in seen if partition == paused] == [0, 1]
        await consumer.resume()
        assert [record.offset for record in await consumer.fetch(10)] == [2, 3, 4]


async def test_assign_reads_just_those_partitions(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        for partition in range(3):
            await producer.send("t", b"v", partition=partition)
    async with Consumer(cluster.url) as consumer:
        with pytest.raises(InvalidRequest, match="nothing to read"):
            await consumer.fetch(timeout=1)
        await consumer.assign([("t", 1)])
        assert [record.partition for record in await consumer.fetch()] == [1]
        await consumer.assign([("t", 1), ("t", 2)])
        assert consumer.assignment == {("t", 1), ("t", 2)}
        assert [record.partition for record in await consumer.fetch()] == [2]
        with pytest.raises(PartitionNotFound):
            await consumer.assign([("t", 9)])
        with pytest.raises(TopicNotFound):
            await consumer.assign([("nope", 0)])


async def test_lag_is_the_distance_to_the_end(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one", "t") as consumer:
        await consumer.fetch(10)
        assert await consumer.lag() == {("one", 0): 20, ("t", 0): 0, ("t", 1): 0, ("t", 2): 0}


async def test_deserializers_and_a_record_that_they_can_not_read(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        await producer.send_many("t", [b"1", b"{", None, b"[2]"], partition=0)
    async with Consumer(cluster.url, "t", value_deserializer=json, group="g") as consumer:
        assert [record.value for record in await consumer.fetch(timeout=1)] == [1]  # type: ignore[comparison-overlap]
        with pytest.raises(ValueError) as caught:
            await consumer.fetch(timeout=1)
        assert "await consumer.seek(('t', 0), 2)" in caught.value.__notes__[0]
        assert list(consumer.problems) == [("t", 0)]
        assert await consumer.position(("t", 0)) == 1
        await consumer.seek(("t", 0), 2)
        assert [record.value for record in await consumer.fetch(timeout=1)] == [None, [2]]  # type: ignore[comparison-overlap]
        assert consumer.problems == {}


async def test_raw_batches_come_as_they_are(cluster: InMemoryCluster) -> None:
    async with Consumer(cluster.url, "one") as consumer:
        await take(consumer, 3)
        found = await consumer.fetch_batches(max_bytes=1)
        assert [(b.header.base_offset, b.first_offset) for b in found] == [(0, 3)]
        columns = batches.decode_columns(found[0].data, found[0].header)
        assert columns.values is not None
        assert columns.values[3] == b"3"
        assert [b.header.base_offset for b in await consumer.fetch_batches()] == [10, 20]
        assert await consumer.fetch_batches(timeout=0.01) == []
        assert await consumer.position(("one", 0)) == 30


async def test_run_keeps_the_order_of_each_key(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        keys = [b"%d" % (n % 7) for n in range(300)]
        await producer.send_many("t", [b"%d" % n for n in range(300)], keys=keys)
    seen: dict[bytes, list[int]] = {}
    most = running = 0
    done = asyncio.Event()

    async def handle(record: Record) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        assert record.key is not None
        assert record.value is not None
        await asyncio.sleep(0.0005 * (int(record.value) % 3))
        seen.setdefault(record.key, []).append(int(record.value))
        running -= 1
        if sum(map(len, seen.values())) == 300:
            done.set()

    async with Consumer(cluster.url, "t", group="g") as consumer:
        task = asyncio.create_task(consumer.run(handle, concurrency=4))
        await asyncio.wait_for(done.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert 1 < most <= 4
    assert sum(cluster.committed("g").values()) == 300


async def test_run_commits_only_what_was_handled_and_raises_the_handlers_error(
    cluster: InMemoryCluster,
) -> None:
    def handle(record: Record) -> None:
        if record.offset == 17:
            raise ZeroDivisionError

    async with Consumer(cluster.url, "one", group="g") as consumer:
        with pytest.raises(ZeroDivisionError):
            await consumer.run(handle, concurrency=1)
        assert await consumer.position(("one", 0)) == 17
    assert cluster.committed("g") == {("one", 0): 17}


async def test_partitions_added_later_are_read_from_their_beginning(
    cluster: InMemoryCluster,
) -> None:
    async with (
        Consumer(cluster.url, "one", offset_reset="latest", metadata_max_age=0.02) as consumer,
        Producer(cluster.url) as producer,
        Admin(cluster.url) as admin,
    ):
        await consumer.fetch(timeout=0)
        await admin.alter_topic("one", partitions=2)
        cluster.log("one", 1)
        async with Producer(cluster.url) as late:
            await late.send("one", b"new", partition=1)
        assert [r.value for r in await consumer.fetch(timeout=5)] == [b"new"]
        assert producer is not None


async def test_prefetch_is_bounded(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, batch_bytes=10_000) as producer:
        await producer.send_many("t", [b"x" * 1_000] * 500, partition=0)
    async with Consumer(
        cluster.url, "t", partition_bytes=20_000, fetch_bytes=20_000, prefetch_bytes=20_000
    ) as consumer:
        await consumer.fetch(1)
        await asyncio.sleep(0.05)
        asked = sum(path == "/v1/fetch" for _, path in cluster.requests)
        assert asked <= 6
        assert len([record async for record in _upto(consumer, 499)]) == 499


async def _upto(consumer: Consumer, count: int) -> AsyncIterator[Record]:
    async for record in consumer:
        yield record
        count -= 1
        if not count:
            return


async def test_an_unknown_topic_is_told_at_the_start(cluster: InMemoryCluster) -> None:
    with pytest.raises(TopicNotFound):
        async with Consumer(cluster.url, "nope"):
            pass


async def test_a_closed_consumer_says_so_and_wakes_who_waits(cluster: InMemoryCluster) -> None:
    consumer = Consumer(cluster.url, "t")
    waiting = asyncio.create_task(consumer.fetch())
    await asyncio.sleep(0.02)
    await consumer.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await consumer.fetch()
    await consumer.close()
    await Consumer(cluster.url, "t").close()


async def test_settings_that_can_not_be_are_refused(cluster: InMemoryCluster) -> None:
    for options in ({"offset_reset": "x"}, {"on_corrupt": "x"}, {"partition_bytes": 1 << 40}):
        with pytest.raises(InvalidConfig, match=next(iter(options))):
            Consumer(cluster.url, "t", **options)
