"""What a topic and a client may take: rates with a delay in the answer, a queue that refuses."""

from __future__ import annotations

import asyncio
import time

from headrace.protocol import framing, requests, routes
from headrace.sdk import Consumer, Producer
from testkit.brokers import BrokerProcess
from testkit.http import Http, one_batch, produce_decoder

RATE = 2_000_000


async def throttled_produce(
    http: Http, topic_id: str, data: bytes, client: str = "me"
) -> requests.ProduceResponse:
    part = requests.ProducePart(bytes.fromhex(topic_id), 0, len(data))
    body = framing.head(requests.ProduceRequest(1, 1_000, [part])) + data
    reply = await http.produce_raw(body, **{requests.CLIENT_HEADER: client})
    assert reply.status == 200, reply.body
    return framing.split(reply.body, produce_decoder)[0]


async def test_a_topics_rate_is_kept_by_a_producer_that_waits_as_told(
    broker: BrokerProcess,
) -> None:
    async with Http(broker.url) as http:
        topic = await http.topic(producer_byte_rate=RATE, flush_policy="none")
        data = one_batch(b"x" * 200_000)
        started, sent = time.monotonic(), 0
        while sent < 3 * RATE:
            answer = await throttled_produce(http, topic.topic_id, data)
            assert answer.parts[0].error is None, answer.parts[0].message
            sent += len(data)
            await asyncio.sleep(answer.throttle_ms / 1000)
        rate = sent / (time.monotonic() - started)
        assert 0.7 * RATE < rate < 1.15 * RATE  # a quarter second of burst in three seconds


async def test_who_does_not_wait_is_refused_until_the_debt_is_paid(broker: BrokerProcess) -> None:
    async with Http(broker.url) as http:
        topic = await http.topic(producer_byte_rate=100_000, consumer_byte_rate=100_000)
        first = await throttled_produce(http, topic.topic_id, one_batch(b"x" * 100_000))
        assert first.parts[0].error is None
        assert first.throttle_ms > 300
        again = await throttled_produce(http, topic.topic_id, one_batch(b"y"))
        assert again.parts[0].error == "throttled"
        path = routes.fill(routes.RECORDS, topic=topic.name)
        reply = await http.call("POST", path, json={"records": [{"value": "z"}]})
        assert (reply.status, reply.code) == (429, "throttled")
        result, found = await http.fetch(topic.topic_id, 0, 0, wait_ms=2_000)
        assert (result.error, len(found)) == (None, 1)
        result, _ = await http.fetch(topic.topic_id, 0, 0)
        assert result.error == "throttled"
        await asyncio.sleep(first.throttle_ms / 1000)
        later = await throttled_produce(http, topic.topic_id, one_batch(b"y"))
        assert later.parts[0].error is None


async def test_a_client_over_its_rate_does_not_hold_up_another(own_broker: BrokerProcess) -> None:
    own_broker.set(HEADRACE_CLIENT_PRODUCER_BYTE_RATE="100000")
    own_broker.start()
    async with Http(own_broker.url) as http:
        topic = await http.topic()
        greedy = await throttled_produce(
            http, topic.topic_id, one_batch(b"x" * 100_000), client="greedy"
        )
        assert greedy.throttle_ms > 300
        data = one_batch(b"v")
        part = requests.ProducePart(bytes.fromhex(topic.topic_id), 0, len(data))
        body = framing.head(requests.ProduceRequest(1, 1_000, [part])) + data
        refused = await http.produce_raw(body, **{requests.CLIENT_HEADER: "greedy"})
        assert (refused.status, refused.code) == (429, "throttled")
        assert int(refused.headers["Retry-After"]) >= 1
        modest = await throttled_produce(http, topic.topic_id, data, client="modest")
        assert modest.parts[0].error is None


async def test_a_bounded_topic_refuses_and_takes_again_once_records_are_deleted(
    broker: BrokerProcess,
) -> None:
    async with Http(broker.url) as http:
        topic = await http.topic(overflow="reject", retention_bytes=10_000, segment_bytes=2_048)
        data = one_batch(b"x" * 1_500)
        taken = 0
        while True:
            [result] = await http.produce((topic.topic_id, 0, data))
            if result.error is not None:
                break
            taken += 1
        assert result.error == "topic_full"
        assert taken == 10_000 // len(data)
        fetched, found = await http.fetch(topic.topic_id, 0, taken - 1)
        assert (fetched.high_watermark, len(found)) == (taken, 1)
        await http.call(
            "POST", routes.DELETE_RECORDS,
            json={"partitions": [{"topic": topic.name, "partition": 0, "before_offset": 3}]},
        )  # fmt: skip
        [result] = await http.produce((topic.topic_id, 0, data))
        assert (result.error, result.base_offset) == (None, taken)


async def test_more_partitions_than_the_broker_takes_are_refused(
    own_broker: BrokerProcess,
) -> None:
    own_broker.set(HEADRACE_PARTITIONS_MAX="20")
    own_broker.start()
    async with Http(own_broker.url) as http:
        topic = await http.topic(partitions=4)
        reply = await http.call("POST", routes.TOPICS, json={"name": "more", "partitions": 1})
        assert (reply.status, reply.code) == (409, "limit_exceeded")
        path = routes.fill(routes.TOPIC, topic=topic.name)
        reply = await http.call("PATCH", path, json={"partitions": 5})
        assert (reply.status, reply.code) == (409, "limit_exceeded")
        assert "partitions.max" in reply.json["message"]


async def test_the_sdk_waits_as_told_and_nothing_is_refused_or_lost(broker: BrokerProcess) -> None:
    async with Http(broker.url) as http:
        topic = await http.topic(
            producer_byte_rate=RATE, consumer_byte_rate=RATE, flush_policy="none"
        )
    values = [b"%06d" % number + b"x" * 1_000 for number in range(3_000)]
    started = time.monotonic()
    async with Producer(broker.url, batch_bytes=200_000) as producer:
        await producer.send_many(topic.name, values)
    produced_s = time.monotonic() - started
    started = time.monotonic()
    read: list[bytes | None] = []
    async with Consumer(broker.url, topic.name, partition_bytes=200_000) as consumer:
        while len(read) < len(values):
            read += [record.value for record in await consumer.fetch(500, timeout=5)]
        assert consumer.problems == {}
    consumed_s = time.monotonic() - started
    assert read == values
    least_s = (sum(map(len, values)) - RATE / 2) / RATE
    assert produced_s > least_s
    assert consumed_s > least_s
