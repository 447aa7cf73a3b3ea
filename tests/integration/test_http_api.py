"""The normal life of every endpoint over real HTTP, and what of it a SIGKILL must not undo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol import batch, framing, requests, routes
from headrace.protocol.models import TopicInfo
from testkit.brokers import BrokerProcess
from testkit.http import Http, eventually, fetch_decoder, one_batch

SEALED = batch.ASSIGNED_BYTES
"""From here on a batch's bytes are the producer's."""


@pytest.fixture
async def http(broker: BrokerProcess) -> AsyncIterator[Http]:
    async with Http(broker.url) as client:
        yield client


@pytest.fixture
async def topic(http: Http) -> TopicInfo:
    return await http.topic(partitions=2)


def records_path(topic: TopicInfo) -> str:
    return routes.fill(routes.RECORDS, topic=topic.name)


def partition_path(topic: TopicInfo, partition: int = 0) -> str:
    return routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=partition)


def topic_path(topic: TopicInfo) -> str:
    return routes.fill(routes.TOPIC, topic=topic.name)


# --- cluster --------------------------------------------------------------------------------------


async def test_the_cluster_and_its_broker_describe_themselves(
    http: Http, broker: BrokerProcess
) -> None:
    cluster = await http.good("GET", routes.CLUSTER)
    assert [each["url"] for each in cluster["brokers"]] == [broker.url]
    assert cluster["controller_id"] == 0
    assert (await http.good("GET", routes.BROKERS))["brokers"] == cluster["brokers"]
    detail = await http.good("GET", routes.fill(routes.BROKER, broker_id=0))
    assert (detail["state"], detail["storage_full"], detail["recovering"]) == (
        "running", False, None,
    )  # fmt: skip
    assert detail["led_partitions"] >= 16
    missing = await http.call("GET", routes.fill(routes.BROKER, broker_id=7))
    assert (missing.status, missing.code) == (404, "broker_not_found")


# --- topics ---------------------------------------------------------------------------------------


async def test_a_topic_is_made_found_listed_and_deleted(http: Http) -> None:
    made = await http.good("POST", routes.TOPICS, {"name": "orders", "partitions": 3})
    assert [each["leader"] for each in made["partitions"]] == [0, 0, 0]
    assert await http.good("GET", "/v1/topics/orders") == made
    again = await http.call("POST", routes.TOPICS, json={"name": "orders"})
    assert (again.status, again.code) == (409, "topic_exists")
    names = [each["name"] for each in (await http.good("GET", routes.TOPICS))["topics"]]
    assert "orders" in names
    assert "__offsets" not in names
    listed = await http.good("GET", routes.TOPICS + "?internal=true")
    assert "__offsets" in [each["name"] for each in listed["topics"]]
    gone = await http.good("DELETE", "/v1/topics/orders")
    assert gone["topic_id"] == made["topic_id"]
    assert (await http.call("GET", "/v1/topics/orders")).code == "topic_not_found"


async def test_a_topic_made_anew_is_another_one_without_the_old_records(http: Http) -> None:
    old = await http.topic()
    await http.write(old, b"of the old one")
    await http.good("DELETE", topic_path(old))
    new = await http.good("POST", routes.TOPICS, {"name": old.name, "partitions": 1})
    assert new["topic_id"] != old.topic_id
    assert (await http.good("GET", partition_path(old) + "?offset=earliest"))["records"] == []
    [late] = await http.produce((old.topic_id, 0, one_batch(b"to the old id")))
    assert late.error == "topic_not_found"
    result, _ = await http.fetch(old.topic_id, 0, 0)
    assert result.error == "topic_not_found"


async def test_partitions_are_added_and_the_old_ones_keep_their_records(
    http: Http, topic: TopicInfo
) -> None:
    await http.write(topic, b"before")
    altered = await http.good("PATCH", topic_path(topic), {"partitions": 5})
    assert [each["partition"] for each in altered["partitions"]] == [0, 1, 2, 3, 4]
    await http.write(topic, b"new", partition=4)
    _, found = await http.fetch(topic.topic_id, 0, 0)
    assert len(found) == 1
    fewer = await http.call("PATCH", topic_path(topic), json={"partitions": 4})
    assert (fewer.status, fewer.code) == (400, "invalid_request")


async def test_a_setting_counts_from_the_moment_it_is_changed(http: Http, topic: TopicInfo) -> None:
    altered = await http.good("PATCH", topic_path(topic), {"config": {"max.message.bytes": 200}})
    assert altered["config"]["max.message.bytes"] == {"value": 200, "source": "topic"}
    [over] = await http.produce((topic.topic_id, 0, one_batch(b"x" * 200)))
    assert over.error == "record_too_large"
    restored = await http.good("PATCH", topic_path(topic), {"config": {"max.message.bytes": None}})
    assert restored["config"]["max.message.bytes"]["source"] == "default"
    await http.write(topic, b"x" * 200)


# --- produce and fetch ----------------------------------------------------------------------------


async def fetch_many(
    http: Http, *parts: requests.FetchPart, wait_ms: int = 0, min_bytes: int = 1
) -> tuple[list[requests.FetchResult], memoryview]:
    """Several parts in one fetch: the results and all bytes behind them."""
    request = requests.FetchRequest(wait_ms, min_bytes, 1 << 26, 0, list(parts))
    reply = await http.call(
        "POST", routes.FETCH, data=framing.head(request),
        headers={"Content-Type": requests.BATCH_MEDIA_TYPE},
    )  # fmt: skip
    assert reply.status == 200, reply.body
    answer, data = framing.split(reply.body, fetch_decoder)
    return answer.parts, data


@pytest.mark.parametrize("acks", [-1, 1, 0])
async def test_at_every_level_of_acks_the_answer_has_the_offset(
    http: Http, topic: TopicInfo, acks: int
) -> None:
    for expected in range(3):
        [result] = await http.produce((topic.topic_id, 0, one_batch(b"v")), acks=acks)
        assert (result.error, result.base_offset, result.log_start_offset) == (None, expected, 0)
    await eventually(lambda: _high_watermark_is(http, topic, 3))


async def _high_watermark_is(http: Http, topic: TopicInfo, expected: int) -> bool:
    return bool((await http.offset(topic, at="latest"))["offset"] == expected)


async def test_many_partitions_travel_in_one_body_in_and_out(http: Http) -> None:
    topics = [await http.topic(partitions=10) for _ in range(3)]
    places = [(topic.topic_id, index) for topic in topics for index in range(10)]
    sent = [one_batch(b"%d" % n * 50) for n in range(30)]
    written = await http.produce(
        *[(topic_id, index, data) for (topic_id, index), data in zip(places, sent, strict=True)]
    )
    assert [each.error for each in written] == [None] * 30
    parts = [requests.FetchPart(bytes.fromhex(each), index, 0, 1 << 20) for each, index in places]
    found, data = await fetch_many(http, *parts)
    assert [(each.topic_id.hex(), each.partition) for each in found] == places
    position = 0
    for part, original in zip(found, sent, strict=True):
        piece = data[position : position + part.length]
        assert bytes(piece[SEALED:]) == original[SEALED:]
        position += part.length
    assert position == len(data)


async def test_a_large_answer_in_pieces_is_the_bytes_that_were_written(http: Http) -> None:
    topic = await http.topic(max_message_bytes=4_000_000)
    sent = [one_batch(bytes([n]) * (700_000 + n)) for n in range(6)]
    for data in sent:
        [result] = await http.produce((topic.topic_id, 0, data))
        assert result.error is None
    fetched, found = await http.fetch(topic.topic_id, 0, 0, max_bytes=1 << 24)
    assert fetched.length > 4_000_000
    assert [data[SEALED:] for _, data in found] == [data[SEALED:] for data in sent]
    _, some = await http.fetch(topic.topic_id, 0, 2, max_bytes=1_500_000)
    assert [header.base_offset for header, _ in some] == [2, 3]
    _, one = await http.fetch(topic.topic_id, 0, 5, max_bytes=1)
    assert [header.base_offset for header, _ in one] == [5], "at least one, however small the bound"


async def test_an_idempotent_producers_retry_gets_its_first_answer(
    http: Http, topic: TopicInfo
) -> None:
    def data(sequence: int) -> bytes:
        return one_batch(
            b"a", b"b", producer_id=77, producer_epoch=0, base_sequence=sequence
        )  # fmt: skip

    [first] = await http.produce((topic.topic_id, 0, data(0)))
    [second] = await http.produce((topic.topic_id, 0, data(2)))
    [retry] = await http.produce((topic.topic_id, 0, data(0)))
    assert (first.base_offset, second.base_offset, retry.base_offset) == (0, 2, 0)
    assert (retry.error, retry.append_time_ms) == (None, first.append_time_ms)
    [gap] = await http.produce((topic.topic_id, 0, data(8)))
    assert gap.error == "out_of_order_sequence"
    assert await _high_watermark_is(http, topic, 4)


async def test_a_long_poll_wakes_at_once_when_something_comes(http: Http, topic: TopicInfo) -> None:
    poll = asyncio.create_task(http.fetch(topic.topic_id, 0, 0, wait_ms=20_000))
    await asyncio.sleep(0.3)
    assert not poll.done()
    written = time.monotonic()
    await http.write(topic, b"news")
    result, found = await poll
    assert time.monotonic() - written < 1
    assert (result.error, len(found)) == (None, 1)


async def test_a_poll_of_many_partitions_wakes_for_any_of_them(
    http: Http, topic: TopicInfo
) -> None:
    other = await http.topic()
    parts = [
        requests.FetchPart(bytes.fromhex(each.topic_id), index, 0, 1 << 20)
        for each, index in ((topic, 0), (topic, 1), (other, 0))
    ]
    poll = asyncio.create_task(fetch_many(http, *parts, wait_ms=20_000))
    await asyncio.sleep(0.2)
    await http.write(other, b"here")
    results, _ = await asyncio.wait_for(poll, 2)
    assert [each.length > 0 for each in results] == [False, False, True]


async def test_a_poll_waits_for_min_bytes_and_no_longer_than_max_wait(
    http: Http, topic: TopicInfo
) -> None:
    await http.write(topic, b"little")
    began = time.monotonic()
    _, found = await http.fetch(topic.topic_id, 0, 0, wait_ms=400, min_bytes=100_000)
    assert 0.35 < time.monotonic() - began < 2
    assert len(found) == 1, "what there is comes when the time is over"
    poll = asyncio.create_task(http.fetch(topic.topic_id, 0, 0, wait_ms=20_000, min_bytes=1_000))
    await http.write(topic, b"x" * 100)
    await asyncio.sleep(0.2)
    assert not poll.done()
    await http.write(topic, b"x" * 1_000)
    _, found = await asyncio.wait_for(poll, 2)
    assert len(found) == 3


async def test_until_ends_a_poll_that_has_all_it_wants(http: Http, topic: TopicInfo) -> None:
    await http.write(topic, b"0", b"1", b"2", b"3")
    result, found = await asyncio.wait_for(
        http.fetch(topic.topic_id, 0, 2, until=2, wait_ms=20_000), 2
    )
    assert (result.error, found) == (None, [])
    _, found = await http.fetch(topic.topic_id, 0, 0, until=2)
    assert [header.base_offset for header, _ in found][:2] == [0, 1]


async def test_a_poll_ends_when_its_topic_is_deleted(http: Http, topic: TopicInfo) -> None:
    poll = asyncio.create_task(http.fetch(topic.topic_id, 0, 0, wait_ms=20_000))
    await asyncio.sleep(0.2)
    await http.good("DELETE", topic_path(topic))
    result, _ = await asyncio.wait_for(poll, 3)
    assert result.error in ("topic_not_found", "not_leader")


async def test_a_reader_of_another_epoch_is_told(http: Http, topic: TopicInfo) -> None:
    result, _ = await http.fetch(topic.topic_id, 0, 0)
    part = requests.FetchPart(
        bytes.fromhex(topic.topic_id), 0, 0, 1 << 20, leader_epoch=result.leader_epoch + 1
    )
    [unknown], _ = await fetch_many(http, part)
    assert unknown.error == "unknown_epoch"


# --- records in JSON ------------------------------------------------------------------------------


async def test_json_goes_in_and_comes_out_the_same(http: Http, topic: TopicInfo) -> None:
    records = [
        {
            "key": "k",
            "value": "grüße",
            "headers": {"h": "1", "raw": {"base64": "/w=="}, "none": None},
            "timestamp_ms": 5,
            "partition": 0,
        },
        {"key": {"base64": "/wA="}, "value": {"base64": "gA=="}, "partition": 0},
    ]
    answer = await http.good("POST", records_path(topic), {"records": records})
    assert [(each["partition"], each["offset"]) for each in answer["records"]] == [(0, 0), (0, 1)]
    read = await http.good("GET", partition_path(topic) + "?offset=0")
    assert (read["next_offset"], read["high_watermark"], read["log_start_offset"]) == (2, 2, 0)
    for sent, found in zip(records, read["records"], strict=True):
        assert {name: found[name] for name in sent if name != "partition"} == {
            name: value for name, value in sent.items() if name != "partition"
        }


async def test_json_records_of_a_key_share_a_partition_and_some_may_fail(
    http: Http, topic: TopicInfo
) -> None:
    same = [{"key": "same", "value": str(n)} for n in range(10)]
    answer = await http.good("POST", records_path(topic), {"records": same})
    assert len({each["partition"] for each in answer["records"]}) == 1
    await http.good("PATCH", topic_path(topic), {"config": {"max.message.bytes": 2_000}})
    mixed = [{"value": "fits", "partition": 0}, {"value": "x" * 3_000, "partition": 1}]
    reply = await http.call("POST", records_path(topic), json={"records": mixed})
    assert reply.status == 207
    fits, over = reply.json["records"]
    assert (fits["error"], over["error"]["code"]) == (None, "record_too_large")


@pytest.mark.parametrize("acks", ["all", "1", "0"])
async def test_json_takes_every_level_of_acks(http: Http, topic: TopicInfo, acks: str) -> None:
    path = records_path(topic) + f"?acks={acks}&timeout_ms=5000"
    answer = await http.good("POST", path, {"records": [{"value": "v", "partition": 0}]})
    assert answer["records"][0]["offset"] == 0


async def test_a_json_reader_is_paged_and_waits(http: Http, topic: TopicInfo) -> None:
    await http.write(topic, *[b"%d" % n for n in range(7)])
    path, found, next_offset = partition_path(topic), [], 0
    while next_offset < 7:
        page = await http.good("GET", f"{path}?offset={next_offset}&max_records=3")
        found += [each["value"] for each in page["records"]]
        next_offset = page["next_offset"]
    assert found == [str(n) for n in range(7)]
    poll = asyncio.create_task(http.good("GET", path + "?offset=latest&wait_ms=20000"))
    await asyncio.sleep(0.2)
    await http.write(topic, b"news")
    assert [each["value"] for each in (await poll)["records"]] == ["news"]


async def test_large_json_takes_the_way_beside_the_loop(http: Http, topic: TopicInfo) -> None:
    values = [str(n) * 1_000 for n in range(100)]
    records = [{"value": value, "partition": 1} for value in values]
    await http.good("POST", records_path(topic), {"records": records})
    read = await http.good("GET", partition_path(topic, 1) + "?offset=0&max_records=1000")
    assert [each["value"] for each in read["records"]] == values


# --- offsets, deleting ----------------------------------------------------------------------------


async def test_offsets_are_found_by_place_time_and_bytes(http: Http, topic: TopicInfo) -> None:
    times = [1_000, 3_000, 2_000, 9_000]
    for stamp in times:
        record = {"value": "x" * 100, "timestamp_ms": stamp, "partition": 0}
        await http.good("POST", records_path(topic), {"records": [record]})
    assert (await http.offset(topic, at="earliest"))["offset"] == 0
    assert (await http.offset(topic, at="latest"))["offset"] == 4
    for wanted, expected in ((0, 0), (1_000, 0), (1_001, 1), (3_000, 1), (3_001, 3), (9_000, 3)):
        answer = await http.offset(topic, at="timestamp", timestamp_ms=wanted)
        assert (answer["offset"], answer["timestamp_ms"]) == (expected, times[expected])
    late = await http.offset(topic, at="timestamp", timestamp_ms=9_001)
    assert (late["offset"], late["error"]) == (None, None)
    one = len((await http.fetch(topic.topic_id, 0, 0))[1][0][1])
    beyond = await http.offset(topic, at="bytes", offset=1, size_bytes=2 * one)
    assert beyond["offset"] == 3
    for question in ({"at": "timestamp"}, {"at": "bytes", "offset": 0}):
        refused = await http.offset(topic, **question)
        assert refused["error"]["code"] == "invalid_request"


async def test_one_bad_question_leaves_the_others_answered(http: Http, topic: TopicInfo) -> None:
    queries = [
        {"topic": name, "partition": partition, "at": "latest"}
        for name, partition in ((topic.name, 0), ("nobody", 0), (topic.name, 9))
    ]
    answers = (await http.good("POST", routes.OFFSETS, {"queries": queries}))["answers"]
    assert [each["error"] and each["error"]["code"] for each in answers] == [
        None, "topic_not_found", "partition_not_found",
    ]  # fmt: skip


async def delete_before(http: Http, topic: TopicInfo, before: int) -> Any:
    """One result of /v1/delete-records."""
    part = {"topic": topic.name, "partition": 0, "before_offset": before}
    answer = await http.good("POST", routes.DELETE_RECORDS, {"partitions": [part]})
    return answer["partitions"][0]


async def test_deleted_records_cannot_be_read_and_what_is_not_committed_stays(
    http: Http, topic: TopicInfo
) -> None:
    await http.write(topic, *[b"%d" % n for n in range(10)])
    assert (await delete_before(http, topic, 4))["log_start_offset"] == 4
    assert (await delete_before(http, topic, 2))["log_start_offset"] == 4, "never back"
    result, _ = await http.fetch(topic.topic_id, 0, 3)
    assert (result.error, result.log_start_offset) == ("offset_out_of_range", -1)
    read = await http.good("GET", partition_path(topic) + "?offset=earliest")
    assert [each["offset"] for each in read["records"]] == list(range(4, 10))
    over = await delete_before(http, topic, 11)
    assert over["error"]["code"] == "offset_out_of_range"
    assert (await delete_before(http, topic, -1))["log_start_offset"] == 10
    await http.write(topic, b"goes on")
    assert (await http.good("GET", partition_path(topic)))["next_offset"] == 11


async def test_retention_removes_old_segments_once_it_is_shortened(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, HEADRACE_RETENTION_INTERVAL_MS="100").start()
    async with Http(broker.url) as http:
        topic = await http.topic(segment_bytes=1_024)
        await http.write(topic, *[b"x" * 400] * 10)
        assert (await http.offset(topic, at="earliest"))["offset"] == 0
        await http.good("PATCH", topic_path(topic), {"config": {"retention.bytes": 3_000}})

        async def is_cut() -> bool:
            described = await http.good("GET", topic_path(topic))
            return bool(described["partitions"][0]["size_bytes"] <= 4_096)

        await eventually(is_cut)
        assert 0 < (await http.offset(topic, at="earliest"))["offset"] < 10
        await http.good("PATCH", topic_path(topic), {"config": {"retention.ms": 1}})
        await eventually(lambda: _start_is(http, topic, 10))
        assert await _high_watermark_is(http, topic, 10)
        await http.write(topic, b"next")
    broker.kill()
    broker.start()
    async with Http(broker.url) as http:
        assert (await http.offset(topic, at="latest"))["offset"] == 11
    assert broker.stop() == 0


async def _start_is(http: Http, topic: TopicInfo, expected: int) -> bool:
    return bool((await http.offset(topic, at="earliest"))["offset"] == expected)
