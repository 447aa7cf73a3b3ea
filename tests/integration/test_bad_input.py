"""Bad input gets a stable code, nothing is lost, and the broker and its other partitions go on."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from crc32c import crc32c

from headrace.protocol import batch, framing, limits, requests, routes
from headrace.protocol.compression import Codec
from headrace.protocol.models import TopicInfo
from testkit.brokers import BrokerProcess
from testkit.http import Http, one_batch


@pytest.fixture
async def http(broker: BrokerProcess) -> AsyncIterator[Http]:
    async with Http(broker.url) as client:
        yield client


@pytest.fixture
async def topic(http: Http) -> AsyncIterator[TopicInfo]:
    """A topic with one good record; whatever a test sends, the record is still all there is."""
    made = await http.topic(partitions=2)
    [good] = await http.produce((made.topic_id, 0, one_batch(b"good")))
    assert good.error is None
    yield made
    result, found = await http.fetch(made.topic_id, 0, 0)
    assert result.error is None
    assert [header.base_offset for header, _ in found][:1] == [0]


def sealed(**fields: object) -> bytes:
    """A batch with some header fields overwritten and the checksum made good again."""
    data = bytearray(one_batch(b"value"))
    places = {
        "record_count": ("<I", 40), "last_delta": ("<I", 44), "first_ts": ("<q", 48),
        "max_ts": ("<q", 56), "producer_id": ("<q", 64), "base_sequence": ("<i", 72),
        "producer_epoch": ("<h", 76), "uncompressed": ("<I", 80), "attributes": ("<H", 36),
    }  # fmt: skip
    for name, value in fields.items():
        code, position = places[name]
        struct.pack_into(code, data, position, value)
    struct.pack_into("<I", data, 32, crc32c(bytes(data[36:])))
    return bytes(data)


def damaged() -> bytes:
    data = bytearray(one_batch(b"value"))
    data[-1] ^= 1
    return bytes(data)


BAD_BATCHES = {
    "garbage": (b"\x00" * 200, "corrupt_batch"),
    "nothing": (b"", "corrupt_batch"),
    "half a header": (one_batch(b"v")[:50], "corrupt_batch"),
    "cut short": (one_batch(b"v")[:-1], "corrupt_batch"),
    "trailing bytes": (one_batch(b"v") + b"x", "corrupt_batch"),
    "two batches": (one_batch(b"v") * 2, "corrupt_batch"),
    "wrong checksum": (damaged(), "corrupt_batch"),
    "a newer version": (b"HR\x02" + one_batch(b"v")[3:], "unsupported_format"),
    "an unknown codec": (sealed(attributes=5), "unsupported_format"),
    "no records": (sealed(record_count=0, last_delta=0), "invalid_request"),
    "too many records": (
        sealed(record_count=limits.RECORDS_PER_BATCH_MAX + 1), "corrupt_batch"),
    "counts that differ": (sealed(record_count=2), "corrupt_batch"),
    "a bomb by its own word": (
        sealed(attributes=1, uncompressed=limits.UNCOMPRESSED_BYTES_MAX + 1), "corrupt_batch"),
    "a lying length": (sealed(uncompressed=7), "corrupt_batch"),
    "a control batch": (sealed(attributes=batch.CONTROL_BIT), "invalid_request"),
    "a transaction": (sealed(attributes=batch.TRANSACTIONAL_BIT), "unsupported_format"),
    "the year 0": (sealed(first_ts=limits.TIMESTAMP_MS_MIN - 1), "invalid_timestamp"),
    "the year 10000": (sealed(max_ts=limits.TIMESTAMP_MS_MAX + 1), "invalid_timestamp"),
    "a negative producer": (sealed(producer_id=-7), "invalid_request"),
    "a producer without sequence": (
        sealed(producer_id=7, producer_epoch=0, base_sequence=-1), "invalid_request"),
    "a gap in the sequence": (
        sealed(producer_id=7, producer_epoch=0, base_sequence=5), "out_of_order_sequence"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BATCHES)
async def test_a_bad_batch_is_refused_and_a_good_one_beside_it_is_taken(
    http: Http, topic: TopicInfo, name: str
) -> None:
    data, code = BAD_BATCHES[name]
    bad, good = await http.produce(
        (topic.topic_id, 0, data), (topic.topic_id, 1, one_batch(b"beside"))
    )
    assert (bad.error, bad.base_offset) == (code, -1), bad.message
    assert good.error is None


async def test_rubbish_under_a_good_checksum_is_kept_and_named_by_who_reads_it(
    http: Http, topic: TopicInfo
) -> None:
    data = bytearray(one_batch(b"value"))
    data[batch.HEADER_BYTES :] = b"\xff" * (len(data) - batch.HEADER_BYTES)
    struct.pack_into("<I", data, 32, crc32c(bytes(data[36:])))
    [result] = await http.produce((topic.topic_id, 1, bytes(data)))
    assert result.error is None
    path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=1)
    reply = await http.call("GET", path + "?offset=0")
    assert (reply.status, reply.code) == (400, "corrupt_batch")
    assert reply.json["details"] == {"first_offset": 0, "last_offset": 0}


async def test_a_bomb_is_stored_unopened_and_stops_at_its_announced_size(
    http: Http, topic: TopicInfo
) -> None:
    bomb = one_batch(b"\0" * (40 << 20), codec=Codec.ZSTD)
    [result] = await http.produce((topic.topic_id, 1, bomb))
    assert result.error is None
    path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=1)
    reply = await http.call("GET", path + "?offset=0")
    assert reply.status in (200, 429)


BAD_FRAMES = {
    "nothing": b"",
    "three bytes": b"abc",
    "a head longer than the body": struct.pack("<I", 1000) + b"x",
    "a head of four gigabytes": struct.pack("<I", 0xFFFFFFFF) + b"x",
    "no MessagePack": struct.pack("<I", 3) + b"\xc1\xc1\xc1",
    "another struct": struct.pack("<I", 1) + b"\x01",
    "acks 7": framing.head(requests.ProduceRequest(7, 0, [])),
    "a negative time": framing.head(requests.ProduceRequest(1, -1, [])),
    "a length below zero": framing.head(
        requests.ProduceRequest(1, 0, [requests.ProducePart(b"x" * 16, 0, -5)])),
    "fewer bytes than announced": framing.head(
        requests.ProduceRequest(1, 0, [requests.ProducePart(b"x" * 16, 0, 5)])),
    "more bytes than announced": framing.head(requests.ProduceRequest(1, 0, [])) + b"more",
    "a partition twice": framing.head(
        requests.ProduceRequest(1, 0, [requests.ProducePart(b"x" * 16, 0, 0)] * 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_a_bad_produce_frame_is_refused_whole(http: Http, name: str) -> None:
    reply = await http.produce_raw(BAD_FRAMES[name])
    assert (reply.status, reply.code) == (400, "invalid_request")


async def test_the_wrong_content_type_is_named(http: Http, topic: TopicInfo) -> None:
    reply = await http.call(
        "POST", routes.PRODUCE, data=b"{}", headers={"Content-Type": "application/json"}
    )
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    path = routes.fill(routes.RECORDS, topic=topic.name)
    reply = await http.call("POST", path, data=b"{}", headers={"Content-Type": "text/html"})
    assert (reply.status, reply.code) == (415, "unsupported_media_type")


async def test_unknown_topics_and_partitions_have_codes_of_their_own(
    http: Http, topic: TopicInfo
) -> None:
    unknown, missing, negative = await http.produce(
        ("00" * 16, 0, one_batch(b"v")),
        (topic.topic_id, 2, one_batch(b"v")),
        (topic.topic_id, -1, one_batch(b"v")),
    )
    assert unknown.error == "topic_not_found"
    assert missing.error == negative.error == "partition_not_found"
    reply = await http.call("GET", "/v1/topics/nobody-made-this")
    assert (reply.status, reply.code) == (404, "topic_not_found")
    result, _ = await http.fetch("00" * 16, 0, 0)
    assert result.error == "topic_not_found"


async def test_an_offset_out_of_range_on_either_side_names_the_range(
    http: Http, topic: TopicInfo
) -> None:
    await http.produce(*[(topic.topic_id, 0, one_batch(b"more"))])
    reply = await http.call(
        "POST", routes.DELETE_RECORDS,
        json={"partitions": [{"topic": topic.name, "partition": 1, "before_offset": 0}]},
    )  # fmt: skip
    assert reply.status == 200, reply.body
    result, found = await http.fetch(topic.topic_id, 0, 3)
    assert (result.error, found) == ("offset_out_of_range", [])
    path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=0)
    reply = await http.call("GET", path + "?offset=99")
    assert (reply.status, reply.code) == (416, "offset_out_of_range")
    assert reply.json["details"] == {"log_start_offset": 0, "log_end_offset": 2}


BAD_NAMES = ["a/b", "..", ".", "straße", "x" * 300, "__x", "", "a b", "a\nb", "__offsets"]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_topic_may_not_be_called_so(http: Http, name: str) -> None:
    reply = await http.call("POST", routes.TOPICS, json={"name": name})
    assert (reply.status, reply.code) == (400, "invalid_name")


BAD_CONFIGS = [
    {"retention.mss": 1}, {"retention.ms": "soon"}, {"retention.ms": -2}, {"segment.bytes": 0},
    {"cleanup.policy": "shred"}, {"max.message.bytes": 1 << 40}, {"flush.ms": True},
    {"compression.type": "gzip"}, {"min.insync.replicas": 0}, {"retention.ms": 1e300},
]  # fmt: skip


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=str)
async def test_a_bad_setting_is_refused_and_named(http: Http, config: dict[str, object]) -> None:
    reply = await http.call("POST", routes.TOPICS, json={"name": "never-made", "config": config})
    assert (reply.status, reply.code) == (400, "invalid_config"), reply.body
    assert next(iter(config)) in reply.json["message"]
    assert (await http.call("GET", "/v1/topics/never-made")).code == "topic_not_found"


async def test_the_systems_topics_can_be_read_but_not_written_or_changed(http: Http) -> None:
    for method, path, json in (
        ("POST", "/v1/topics/__offsets/records", {"records": [{"value": "x"}]}),
        ("PATCH", "/v1/topics/__offsets", {"config": {"retention.ms": 1}}),
        ("DELETE", "/v1/topics/__offsets", None),
    ):
        reply = await http.call(method, path, json=json)
        assert (reply.status, reply.code) == (403, "forbidden"), (method, reply.body)
    described = await http.call("GET", "/v1/topics/__offsets")
    assert described.status == 200
    [result] = await http.produce((described.json["topic_id"], 0, one_batch(b"forged")))
    assert result.error == "forbidden"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"records": []}', b'{"records": [{"value": 5}]}', b'{"record": []}',
     b'{"records": [{"value": {"base64": "!"}}]}', b'{"records": [{"vlaue": "x"}]}',
     b'{"records": [{"value": "\xff"}]}', b'{"records": [{"timestamp_ms": 1e400}]}',
     b'{"records": [{"timestamp_ms": -99999999999999999}]}', b'{"records": [{"headers": []}]}',
     b'{"records": [{"partition": -1}]}', b"[" * 100_000],
    ids=range(14),
)  # fmt: skip
async def test_json_that_is_not_as_documented_is_refused(
    http: Http, topic: TopicInfo, body: bytes
) -> None:
    path = routes.fill(routes.RECORDS, topic=topic.name)
    reply = await http.call("POST", path, data=body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.code) == (400, "invalid_request"), reply.body


async def test_null_and_empty_keys_and_values_stay_what_they_are(
    http: Http, topic: TopicInfo
) -> None:
    records = [
        {"key": key, "value": value, "partition": 1}
        for key in (None, "", "k")
        for value in (None, "", "v")
    ]
    path = routes.fill(routes.RECORDS, topic=topic.name)
    reply = await http.call("POST", path, json={"records": records})
    assert [each["offset"] for each in reply.json["records"]] == list(range(9))
    path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=1)
    read = (await http.call("GET", path + "?offset=earliest")).json["records"]
    assert [(each["key"], each["value"]) for each in read] == [
        (each["key"], each["value"]) for each in records
    ]


async def test_a_record_of_the_largest_size_passes_and_one_byte_more_does_not(http: Http) -> None:
    limit = 20_000
    topic = await http.topic(max_message_bytes=limit)
    overhead = len(one_batch(b"x" * 10_000)) - 10_000
    fits, over = one_batch(b"x" * (limit - overhead)), one_batch(b"x" * (limit - overhead + 1))
    assert len(fits) == limit
    [good] = await http.produce((topic.topic_id, 0, fits))
    [bad] = await http.produce((topic.topic_id, 0, over))
    assert good.error is None
    assert bad.error == "record_too_large"
    path = routes.fill(routes.RECORDS, topic=topic.name)
    reply = await http.call("POST", path, json={"records": [{"value": "x" * limit}]})
    assert (reply.status, reply.code) == (413, "record_too_large")


async def test_a_body_over_the_brokers_limit_is_refused_before_it_is_read(http: Http) -> None:
    reply = await http.produce_raw(b"", **{"X-Nothing": "1"})
    assert reply.status == 400
    host, port = http.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /v1/produce HTTP/1.1\r\nHost: x\r\nContent-Type: {requests.BATCH_MEDIA_TYPE}\r\n"
        "Content-Length: 99999999999\r\n\r\n".encode()
    )
    head = await asyncio.wait_for(reader.readline(), 10)
    assert b" 413 " in head
    writer.close()


async def test_a_client_that_vanishes_in_the_middle_of_a_request_changes_nothing(
    http: Http, topic: TopicInfo
) -> None:
    host, port = http.url.removeprefix("http://").split(":")
    data = one_batch(b"never arrives whole" * 100)
    part = requests.ProducePart(bytes.fromhex(topic.topic_id), 1, len(data))
    body = framing.head(requests.ProduceRequest(1, 1000, [part])) + data
    for cut in (0, 10, len(body) // 2, len(body) - 1):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /v1/produce HTTP/1.1\r\nHost: x\r\nContent-Type: {requests.BATCH_MEDIA_TYPE}"
            f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body[:cut]
        )
        await writer.drain()
        writer.transport.abort()
    await asyncio.sleep(0.2)
    _, found = await http.fetch(topic.topic_id, 1, 0)
    assert found == []


async def test_paths_and_methods_that_are_not_there_say_so(http: Http) -> None:
    reply = await http.call("GET", "/v1/nothing")
    assert (reply.status, reply.code) == (404, "path_not_found")
    reply = await http.call("DELETE", routes.CLUSTER)
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    reply = await http.call("GET", routes.CLUSTER + "?nonsense=1")
    assert (reply.status, reply.code) == (400, "invalid_request")


async def test_a_wrong_cluster_secret_is_refused(http: Http) -> None:
    reply = await http.call("GET", routes.CLUSTER, headers={"X-Headrace-Cluster-Secret": "guess"})
    assert (reply.status, reply.code) == (401, "unauthenticated")
