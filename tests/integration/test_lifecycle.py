"""A broker's states as its callers and its kubelet see them, its bounds, and its end."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientConnectorError
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.assembly import Broker
from headrace.broker.clock import SystemClock
from headrace.broker.lifecycle import DRAINING, RECOVERING, RUNNING, STARTING
from headrace.broker.settings import Settings
from headrace.protocol import framing, requests, routes
from testkit.brokers import BrokerProcess, free_ports
from testkit.http import Http, one_batch

LIMIT_BYTES = 950_000
"""What the small brokers here take in a request, and in all at once."""


class TurnableClock(SystemClock):
    """The machine's clock, as far off as a test says."""

    def __init__(self) -> None:
        self.off_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.off_ms


@asynccontextmanager
async def broker_here(
    folder: Path, *, clock: SystemClock | None = None
) -> AsyncIterator[tuple[Broker, Http, Http]]:
    """A broker in this process, with a client and one for its health port."""
    port, health_port = free_ports(2)
    settings = Settings(data_dir=str(folder / "data"), port=port, health_port=health_port)
    broker = Broker(settings, clock=clock)
    await broker.start()
    try:
        async with Http(settings.url) as http, Http(f"http://127.0.0.1:{health_port}") as health:
            yield broker, http, health
    finally:
        await broker.stop()


def produce_body(topic_id: str, data: bytes, *, acks: int = -1) -> bytes:
    """A produce request's body of one part."""
    part = requests.ProducePart(bytes.fromhex(topic_id), 0, len(data))
    return framing.head(requests.ProduceRequest(acks, 10_000, [part])) + data


async def begin_produce(
    broker: BrokerProcess, body: bytes, *, sent: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A produce request of which only so many bytes of the body are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    head = (
        f"POST {routes.PRODUCE} HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: {requests.BATCH_MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body[:sent])
    await writer.drain()
    return reader, writer


async def no_longer_listens(broker: BrokerProcess) -> None:
    """Waits until new connections are refused; until then they are told that it is draining."""
    for _ in range(100):
        try:
            async with Http(broker.url) as http:
                refused = await http.call("GET", routes.CLUSTER)
            assert (refused.status, refused.code) == (503, "broker_unavailable")
        except ClientConnectorError:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it still takes connections")


async def count(http: Http, topic_id: str) -> int:
    """How many records the topic's first partition holds, all of them read."""
    offset = 0
    while True:
        result, found = await http.fetch(topic_id, 0, offset)
        assert (result.error, result.log_start_offset) == (None, 0)
        if not found:
            return offset
        offset = found[-1][0].next_offset


# --- states ---------------------------------------------------------------------------------------


async def test_only_a_running_broker_is_ready_and_serves(tmp_path: Path) -> None:
    async with broker_here(tmp_path) as (broker, http, health):
        for state in (STARTING, RECOVERING, DRAINING):
            broker.lifecycle.state = state
            broker.lifecycle.recovering_remaining, broker.lifecycle.recovering_total = 3, 10
            ready = await health.call("GET", routes.READYZ)
            assert (ready.status, ready.json["state"], ready.json["ready"]) == (503, state, False)
            left = {"remaining": 3, "total": 10} if state == RECOVERING else None
            assert ready.json["recovering"] == left
            assert (await health.call("GET", routes.LIVEZ)).status == 200
            refused = await http.call("GET", routes.CLUSTER)
            assert (refused.status, refused.code) == (503, "broker_unavailable")
            assert int(refused.headers["Retry-After"]) >= 1
            assert (await http.call("GET", routes.OPENAPI)).status == 200
        broker.lifecycle.state = RUNNING
        assert (await health.call("GET", routes.READYZ)).status == 200
        assert (await http.call("GET", routes.CLUSTER)).status == 200


async def test_metrics_are_what_prometheus_reads_and_count_what_was_done(
    own_broker: BrokerProcess,
) -> None:
    own_broker.start()
    async with Http(own_broker.url) as http, Http(own_broker.health_url) as health:
        topic = await http.topic(partitions=3)
        for _ in range(4):
            await http.produce((topic.topic_id, 1, one_batch(b"one", b"two")))
        await http.fetch(topic.topic_id, 1, 0)
        await http.produce((topic.topic_id, 9, one_batch(b"nowhere")))
        reply = await health.call("GET", routes.METRICS)
    families = {each.name: each for each in text_string_to_metric_families(reply.body.decode())}
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families.values()
        for sample in family.samples
    }
    label = (("topic", topic.name),)
    assert samples["headrace_topic_records_in_total", label] == 8
    assert samples["headrace_topic_batches_in_total", label] == 4
    size = samples["headrace_topic_bytes_in_total", label]
    assert samples["headrace_topic_log_size_bytes", label] == size > 0
    assert samples["headrace_topic_bytes_out_total", label] == size
    assert samples["headrace_topic_partitions", label] == 3
    assert samples["headrace_produce_rejected_total", (("code", "partition_not_found"),)] == 1
    assert samples["headrace_state", (("state", "running"),)] == 1
    assert samples["headrace_led_partitions", ()] == 16 + 3
    assert samples["headrace_offline_partitions", ()] == 0
    assert samples["headrace_log_syncs_total", ()] >= 4
    assert samples["headrace_disk_free_bytes", ()] > 0
    produced = (("method", "POST"), ("path", routes.PRODUCE), ("status", "200"))
    assert samples["headrace_requests_total", produced] == 5
    for name in (
        "headrace_request_duration_seconds", "headrace_loop_stall_max_seconds",
        "headrace_inflight_bytes", "headrace_throttled_requests", "headrace_storage_full",
        "headrace_connections_refused", "headrace_open_log_files", "headrace_recovering_partitions",
        "headrace_topic_duplicate_batches", "headrace_topic_offline_partitions",
        "process_resident_memory_bytes",
    ):  # fmt: skip
        assert name in families


# --- bounds ---------------------------------------------------------------------------------------


async def test_above_the_bytes_in_flight_requests_are_refused_and_told_when_to_come_back(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(
        tmp_path,
        HEADRACE_REQUEST_BYTES_MAX=str(LIMIT_BYTES),
        HEADRACE_INFLIGHT_BYTES_MAX=str(LIMIT_BYTES),
    ).start()
    async with Http(broker.url) as http:
        topic = await http.topic()
        body = produce_body(topic.topic_id, one_batch(b"x" * 900_000))
        reader, writer = await begin_produce(broker, body, sent=1_000)
        await asyncio.sleep(0.2)
        refused = await http.produce_raw(body)
        assert (refused.status, refused.code) == (429, "throttled")
        assert refused.json["retry_after_ms"] > 0
        assert int(refused.headers["Retry-After"]) >= 1
        small = produce_body(topic.topic_id, one_batch(b"small"))
        assert (await http.produce_raw(small)).status == 200, "what fits is still taken"
        writer.write(body[1_000:])
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        assert (await http.produce_raw(body)).status == 200
        over = await http.produce_raw(b"x" * (LIMIT_BYTES + 1))
        assert (over.status, over.code) == (413, "payload_too_large")
    assert broker.stop() == 0


async def test_a_half_written_request_is_ended_and_its_bytes_given_back(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path, HEADRACE_REQUEST_IDLE_TIMEOUT_MS="300",
        HEADRACE_REQUEST_BYTES_MAX=str(LIMIT_BYTES), HEADRACE_INFLIGHT_BYTES_MAX=str(LIMIT_BYTES),
    ).start()  # fmt: skip
    async with Http(broker.url) as http:
        topic = await http.topic()
        body = produce_body(topic.topic_id, one_batch(b"x" * 900_000))
        began = time.monotonic()
        reader, writer = await begin_produce(broker, body, sent=len(body) // 2)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert 0.25 < time.monotonic() - began < 5
        assert b" 408 " in answer.splitlines()[0]
        assert b'"slow_request"' in answer
        writer.close()
        assert (await http.produce_raw(body)).status == 200
        assert await count(http, topic.topic_id) == 1
    assert broker.stop() == 0


async def test_connections_over_the_limit_are_closed_and_the_others_go_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, HEADRACE_CONNECTIONS_MAX="3").start()
    async with Http(broker.url) as http:
        await http.call("GET", routes.CLUSTER)
        idle = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(2)]
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert (await http.call("GET", routes.CLUSTER)).status == 200
        for _, each in idle:
            each.close()
    assert broker.stop() == 0


# --- the end --------------------------------------------------------------------------------------


async def test_a_stop_answers_what_is_under_way_and_leaves_nothing_to_recover(
    own_broker: BrokerProcess,
) -> None:
    own_broker.start()
    async with Http(own_broker.url) as http, Http(own_broker.health_url) as health:
        topic = await http.topic()
        body = produce_body(topic.topic_id, one_batch(b"half of it was there at the stop"))
        reader, writer = await begin_produce(own_broker, body, sent=len(body) // 2)
        poll = asyncio.create_task(http.fetch(topic.topic_id, 0, 0, wait_ms=30_000))
        await asyncio.sleep(0.3)
        own_broker.signal(signal.SIGTERM)
        result, _ = await asyncio.wait_for(poll, 2)
        assert result.error is None, "a long poll is answered at once, with what there is"
        ready = await health.call("GET", routes.READYZ)
        assert (ready.status, ready.json["state"]) == (503, "draining")
        await no_longer_listens(own_broker)
        writer.write(body[len(body) // 2 :])
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b" 200 " in answer.splitlines()[0]
        writer.close()
        assert await asyncio.to_thread(own_broker.wait) == 0
    assert (own_broker.data_dir / "clean").exists()
    assert not (own_broker.data_dir / "open").exists()
    own_broker.start()
    async with Http(own_broker.url) as http:
        assert await count(http, topic.topic_id) == 1
    assert re.search(r"WARNING|ERROR", own_broker.log_text) is None, own_broker.log_text


async def test_a_stop_does_not_wait_for_ever_for_a_client_that_sends_nothing(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path, HEADRACE_DRAIN_TIMEOUT_MS="300").start()
    async with Http(broker.url) as http:
        topic = await http.topic()
        body = produce_body(topic.topic_id, one_batch(b"never whole"))
        _, writer = await begin_produce(broker, body, sent=10)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert await asyncio.to_thread(broker.stop) == 0
        assert time.monotonic() - began < 5
        writer.close()
    assert (broker.data_dir / "clean").exists()


async def test_a_stop_during_the_start_is_a_clean_end(own_broker: BrokerProcess) -> None:
    for pause_s in (0.25, 0.4, 0.5, 0.6):
        own_broker.launch()
        await asyncio.sleep(pause_s)
        own_broker.signal(signal.SIGTERM)
        code = await asyncio.to_thread(own_broker.wait)
        assert code in (0, -15), own_broker.log_text  # -15: before it could catch the signal
    own_broker.start()
    assert "Traceback" not in own_broker.log_text, own_broker.log_text


# --- the clock ------------------------------------------------------------------------------------


async def test_a_clock_that_goes_back_moves_no_append_time_back_and_loses_nothing(
    tmp_path: Path,
) -> None:
    clock = TurnableClock()
    async with broker_here(tmp_path, clock=clock) as (_, http, _):
        topic = await http.topic(segment_bytes=1_024, retention_ms=3_600_000)
        stamps = []
        for off_ms in (0, -86_400_000, 5_000, -5_000, -(10**12)):
            clock.off_ms = off_ms
            [result] = await http.produce((topic.topic_id, 0, one_batch(b"x" * 500)))
            assert result.error is None
            stamps.append(result.append_time_ms)
        assert stamps == sorted(stamps)
        assert await count(http, topic.topic_id) == 5
        group = {"offsets": [{"topic": topic.name, "partition": 0, "offset": 3}]}
        assert (await http.call("POST", "/v1/groups/g/offsets", json=group)).status == 200


async def test_a_clock_that_jumps_ahead_and_back_lets_retention_go_by_what_it_says_now(
    tmp_path: Path,
) -> None:
    """A day ahead for a moment: what was written then is kept until that day is over, and what was
    written before isn't removed before its time, once the clock is right again."""
    clock = TurnableClock()
    async with broker_here(tmp_path, clock=clock) as (_, http, _):
        topic = await http.topic(segment_bytes=1_024, retention_ms=3_600_000)
        for off_ms in (0, 86_400_000, 0):
            clock.off_ms = off_ms
            for _ in range(3):
                [result] = await http.produce((topic.topic_id, 0, one_batch(b"x" * 500)))
                assert result.error is None
        assert await count(http, topic.topic_id) == 9
