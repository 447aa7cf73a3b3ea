"""The in-memory cluster itself: what it does the way brokers do."""

from __future__ import annotations

import msgspec
import pytest

from headrace.protocol import batch, framing, routes
from headrace.protocol.ids import parse_topic_id
from headrace.protocol.models import ErrorBody, TopicInfo
from headrace.protocol.requests import (
    FetchPart,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ProducePart,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from headrace.sdk import Admin, ConnectionFailed, Producer
from headrace.sdk.testing import InMemoryCluster, transport_of
from headrace.sdk.transport import Response


@pytest.fixture
def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=1)
    return headrace_cluster


async def ask(
    cluster: InMemoryCluster, method: str, path: str, body: bytes = b"", broker: str = ""
) -> Response:
    return await cluster.transport().send(
        method, f"{cluster.url}{broker}{path}", body=[body], timeout=5
    )


async def topic_id(cluster: InMemoryCluster) -> bytes:
    answer = await ask(cluster, "GET", "/v1/topics/t")
    return parse_topic_id(msgspec.json.decode(answer.body, type=TopicInfo).topic_id)


async def produce(cluster: InMemoryCluster, data: bytes, broker: str = "") -> ProduceResult:
    part = ProducePart(await topic_id(cluster), 0, len(data))
    body = framing.head(ProduceRequest(-1, 1_000, [part])) + data
    answer = await ask(cluster, "POST", routes.PRODUCE, body, broker)
    decoder = msgspec.msgpack.Decoder(ProduceResponse)
    return framing.split(answer.body, decoder)[0].parts[0]


async def fetch(cluster: InMemoryCluster, offset: int, **part: int) -> tuple[FetchResult, bytes]:
    asked = FetchPart(await topic_id(cluster), 0, offset, part.pop("max_bytes", 1 << 20), **part)
    body = framing.head(FetchRequest(0, 1, 1 << 20, 0, [asked]))
    answer = await ask(cluster, "POST", routes.FETCH, body)
    found, data = framing.split(answer.body, msgspec.msgpack.Decoder(FetchResponse))
    return found.parts[0], bytes(data)


def sealed(*values: bytes, sequence: int = -1, producer: int = -1) -> bytes:
    rows = [(None, value, 0, None) for value in values]
    return bytes(
        batch.encode_records(rows, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    )


async def test_the_producers_bytes_come_back_but_for_the_brokers_fields(
    cluster: InMemoryCluster,
) -> None:
    data = sealed(b"a", b"b")
    assert (await produce(cluster, data)).base_offset == 0
    assert (await produce(cluster, data)).base_offset == 2
    result, found = await fetch(cluster, 3)
    assert found[32:] == data[32:]
    assert batch.is_assigned_crc_good(found)
    assert batch.read_header(found).base_offset == 2
    assert (result.high_watermark, result.log_start_offset) == (4, 0)


async def test_fetch_has_brokers_bounds(cluster: InMemoryCluster) -> None:
    for _ in range(3):
        await produce(cluster, sealed(b"x" * 100))
    assert [h.base_offset for _, h in batch.walk((await fetch(cluster, 0, max_bytes=1))[1])] == [0]
    assert [h.base_offset for _, h in batch.walk((await fetch(cluster, 0, until=2))[1])] == [0, 1]
    assert (await fetch(cluster, 3))[1] == b""
    assert (await fetch(cluster, 4))[0].error == "offset_out_of_range"


async def test_a_retry_gets_its_first_answer_and_a_gap_is_refused(
    cluster: InMemoryCluster,
) -> None:
    first = sealed(b"a", b"b", sequence=0, producer=7)
    assert (await produce(cluster, first)).base_offset == 0
    assert (await produce(cluster, first)).base_offset == 0
    assert (await produce(cluster, sealed(b"c", sequence=2, producer=7))).base_offset == 2
    gap = await produce(cluster, sealed(b"d", sequence=9, producer=7))
    assert gap.error == "out_of_order_sequence"
    unknown = await produce(cluster, sealed(b"d", sequence=1, producer=8))
    assert unknown.error == "out_of_order_sequence"


async def test_damaged_and_oversized_batches_are_refused(cluster: InMemoryCluster) -> None:
    good = sealed(b"x")
    for bad in (good[:-1], good[:-1] + b"\0", b"garbage" * 20, b""):
        assert (await produce(cluster, bad)).error == "corrupt_batch"
    assert (await produce(cluster, sealed(b"x" * 1_048_600))).error == "record_too_large"
    assert cluster.records("t") == []


async def test_brokers_refuse_what_they_do_not_lead_and_bootstrap_forwards() -> None:
    async with InMemoryCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=1)
        assert (await produce(cluster, sealed(b"x"), "/b1")).error == "not_leader"
        assert (await produce(cluster, sealed(b"x"), "/b0")).error is None
        assert (await produce(cluster, sealed(b"x"))).error is None


async def test_errors_are_answered_as_the_api_does(cluster: InMemoryCluster) -> None:
    answer = await ask(cluster, "GET", "/v1/topics/nope")
    body = msgspec.json.decode(answer.body, type=ErrorBody)
    assert (answer.status, body.code) == (404, "topic_not_found")
    assert (await ask(cluster, "GET", "/v1/nothing")).status == 404
    assert (await ask(cluster, "POST", "/v1/topics", b"{")).status == 400
    assert (await ask(cluster, "POST", "/v1/topics", b'{"name": "a", "nmae": 1}')).status == 400


async def test_a_closed_cluster_is_nowhere() -> None:
    cluster = InMemoryCluster()
    async with Admin(cluster.url, request_timeout=0.05) as admin:
        cluster.close()
        with pytest.raises(ConnectionFailed):
            await admin.list_topics()
    with pytest.raises(ConnectionFailed):
        transport_of(cluster.url)


async def test_programs_can_be_given_a_transport(cluster: InMemoryCluster) -> None:
    async with Producer(cluster.url, transport=cluster.transport()) as producer:
        assert (await producer.send("t", b"v")).offset == 0
