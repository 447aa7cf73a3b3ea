"""Three real brokers, one store: what was acknowledged by all survives the leader."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.protocol import framing, requests, routes
from headrace.protocol.models import PartitionInfo, TopicInfo
from testkit.clusters import ClusterProcesses
from testkit.http import Http, fetch_decoder, one_batch


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    running = ClusterProcesses(
        tmp_path, HEADRACE_REPLICA_LAG_TIME_MAX_MS="2000", HEADRACE_LOG_LEVEL="INFO"
    ).start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
async def clients(cluster: ClusterProcesses) -> AsyncIterator[list[Http]]:
    opened = [Http(broker.url) for broker in cluster.brokers]
    for each in opened:
        await each.__aenter__()
    yield opened
    for each in opened:
        await each.__aexit__(None, None, None)


async def describe(http: Http, name: str) -> TopicInfo:
    raw = await http.call("GET", routes.fill(routes.TOPIC, topic=name))
    return msgspec.json.decode(raw.body, type=TopicInfo)


async def partition_once(
    http: Http, name: str, *, isr: set[int] | None = None, not_led_by: int = -1
) -> PartitionInfo:
    """The only partition, once its ISR is that and it has another leader."""
    deadline = time.monotonic() + 30
    while True:
        [found] = (await describe(http, name)).partitions
        if (isr is None or set(found.isr) == isr) and found.leader not in (None, not_led_by):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def send(http: Http, name: str, values: list[str], *, timeout_s: float = 20) -> None:
    path = routes.fill(routes.RECORDS, topic=name) + "?acks=all"
    body = {"records": [{"value": each} for each in values]}
    deadline = time.monotonic() + timeout_s
    while True:
        answer = await http.call("POST", path, json=body)
        if answer.status == 200:
            return
        assert time.monotonic() < deadline, answer.body
        await asyncio.sleep(0.05)


async def values_of(http: Http, name: str) -> list[str]:
    path = routes.fill(routes.PARTITION_RECORDS, topic=name, partition=0)
    answer = await http.good("GET", f"{path}?offset=0&max_records=1000")
    return [record["value"] for record in answer["records"]]


async def test_all_acknowledged_records_survive_the_leader(
    cluster: ClusterProcesses, clients: list[Http]
) -> None:
    await clients[0].good(
        "POST", routes.TOPICS,
        {"name": "t", "partitions": 1, "replicas": 3, "config": {"min.insync.replicas": 2}},
    )  # fmt: skip
    first = await partition_once(clients[0], "t", isr={0, 1, 2})
    assert first.leader is not None
    sent = [f"a{index}" for index in range(50)]
    for start in range(0, 50, 10):
        await send(clients[0], "t", sent[start : start + 10])

    cluster.brokers[first.leader].kill()
    survivor = clients[(first.leader + 1) % 3]
    second = await partition_once(survivor, "t", not_led_by=first.leader)
    await send(survivor, "t", ["after"])
    assert await values_of(survivor, "t") == [*sent, "after"]

    cluster.brokers[first.leader].start()
    await partition_once(survivor, "t", isr={0, 1, 2})
    assert second.leader is not None
    cluster.brokers[second.leader].kill()
    other = clients[(second.leader + 1) % 3]
    await partition_once(other, "t", not_led_by=second.leader)
    assert await values_of(other, "t") == [*sent, "after"]


async def test_deleted_records_stay_deleted_when_the_leader_dies_right_after(
    cluster: ClusterProcesses, clients: list[Http]
) -> None:
    await clients[0].good("POST", routes.TOPICS, {"name": "t", "partitions": 1, "replicas": 3})
    first = await partition_once(clients[0], "t", isr={0, 1, 2})
    assert first.leader is not None
    await send(clients[0], "t", [f"a{index}" for index in range(20)])
    body = {"partitions": [{"topic": "t", "partition": 0, "before_offset": 15}]}
    answer = await clients[first.leader].good("POST", routes.DELETE_RECORDS, body)
    assert answer["partitions"][0]["log_start_offset"] == 15
    cluster.brokers[first.leader].kill()
    survivor = clients[(first.leader + 1) % 3]
    await partition_once(survivor, "t", not_led_by=first.leader)
    path = routes.fill(routes.PARTITION_RECORDS, topic="t", partition=0)
    found = await survivor.good("GET", f"{path}?offset=earliest&max_records=1000")
    assert [record["value"] for record in found["records"]] == [f"a{n}" for n in range(15, 20)]


def log_directory(cluster: ClusterProcesses, broker_id: int, topic: TopicInfo) -> Path:
    return cluster.brokers[broker_id].data_dir / "partitions" / topic.topic_id / "0"


async def test_a_replica_that_lost_its_log_leaves_the_isr_and_copies_it_anew(
    cluster: ClusterProcesses, clients: list[Http]
) -> None:
    await clients[0].good("POST", routes.TOPICS, {"name": "t", "partitions": 1, "replicas": 3})
    first = await partition_once(clients[0], "t", isr={0, 1, 2})
    sent = [f"a{index}" for index in range(20)]
    await send(clients[0], "t", sent)
    topic = await describe(clients[0], "t")
    lost, damaged = [index for index in range(3) if index != first.leader]
    leader = clients[first.leader or 0]

    cluster.brokers[lost].kill()
    shutil.rmtree(log_directory(cluster, lost, topic))
    cluster.brokers[lost].start()
    await partition_once(leader, "t", isr={0, 1, 2})

    cluster.brokers[damaged].kill()
    [segment] = log_directory(cluster, damaged, topic).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    cluster.brokers[damaged].start()
    await partition_once(leader, "t", isr={0, 1, 2})
    assert "copied anew" in cluster.brokers[lost].log_text
    assert "copied anew" in cluster.brokers[damaged].log_text

    assert first.leader is not None
    cluster.brokers[first.leader].kill()
    second = await partition_once(clients[lost], "t", not_led_by=first.leader)
    assert second.leader is not None
    assert await values_of(clients[second.leader], "t") == sent


async def fetch_from(
    http: Http, topic: TopicInfo, offset: int, *, rack: str, wait_ms: int = 0
) -> tuple[requests.FetchResult, bytes]:
    part = requests.FetchPart(bytes.fromhex(topic.topic_id), 0, offset, 1 << 20)
    head = framing.head(requests.FetchRequest(wait_ms, 1, 1 << 20, 0, [part], rack))
    reply = await http.call(
        "POST", routes.FETCH, data=head, headers={"Content-Type": requests.BATCH_MEDIA_TYPE}
    )
    answer, data = framing.split(reply.body, fetch_decoder)
    return answer.parts[0], bytes(data)


async def test_a_reader_is_sent_to_the_follower_of_its_rack_and_served_there(
    tmp_path: Path,
) -> None:
    cluster = ClusterProcesses(tmp_path)
    for index, broker in enumerate(cluster.brokers):
        broker.set(HEADRACE_RACK=f"rack{index}")
    cluster.start()
    try:
        async with Http(cluster.brokers[0].url) as http:
            await http.good("POST", routes.TOPICS, {"name": "t", "partitions": 1, "replicas": 3})
            leader = (await partition_once(http, "t", isr={0, 1, 2})).leader
            await send(http, "t", ["a"])
            topic = await describe(http, "t")
        assert leader is not None
        near = (leader + 1) % 3
        async with Http(cluster.brokers[leader].url) as http:
            told, data = await fetch_from(http, topic, 0, rack=f"rack{near}")
            assert (told.preferred_replica, told.error, data) == (near, None, b"")
            own, data = await fetch_from(http, topic, 0, rack=f"rack{leader}")
            assert own.preferred_replica == -1
            assert data
            async with Http(cluster.brokers[near].url) as follower:
                served, data = await fetch_from(
                    follower, topic, 0, rack=f"rack{near}", wait_ms=5_000
                )
                assert (served.error, served.high_watermark) == (None, 1)
                assert data
                ahead, data = await fetch_from(follower, topic, 9, rack=f"rack{near}")
                assert (ahead.error, data) == (None, b"")
                waiting = asyncio.create_task(
                    fetch_from(follower, topic, 1, rack=f"rack{near}", wait_ms=10_000)
                )
                await send(http, "t", ["b"])
                news, data = await waiting
                assert (news.error, bool(data)) == (None, True)
    finally:
        cluster.stop()


async def test_records_deleted_at_the_leader_are_deleted_at_the_followers(
    cluster: ClusterProcesses, clients: list[Http]
) -> None:
    await clients[0].good("POST", routes.TOPICS, {"name": "t", "partitions": 1, "replicas": 3})
    first = await partition_once(clients[0], "t", isr={0, 1, 2})
    await send(clients[0], "t", [f"a{index}" for index in range(5)])
    await send(clients[0], "t", [f"b{index}" for index in range(5)])
    cut = {"partitions": [{"topic": "t", "partition": 0, "before_offset": 7}]}
    await clients[0].good("POST", routes.DELETE_RECORDS, cut)
    await send(clients[0], "t", ["c"])
    assert first.leader is not None
    cluster.brokers[first.leader].kill()
    other = clients[(first.leader + 1) % 3]
    await partition_once(other, "t", not_led_by=first.leader)
    path = routes.fill(routes.PARTITION_RECORDS, topic="t", partition=0)
    deadline = time.monotonic() + 10
    while True:  # a new leader has to hear first that the last record is committed
        answer = await other.good("GET", f"{path}?offset=7&max_records=1000")
        if [record["offset"] for record in answer["records"]] == [7, 8, 9, 10]:
            break
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.05)
    early = await other.call("GET", f"{path}?offset=6")
    assert early.code == "offset_out_of_range"


async def test_too_few_replicas_refuse_a_write_or_say_that_it_may_be_committed(
    cluster: ClusterProcesses, clients: list[Http]
) -> None:
    await clients[0].good(
        "POST", routes.TOPICS,
        {"name": "t", "partitions": 1, "replicas": 3, "config": {"min.insync.replicas": 3}},
    )  # fmt: skip
    first = await partition_once(clients[0], "t", isr={0, 1, 2})
    assert first.leader is not None
    await send(clients[0], "t", ["a"])
    leader, victim = clients[first.leader], (first.leader + 1) % 3
    cluster.brokers[victim].signal(signal.SIGSTOP)
    path = routes.fill(routes.RECORDS, topic="t") + "?acks=all"
    try:
        late = await leader.call("POST", path, json={"records": [{"value": "late"}]})
        assert late.code == "not_enough_replicas_after_append"
        refused = await leader.call("POST", path, json={"records": [{"value": "no"}]})
        assert refused.code == "not_enough_replicas"
    finally:
        cluster.brokers[victim].signal(signal.SIGCONT)
    await partition_once(leader, "t", isr={0, 1, 2})
    await send(leader, "t", ["b"])
    assert await values_of(leader, "t") == ["a", "late", "b"]


async def test_a_moved_replica_comes_at_the_throttled_rate(
    cluster: ClusterProcesses, clients: list[Http]
) -> None:
    size_bytes, rate = 6 << 20, 2 << 20
    await clients[0].good("POST", routes.TOPICS, {"name": "t", "partitions": 1, "replicas": 1})
    before = await partition_once(clients[0], "t")
    topic = await describe(clients[0], "t")
    assert before.leader is not None
    source = clients[before.leader]
    values = one_batch(*[bytes(1 << 16)] * 4)
    for _ in range(size_bytes // len(values)):
        await source.produce((topic.topic_id, 0, values))
    target = (before.leader + 1) % 3
    plan = [{"topic": "t", "partition": 0, "replicas": [target]}]
    began = time.monotonic()
    await source.good(
        "POST", routes.REASSIGNMENTS, {"plan": plan, "throttle_bytes_per_second": rate}
    )
    after = await partition_once(source, "t", isr={target}, not_led_by=before.leader)
    took_s = time.monotonic() - began
    assert after.replicas == [target]
    # An allowance of a quarter second is there at the start; the last piece needn't be paid for.
    assert 0.9 * (size_bytes - 2 * rate // 4) / rate <= took_s <= 1.1 * size_bytes / rate + 1.5
    assert not log_directory(cluster, before.leader, topic).exists()
