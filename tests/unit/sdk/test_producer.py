"""The producer over the in-memory cluster: what is sent, where it goes, what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headrace.protocol import batch
from headrace.protocol.partitioner import partition_for_key
from headrace.sdk import (
    BufferFull,
    Closed,
    PartitionNotFound,
    Producer,
    RecordTooLarge,
    TopicNotFound,
    json,
)
from headrace.sdk.errors import InvalidConfig, InvalidName, InvalidRequest, InvalidTimestamp
from headrace.sdk.testing import InMemoryCluster


@pytest.fixture
def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=3)
    headrace_cluster.create_topic("one", partitions=1)
    return headrace_cluster


def values(cluster: InMemoryCluster, topic: str = "one") -> list[bytes | None]:
    return [record.value for record in cluster.records(topic)]


async def test_send_returns_where_the_record_is(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        first = await producer.send("one", b"a")
        second = await producer.send(
            "one", b"b", key=b"k", headers={"tag": b"paid", "none": None}, timestamp_ms=-5
        )
    assert (first.topic, first.partition, first.offset) == ("one", 0, 0)
    assert (second.offset, second.timestamp_ms) == (1, -5)
    record = cluster.records("one")[1]
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"b", -5)
    assert record.headers == {"tag": b"paid", "none": None}


async def test_null_and_empty_keys_and_values_stay_what_they_are(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        for key, value in [(None, None), (b"", b""), (b"k", None), (None, b"")]:
            await producer.send("one", value, key=key)
    assert [(r.key, r.value) for r in cluster.records("one")] == [
        (None, None),
        (b"", b""),
        (b"k", None),
        (None, b""),
    ]


async def test_keys_go_where_kafka_would_put_them(cluster: InMemoryCluster) -> None:
    keys = [f"key-{index}".encode() for index in range(50)]
    async with Producer(cluster.url) as producer:
        for key in keys:
            meta = await producer.send("t", b"v", key=key)
            assert meta.partition == partition_for_key(key, 3)
        metas = await producer.send_many("t", keys, keys=keys)
        assert [meta.partition for meta in metas] == [partition_for_key(key, 3) for key in keys]


async def test_records_without_a_key_reach_all_partitions_evenly(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        for _ in range(30):
            await producer.send("t", b"v")
    assert Counter(record.partition for record in cluster.records("t")) == {0: 10, 1: 10, 2: 10}


async def test_an_explicit_partition_wins_and_must_exist(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        assert (await producer.send("t", b"v", key=b"k", partition=2)).partition == 2
        for wrong in (3, -1):
            with pytest.raises(PartitionNotFound):
                await producer.send("t", b"v", partition=wrong)
            with pytest.raises(PartitionNotFound):
                producer.enqueue("t", b"v", partition=wrong)


async def test_what_piles_up_behind_a_request_leaves_together(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        await producer.partitions_for("one")
        cluster.requests.clear()
        await asyncio.gather(*[producer.send("one", b"%d" % index) for index in range(100)])
    assert len(cluster.requests) <= 2
    assert values(cluster) == [b"%d" % index for index in range(100)]


async def test_several_partitions_share_a_request(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        await producer.partitions_for("t")
        cluster.requests.clear()
        await asyncio.gather(*[producer.send("t", b"v", partition=p) for p in range(3)])
    assert list(cluster.requests) == [("POST", "/v1/produce")]


async def test_linger_waits_for_company_and_flush_does_not(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, linger_ms=5_000) as producer:
        handle = producer.enqueue("one", b"a")
        await asyncio.sleep(0.02)
        assert not handle.done()
        await producer.flush()
        assert handle.result().offset == 0
    async with Producer(cluster.url, linger_ms=20) as producer:
        cluster.requests.clear()
        sends = [asyncio.create_task(producer.send("one", b"b"))]
        await asyncio.sleep(0.005)
        sends.append(asyncio.create_task(producer.send("one", b"c")))
        await asyncio.gather(*sends)
        assert list(cluster.requests).count(("POST", "/v1/produce")) == 1


async def test_enqueue_before_the_topic_is_known_keeps_order(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        handles = [producer.enqueue("one", b"%d" % index, key=b"k") for index in range(10)]
        last = await producer.send("one", b"10")
        assert [(await handle).offset for handle in handles] == list(range(10))
        assert last.offset == 10
    assert values(cluster) == [b"%d" % index for index in range(11)]


async def test_an_unknown_topic_is_told_quickly_and_not_created(cluster: InMemoryCluster) -> None:
    async with asyncio.timeout(2):
        async with Producer(cluster.url) as producer:
            with pytest.raises(TopicNotFound, match="'nope'"):
                await producer.send("nope", b"v")
            with pytest.raises(TopicNotFound):
                await producer.send_many("nope", [b"v"])
            with pytest.raises(TopicNotFound):
                await producer.enqueue("nope", b"v")
            with pytest.raises(InvalidName):
                await producer.send("../etc", b"v")
            with pytest.raises(InvalidName):
                producer.enqueue("a/b", b"v")


async def test_flush_raises_a_failure_that_nobody_awaited_once(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        producer.enqueue("nope", b"v")
        with pytest.raises(TopicNotFound) as caught:
            await producer.flush()
        assert "1 enqueued records" in caught.value.__notes__[0]
        await producer.flush()
        producer.enqueue("nope", b"v")
        with pytest.raises(TopicNotFound):
            await producer.close()


async def test_send_many_answers_in_order_and_lazily(cluster: InMemoryCluster) -> None:
    sent = [b"%d" % index for index in range(1_000)]
    async with Producer(cluster.url, batch_bytes=2_048) as producer:
        metas = await producer.send_many("t", sent)
        assert len(metas) == 1_000
        by_place = {(r.partition, r.offset): r.value for r in cluster.records("t")}
        assert [by_place[meta.partition, meta.offset] for meta in metas] == sent
        assert metas[-1] == metas[999] == metas[998:][1]
        with pytest.raises(IndexError):
            metas[1_000]
        assert list(await producer.send_many("t", [])) == []
        assert len(await producer.send_many("t", iter([b"a", None, bytearray(b"c")]))) == 3


async def test_send_many_takes_columns(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        await producer.send_many(
            "one",
            [b"a", b"b", b"c"],
            keys=[b"1", None, b"3"],
            headers=[None, {"h": b"x"}, None],
            timestamps_ms=[30, 10, 20],
        )
        with pytest.raises(InvalidRequest, match="3 values but 2"):
            await producer.send_many("one", [b"a", b"b", b"c"], keys=[b"1", b"2"])
    assert [(r.key, r.headers, r.timestamp_ms) for r in cluster.records("one")] == [
        (b"1", {}, 30),
        (None, {"h": b"x"}, 10),
        (b"3", {}, 20),
    ]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_compression_is_the_producers_or_the_topics(
    cluster: InMemoryCluster, codec: str
) -> None:
    cluster.create_topic("packed", partitions=1, config={"compression.type": codec})
    async with Producer(cluster.url) as producer:
        await producer.send_many("packed", [b"x" * 1_000] * 10)
    async with Producer(cluster.url, compression="none") as producer:
        await producer.send_many("packed", [b"x" * 1_000] * 10)
    sizes = [len(data) for data in cluster.log("packed", 0).read(0, bytes_max=1 << 30)]
    assert sizes[0] < 1_000
    assert sizes[1] > 10_000
    assert len(cluster.records("packed")) == 20


async def test_what_compression_would_enlarge_is_sent_plain(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, compression="zstd") as producer:
        await producer.send("one", b"\x07")
    data = cluster.log("one", 0).read(0, bytes_max=1)[0]
    assert batch.read_header(data).codec == 0


async def test_a_record_of_just_the_limit_goes_and_one_byte_more_does_not(
    cluster: InMemoryCluster,
) -> None:
    cluster.create_topic("small", partitions=1, config={"max.message.bytes": 10_000})
    async with Producer(cluster.url, batch_bytes=1 << 20) as producer:
        fits = b"x" * (10_000 - len(batch.encode_records([(None, b"", 0, None)])) - 1)
        assert (await producer.send("small", fits)).offset == 0
        cluster.requests.clear()
        for size in range(len(fits) + 1, len(fits) + 30):
            with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
                await producer.send("small", b"x" * size)
        with pytest.raises(RecordTooLarge):
            producer.enqueue("small", b"x" * 10_000)
        with pytest.raises(RecordTooLarge):
            await producer.send_many("small", [b"ok", b"x" * 10_000])
    assert not [request for request in cluster.requests if "produce" in request[1]][1:]


@pytest.mark.parametrize("stamp", [-62_135_596_800_001, 253_402_300_800_000, 1 << 70])
async def test_timestamps_that_no_calendar_shows_are_refused(
    cluster: InMemoryCluster, stamp: int
) -> None:
    async with Producer(cluster.url) as producer:
        with pytest.raises(InvalidTimestamp):
            await producer.send("one", b"v", timestamp_ms=stamp)


async def test_wrong_types_say_what_to_do(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        with pytest.raises(TypeError, match="value_serializer="):
            await producer.send("one", "text")
        with pytest.raises(TypeError, match="key_serializer="):
            producer.enqueue("one", b"v", key=1)
        with pytest.raises(TypeError, match="header 'h'"):
            await producer.send("one", b"v", headers={"h": "text"})
        with pytest.raises(TypeError, match="timestamp_ms"):
            await producer.send("one", b"v", timestamp_ms=1.5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="value_serializer="):
            await producer.send_many("one", [b"v", 3])
        await producer.send("one", memoryview(b"view"))
    assert values(cluster)[-1] == b"view"


async def test_a_bytearray_is_copied_when_it_is_handed_over(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        data = bytearray(b"before")
        handle = producer.enqueue("one", data)
        data[:] = b"after!"
        await handle
    assert values(cluster) == [b"before"]


async def test_serializers_are_functions_or_modules(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, value_serializer=json, key_serializer=str.encode) as producer:
        await producer.send("one", {"a": 1}, key="k")
        await producer.send("one", None)
        await producer.send_many("one", [[1], "x"])
    assert values(cluster) == [b'{"a":1}', None, b"[1]", b'"x"']
    with pytest.raises(InvalidConfig, match="value_serializer"):
        Producer(cluster.url, value_serializer=3)  # type: ignore[arg-type]


async def test_a_full_buffer_makes_enqueue_raise_and_send_wait(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, buffer_bytes=4_096, batch_bytes=1_024) as producer:
        await producer.partitions_for("one")
        sent = 0
        with pytest.raises(BufferFull, match="ready"):  # noqa: PT012
            for _ in range(100):
                producer.enqueue("one", b"x" * 100)
                sent += 1
        assert 20 < sent < 40
        await producer.ready()
        producer.enqueue("one", b"x" * 100)
        await asyncio.gather(*[producer.send("one", b"x" * 1_000) for _ in range(20)])
        await producer.send("one", b"x" * 10_000)  # Larger than the buffer: alone, it may.
        await producer.send_many("one", [b"x" * 100] * 1_000)
    assert len(values(cluster)) == sent + 1 + 20 + 1 + 1_000


async def test_acks_0_does_not_wait_and_knows_no_offset(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, acks=0) as producer:
        assert (await producer.send("one", b"v")).offset == -1
        await producer.flush()
        assert values(cluster) == [b"v"]


async def test_cancelling_a_send_leaves_the_producer_in_order(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url) as producer:
        await producer.send("one", b"0")
        task = asyncio.create_task(producer.send("one", b"1"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await producer.send("one", b"2")).offset in (1, 2)


async def test_a_closed_producer_says_so(cluster: InMemoryCluster) -> None:
    producer = Producer(cluster.url)
    await producer.send("one", b"v")
    await producer.close()
    await producer.close()
    with pytest.raises(Closed):
        await producer.send("one", b"v")
    with pytest.raises(Closed):
        producer.enqueue("one", b"v")


async def test_close_delivers_what_was_enqueued(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, linger_ms=1_000) as producer:
        producer.enqueue("one", b"v")
        producer.enqueue("t", b"w")
    assert values(cluster) == [b"v"]
    assert values(cluster, "t") == [b"w"]


async def test_two_settings_in_conflict_are_named(cluster: InMemoryCluster) -> None:
    for options in (
        {"acks": 2},
        {"acks": True},
        {"compression": "gzip"},
        {"buffer_bytes": 1},
        {"linger_ms": 200_000},
        {"route": "x"},
        {"client_id": "a\nb"},
    ):
        with pytest.raises(InvalidConfig, match=next(iter(options))):
            Producer(cluster.url, **options)
    for address in ("", "localhost:9420", "ftp://x"):
        with pytest.raises(InvalidConfig, match="bootstrap"):
            Producer(address)


async def test_added_partitions_are_used_once_metadata_is_old(cluster: InMemoryCluster) -> None:
    from headrace.sdk import Admin

    async with Producer(cluster.url, metadata_max_age=0.0) as producer:
        await producer.send("one", b"v")
        async with Admin(cluster.url) as admin:
            await admin.alter_topic("one", partitions=4)
        await producer.send("one", b"v")
        await asyncio.sleep(0.05)
        assert (await producer.send("one", b"v", partition=3)).partition == 3


async def test_records_of_a_topic_not_looked_up_yet_fail_when_the_program_is_interrupted(
    cluster: InMemoryCluster,
) -> None:
    producer = Producer(cluster.url)
    handle = producer.enqueue("t", b"value")
    await producer.__aexit__(asyncio.CancelledError)
    with pytest.raises(Closed):
        handle.result()


async def test_many_keyed_records_for_one_partition_keep_keys_and_order(
    cluster: InMemoryCluster,
) -> None:
    values = [None if index % 7 == 0 else b"%d" % index * (index % 50) for index in range(3000)]
    keys = [None if index % 11 == 0 else b"k%d" % index for index in range(3000)]
    async with Producer(cluster.url, batch_bytes=4096) as producer:
        await producer.send_many("t", [b"before"], partition=2)
        metas = await producer.send_many("t", values, keys=iter(keys), partition=2)
        assert [meta.offset for meta in metas] == list(range(1, 3001))
        with pytest.raises(InvalidRequest):
            await producer.send_many("t", [b"v"], keys=[], partition=2)
    found = [(each.key, each.value) for each in cluster.records("t") if each.partition == 2]
    assert found[1:] == list(zip(keys, values, strict=True))
    async with Producer(cluster.url, key_serializer=json) as producer:
        await producer.send_many("one", [b"v"], keys=["text"], partition=0)
    assert cluster.records("one")[0].key == b'"text"'
