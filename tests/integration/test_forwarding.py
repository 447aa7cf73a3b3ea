"""Any broker takes any request: what isn't its own goes to its owner in one hop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from headrace.protocol import framing, requests, routes
from headrace.protocol.models import TopicInfo
from testkit.clusters import ClusterProcesses
from testkit.http import Http, eventually, fetch_decoder, one_batch

LEADERS = 3
DIRECT = {requests.ROUTE_HEADER: requests.ROUTE_DIRECT}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers shared by the module's tests; nothing is replicated here."""
    running = ClusterProcesses(tmp_path_factory.mktemp("cluster")).start()
    try:
        yield running
    finally:
        codes = running.stop()
    assert codes == [0, 0, 0], running.log_tails


@pytest.fixture
async def http(cluster: ClusterProcesses) -> AsyncIterator[Http]:
    async with Http(cluster.brokers[0].url) as client:
        yield client


async def spread_topic(http: Http, **body: object) -> TopicInfo:
    """A topic of three partitions led by three brokers, one replica each."""
    asked = {"name": f"t-{time.monotonic_ns()}", "partitions": 3, "replicas": 1, **body}
    made = await http.good("POST", routes.TOPICS, asked)
    raw = await http.call("GET", routes.fill(routes.TOPIC, topic=made["name"]))
    topic = msgspec.json.decode(raw.body, type=TopicInfo)
    assert {each.leader for each in topic.partitions} == {0, 1, 2}
    return topic


def led_by(topic: TopicInfo, broker_id: int) -> int:
    [partition] = [each.partition for each in topic.partitions if each.leader == broker_id]
    return partition


async def test_json_records_go_to_and_come_from_every_leader(http: Http) -> None:
    topic = await spread_topic(http)
    path = routes.fill(routes.RECORDS, topic=topic.name)
    records = [{"value": f"v{index}", "partition": index % 3} for index in range(9)]
    answer = await http.good("POST", path, {"records": records})
    assert [(each["partition"], each["offset"]) for each in answer["records"]] == [
        (index % 3, index // 3) for index in range(9)
    ]
    for partition in range(3):
        path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=partition)
        found = await http.good("GET", path)
        values = [each["value"] for each in found["records"]]
        assert values == [f"v{partition + 3 * rank}" for rank in range(3)]


async def test_a_binary_request_for_three_leaders_is_answered_in_its_order(http: Http) -> None:
    topic = await spread_topic(http)
    order = [2, 0, 1]
    parts = [(topic.topic_id, index, one_batch(b"at %d" % index)) for index in order]
    results = await http.produce(*parts)
    assert [(each.partition, each.error, each.base_offset) for each in results] == [
        (index, None, 0) for index in order
    ]
    request = requests.FetchRequest(
        0, 1, 1 << 20, 0,
        [requests.FetchPart(bytes.fromhex(topic.topic_id), index, 0, 1 << 16) for index in order],
    )  # fmt: skip
    reply = await http.call(
        "POST", routes.FETCH, data=framing.head(request),
        headers={"Content-Type": requests.BATCH_MEDIA_TYPE},
    )  # fmt: skip
    answer, data = framing.split(reply.body, fetch_decoder)
    assert [(each.partition, each.high_watermark) for each in answer.parts] == [
        (index, 1) for index in order
    ]
    position = 0
    for index, part in zip(order, answer.parts, strict=True):
        assert b"at %d" % index in bytes(data[position : position + part.length])
        position += part.length
    assert position == len(data)


async def test_one_wrong_part_leaves_the_others_unharmed(http: Http) -> None:
    topic = await spread_topic(http)
    parts = [(topic.topic_id, index, one_batch(b"x")) for index in (0, 1, 7)]
    results = await http.produce(*parts)
    assert [each.error for each in results] == [None, None, "partition_not_found"]


async def test_a_long_poll_over_three_leaders_ends_with_the_first_record(http: Http) -> None:
    topic = await spread_topic(http)
    request = requests.FetchRequest(
        20_000, 1, 1 << 20, 0,
        [requests.FetchPart(bytes.fromhex(topic.topic_id), at, 0, 1 << 16) for at in range(3)],
    )  # fmt: skip
    poll = asyncio.create_task(
        http.call(
            "POST", routes.FETCH, data=framing.head(request),
            headers={"Content-Type": requests.BATCH_MEDIA_TYPE},
        )
    )  # fmt: skip
    await asyncio.sleep(0.3)
    assert not poll.done()
    await http.produce((topic.topic_id, led_by(topic, 2), one_batch(b"news")))
    reply = await asyncio.wait_for(poll, 5)
    answer, data = framing.split(reply.body, fetch_decoder)
    lengths = {each.partition: each.length for each in answer.parts}
    assert lengths.pop(led_by(topic, 2)) == len(data) > 0
    assert set(lengths.values()) == {0}
    assert {each.error for each in answer.parts} == {None}


async def test_a_client_that_came_directly_hears_not_leader(http: Http) -> None:
    topic = await spread_topic(http)
    elsewhere = led_by(topic, 1)
    data = one_batch(b"x")
    part = requests.ProducePart(bytes.fromhex(topic.topic_id), elsewhere, len(data))
    body = framing.head(requests.ProduceRequest(-1, 1_000, [part])) + data
    reply = await http.produce_raw(body, **DIRECT)
    answer, _ = framing.split(reply.body, msgspec.msgpack.Decoder(requests.ProduceResponse))
    assert answer.parts[0].error == "not_leader"
    path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=elsewhere)
    assert (await http.call("GET", path, headers=DIRECT)).code == "not_leader"


async def test_what_was_passed_on_is_not_passed_on_again(http: Http) -> None:
    topic = await spread_topic(http)
    path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=led_by(topic, 1))
    reply = await http.call("GET", path, headers={requests.FORWARDED_HEADER: "2"})
    assert (reply.status, reply.code) == (421, "not_leader")


async def test_offsets_and_delete_records_reach_all_leaders(http: Http) -> None:
    topic = await spread_topic(http)
    for partition in range(3):
        await http.write(topic, b"a", b"b", b"c", partition=partition)
    cuts = [
        {"topic": topic.name, "partition": partition, "before_offset": partition + 1}
        for partition in range(3)
    ]
    cut = await http.good("POST", routes.DELETE_RECORDS, {"partitions": cuts})
    assert [each["log_start_offset"] for each in cut["partitions"]] == [1, 2, 3]
    queries = [
        {"topic": topic.name, "partition": partition, "at": at}
        for partition in range(3)
        for at in ("earliest", "latest")
    ]
    answers = (await http.good("POST", routes.OFFSETS, {"queries": queries}))["answers"]
    assert [each["offset"] for each in answers] == [1, 3, 2, 3, 3, 3]


async def test_errors_of_the_owner_come_back_as_they_are(http: Http) -> None:
    topic = await spread_topic(http)
    path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=led_by(topic, 2))
    reply = await http.call("GET", path + "?offset=99")
    assert (reply.status, reply.code) == (416, "offset_out_of_range")


async def test_a_group_is_served_whichever_broker_is_asked(
    cluster: ClusterProcesses, http: Http
) -> None:
    topic = await spread_topic(http)
    await http.write(topic, b"a", b"b", partition=led_by(topic, 1))
    commit = {"offsets": [{"topic": topic.name, "partition": led_by(topic, 1), "offset": 1}]}
    names = [f"g-{topic.name}-{index}" for index in range(6)]
    for name in names:
        path = routes.fill(routes.GROUP_OFFSETS, group=name)

        async def committed(path: str = path) -> bool:
            return (await http.call("POST", path, json=commit)).status == 200

        await eventually(committed)
    for broker in cluster.brokers:
        async with Http(broker.url) as other:
            listed = (await other.good("GET", routes.GROUPS))["groups"]
            assert set(names) <= {each["group"] for each in listed}
            for name in names:
                info = await other.good("GET", routes.fill(routes.GROUP, group=name))
                assert [(each["offset"], each["lag"]) for each in info["offsets"]] == [(1, 1)]


async def test_a_topic_is_described_with_its_leaders_sizes(
    cluster: ClusterProcesses, http: Http
) -> None:
    topic = await spread_topic(http)
    for partition in range(3):
        await http.write(topic, b"x", partition=partition)
    path = routes.fill(routes.TOPIC, topic=topic.name) + "?leaders=true"
    for broker in cluster.brokers:
        async with Http(broker.url) as other:
            found = await other.good("GET", path)
            assert [each["high_watermark"] for each in found["partitions"]] == [1, 1, 1]


async def test_a_broker_is_described_from_within_by_any_other(http: Http) -> None:
    for broker_id in range(LEADERS):
        found = await http.good("GET", routes.fill(routes.BROKER, broker_id=broker_id))
        assert (found["id"], found["state"]) == (broker_id, "running")
