"""A compacted topic on a real broker: killed in the middle of a pass, and right afterwards."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Callable

import psutil

from headrace.sdk import TopicPartition
from headrace.sdk.sync import Admin, Consumer, Producer
from testkit.brokers import BrokerProcess

TOPIC = "accounts"
KEYS = 40
CONFIG: dict[str, str | int | float | bool] = {
    "cleanup.policy": "compact",
    "segment.bytes": 40_000,
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 3_600_000,
}


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it didn't come to that"
        time.sleep(0.005)


def metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(broker.health_url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    for line in lines:
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def write(broker: BrokerProcess, model: dict[bytes, bytes | None], chance: random.Random) -> None:
    """400 records in 40 batches; every tenth is a tombstone."""
    with Producer(broker.url) as producer:
        for _ in range(40):
            keys = [b"key-%d" % chance.randrange(KEYS) for _ in range(10)]
            sent = [(None if chance.random() < 0.1 else chance.randbytes(200), key) for key in keys]
            producer.send_many(
                TOPIC, [value for value, _ in sent], keys=[key for _, key in sent], partition=0
            )
            model.update({key: value for value, key in sent})


def end_of(broker: BrokerProcess) -> int:
    where = TopicPartition(TOPIC, 0)
    with Admin(broker.url) as admin:
        end = admin.offsets({where: "latest"})[where].offset
    assert end is not None
    return end


def read(broker: BrokerProcess) -> tuple[dict[bytes, bytes | None], list[int]]:
    """What a reader from the start knows in the end, and the offsets it came past."""
    found: dict[bytes, bytes | None] = {}
    offsets: list[int] = []
    end = end_of(broker)
    with Consumer(broker.url, TOPIC, offset_reset="earliest") as consumer:
        while (consumer.position((TOPIC, 0)) or 0) < end:
            for record in consumer.fetch(timeout=0.3):
                assert record.key is not None
                found[record.key] = record.value
                offsets.append(record.offset)
    return found, offsets


def records_by_json(broker: BrokerProcess) -> list[int]:
    """The offsets that the JSON fetch shows, from start to end."""
    found, offset = [], "earliest"
    while True:
        path = f"/v1/topics/{TOPIC}/partitions/0/records?offset={offset}"
        with urllib.request.urlopen(broker.url + path) as answer:
            body = json.load(answer)
        found += [record["offset"] for record in body["records"]]
        if offset == str(body["next_offset"]):
            return found
        offset = str(body["next_offset"])


def test_a_broker_that_is_killed_while_it_compacts_loses_and_revives_nothing(
    own_broker: BrokerProcess,
) -> None:
    own_broker.set(
        HEADRACE_COMPACTION_INTERVAL_MS="50", HEADRACE_COMPACTION_BYTES_PER_SECOND="400000"
    )
    own_broker.start()
    with Admin(own_broker.url) as admin:
        topic = admin.create_topic(TOPIC, partitions=1, config=CONFIG)
    log_folder = own_broker.data_dir / "partitions" / topic.topic_id / "0"
    model: dict[bytes, bytes | None] = {}
    chance = random.Random(4)
    for _ in range(2):
        write(own_broker, model, chance)
        wait_until(lambda: list(log_folder.glob("cleaned-*")))
        (child,) = psutil.Process(own_broker.pid).children()
        own_broker.kill()
        child.wait(10)
        own_broker.start()
        found, offsets = read(own_broker)
        assert found == model
        assert offsets == sorted(set(offsets))
        assert records_by_json(own_broker) == offsets
    own_broker.kill()
    own_broker.set(HEADRACE_COMPACTION_BYTES_PER_SECOND="-1")
    own_broker.start()
    wait_until(lambda: metric(own_broker, "headrace_compactions_total") > 0)
    # Of 800 records at most 160: the last of 40 keys, tombstones, and what the open segment holds.
    wait_until(lambda: len(read(own_broker)[1]) <= 4 * KEYS)
    assert read(own_broker)[0] == model
    assert metric(own_broker, "headrace_compaction_failures_total") == 0
    assert metric(own_broker, "headrace_compaction_removed_records_total") > 0
    assert own_broker.stop() == 0
    own_broker.start()
    assert read(own_broker)[0] == model


def test_committed_offsets_are_compacted_and_survive_it(own_broker: BrokerProcess) -> None:
    own_broker.set(HEADRACE_COMPACTION_INTERVAL_MS="50")
    own_broker.start()
    with Admin(own_broker.url) as admin:
        admin.create_topic("t", partitions=64)
        for offset in range(80):  # each a batch of 260 kB: more than a segment together
            places = {("t", partition): offset for partition in range(64)}
            admin.alter_group_offsets("g", places, metadata="m" * 4000)
    wait_until(lambda: metric(own_broker, "headrace_compaction_removed_records_total") > 3000)
    own_broker.kill()
    own_broker.start()
    files = (own_broker.data_dir / "partitions").rglob("*.log")
    assert sum(file.stat().st_size for file in files) < 8 << 20
    with Admin(own_broker.url) as admin:
        assert {each.offset for each in admin.group_offsets("g").offsets} == {79}


def test_an_expired_record_is_not_handed_out(own_broker: BrokerProcess) -> None:
    own_broker.start()
    with Admin(own_broker.url) as admin:
        admin.create_topic(TOPIC, partitions=1, config={"record.ttl.ms": 600_000})
    old = int((time.time() - 3600) * 1000)
    with Producer(own_broker.url) as producer:
        producer.send(TOPIC, b"old", timestamp_ms=old)
        assert read_values(own_broker) == []
        producer.send(TOPIC, b"new")
        producer.send(TOPIC, b"old too", timestamp_ms=old)
    assert read_values(own_broker) == [b"new"]
    assert records_by_json(own_broker) == [1]


def read_values(broker: BrokerProcess) -> list[bytes | None]:
    end = end_of(broker)
    found: list[bytes | None] = []
    with Consumer(broker.url, TOPIC, offset_reset="earliest") as consumer:
        while (consumer.position((TOPIC, 0)) or 0) < end:
            found += [record.value for record in consumer.fetch(timeout=0.3)]
    return found
