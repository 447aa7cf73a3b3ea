"""The stream reader as Spark's driver calls it, over a real broker and without Spark's machinery:
what every option makes of the offsets."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark isn't installed")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from headrace.protocol.errors import (
    HeadraceError,
    InvalidConfig,
    OffsetOutOfRange,
    TopicNotFound,
)
from headrace.sdk.sync import Admin, Producer
from headrace.spark.source import HeadraceDataSource
from headrace.spark.stream import HeadraceStreamReader
from testkit.brokers import BrokerProcess

NOON_MS = 1_700_000_000_000
RECORDS = 100
SIZES = {0: RECORDS, 1: 10}
ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> BrokerProcess:
    """Topic `plain`: partition 0 with 100 records a second apart, 1 with 10 at noon."""
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic("plain", partitions=2)
        stamps = [NOON_MS + 1000 * index for index in range(RECORDS)]
        for first in range(0, RECORDS, 10):  # Stored batches of ten.
            stamps_of = stamps[first : first + 10]
            producer.send_many("plain", [b"v" * 100] * 10, timestamps_ms=stamps_of, partition=0)
        producer.send_many("plain", [b"v" * 100] * 10, timestamps_ms=[NOON_MS] * 10, partition=1)
    return broker


def reader(broker: BrokerProcess, **options: Any) -> HeadraceStreamReader:
    """What Spark makes of the options."""
    given = {"headrace.bootstrap.servers": broker.url, "subscribe": "plain", **options}
    source = HeadraceDataSource({name.lower(): str(each) for name, each in given.items()})
    found = source.streamReader(source.schema())
    assert isinstance(found, HeadraceStreamReader)
    return found


def numbers(offset: dict[str, Any], topic: str = "plain") -> list[int]:
    """Its offsets by partition."""
    return [value for name, value in offset[topic].items() if name != "id"]


BY_TIME = f'{{"plain": {{"0": {NOON_MS + 41_500}, "1": 0}}}}'
LATE = {"startingTimestamp": NOON_MS + 5000}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [100, 10]),
        ({"startingOffsets": "earliest"}, [0, 0]),
        ({"startingOffsets": '{"plain": {"0": 7, "1": -1}}'}, [7, 10]),
        ({"startingTimestamp": NOON_MS - 1}, [0, 0]),
        ({"startingTimestamp": NOON_MS, "startingOffsets": "latest"}, [0, 0]),
        ({"startingOffsetsByTimestamp": BY_TIME}, [42, 0]),
        ({**LATE, "startingOffsetsByTimestampStrategy": "latest"}, [5, 10]),
    ],
)
def test_where_a_new_query_begins(
    filled: BrokerProcess, options: dict[str, Any], wanted: list[int]
) -> None:
    assert numbers(reader(filled, **options).initialOffset()) == wanted


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (LATE, OffsetOutOfRange, "no record at or after"),
        ({"startingOffsets": '{"plain": {"0": 7}}'}, InvalidConfig, "missing: plain/1"),
        ({"startingOffsets": '{"x": {"0": 7}}'}, InvalidConfig, "not among them: x/0"),
        ({"subscribe": "plain,nowhere"}, TopicNotFound, "no topic 'nowhere'"),
        ({"startingOffsets": '{"plain": {"id": "0", "0": 1, "1": 1}}'}, TopicNotFound, "again"),
    ],
)
def test_where_a_new_query_cant_begin(
    filled: BrokerProcess, options: dict[str, Any], kind: type[HeadraceError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        reader(filled, **options).initialOffset()


def test_one_partition_that_was_assigned_is_all_that_is_read(filled: BrokerProcess) -> None:
    options = {"startingOffsets": "earliest", "assign": '{"plain": [1]}'}
    given = {"headrace.bootstrap.servers": filled.url, **options}
    source = HeadraceDataSource({name.lower(): each for name, each in given.items()})
    one = source.streamReader(source.schema())
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert [name for name in end["plain"] if name != "id"] == ["1"]
    assert end["plain"]["1"] == 10


def limited(found: HeadraceStreamReader) -> list[list[int]]:
    """The ends of all micro-batches until nothing is left."""
    start, limit = found.initialOffset(), found.getDefaultReadLimit()
    ends = []
    while (end := found.latestOffset(start, limit)) != start:
        ends.append(numbers(end))
        start = end
        assert len(ends) < 50
    return ends


@pytest.mark.parametrize(
    ("options", "kind", "count"),
    [
        ({}, ReadAllAvailable, 1),
        ({"maxOffsetsPerTrigger": 40}, ReadMaxRows, 3),
        ({"maxBytesPerTrigger": 2500}, ReadMaxBytes, 0),
        ({"minOffsetsPerTrigger": 50}, ReadMinRows, 1),
        ({"minOffsetsPerTrigger": 30, "maxOffsetsPerTrigger": 60}, ReadMaxRows, 2),
    ],
)
def test_limits_cut_what_is_there(
    filled: BrokerProcess, options: dict[str, Any], kind: type[ReadLimit], count: int
) -> None:
    now = reader(filled, startingOffsets="earliest", **options)
    assert isinstance(now.getDefaultReadLimit(), kind)
    now.prepareForTriggerAvailableNow()
    ends = limited(now)
    assert ends[-1] == [100, 10]
    assert len(ends) == count or (not count and 4 <= len(ends) <= 12)
    assert now.reportLatestOffset() == now.latestOffset(now.initialOffset(), ALL)
    largest = options.get("maxOffsetsPerTrigger", 110)
    taken = [sum(ends[0])] + [sum(b) - sum(a) for a, b in zip(ends, ends[1:], strict=False)]
    assert max(taken) <= largest


def test_now_is_when_the_query_was_started(filled: BrokerProcess) -> None:
    with Admin(filled.url) as admin, Producer(filled.url) as producer:
        admin.create_topic("moving", partitions=1)
        producer.send_many("moving", [b"v"] * 20)
        now = reader(filled, subscribe="moving", startingOffsets="earliest")
        now.prepareForTriggerAvailableNow()
        producer.send_many("moving", [b"v"] * 5)
    end = now.latestOffset(now.initialOffset(), ALL)
    assert numbers(end, "moving") == [20]
    assert now.latestOffset(end, ALL) == end


def test_few_records_wait_until_the_delay_is_over(filled: BrokerProcess) -> None:
    with Admin(filled.url) as admin:
        admin.create_topic("seldom", partitions=1)
    named = {"subscribe": "seldom", "startingOffsets": "earliest"}
    one = reader(filled, **named, minOffsetsPerTrigger=10, maxTriggerDelay="1s")
    limit = one.getDefaultReadLimit()
    with Producer(filled.url) as producer:
        producer.send_many("seldom", [b"v"] * 3)
        start = one.latestOffset(one.initialOffset(), limit)
        assert numbers(start, "seldom") == [3]  # A query's first trigger shows life at once.
        began = time.monotonic()
        producer.send_many("seldom", [b"v"] * 3)
        asked = 0
        while (end := one.latestOffset(start, limit)) == start:
            asked += 1
            assert time.monotonic() - began < 10
        assert time.monotonic() - began > 0.9
        assert numbers(end, "seldom") == [6]
        assert asked <= 10  # It waits at the broker, not by asking again and again.
        producer.send_many("seldom", [b"v"] * 10)
        began = time.monotonic()
        assert numbers(one.latestOffset(end, limit), "seldom") == [16]
        assert time.monotonic() - began < 0.9


def test_tasks_cover_the_offsets_once_and_keep_their_limits(filled: BrokerProcess) -> None:
    for options, count in [
        ({}, 2),
        ({"minPartitions": 6}, 6),
        ({"maxRecordsPerPartition": 30}, 5),
        ({"minPartitions": 2, "maxRecordsPerPartition": 30}, 5),
    ]:
        whole = reader(filled, startingOffsets="earliest", **options)
        start = whole.initialOffset()
        tasks = whole.partitions(start, whole.latestOffset(start, ALL))
        assert len(tasks) == count
        found: Counter[tuple[int, int]] = Counter()
        worker = pickle.loads(pickle.dumps(whole))  # As it comes to an executor.
        for task in tasks:
            for batch in worker.read(task):
                rows = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
                found.update(rows)
        assert found == {(n, offset): 1 for n, size in SIZES.items() for offset in range(size)}


def test_what_is_read_is_published_in_the_groups_name(filled: BrokerProcess) -> None:
    one = reader(filled, startingOffsets="earliest", groupIdPrefix="spark")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    with Admin(filled.url) as admin:

        def published() -> list[int]:
            found = admin.group_offsets("spark-plain").offsets
            return [each.offset for each in sorted(found, key=lambda each: each.partition)]

        assert published() == [0, 0]  # Planned is not read.
        assert one.latestOffset(end, ALL) == end
        assert published() == [100, 10]  # Spark asks for more when a micro-batch is done.
        one.commit(end)
        assert published() == [100, 10]
