"""`spark.read` and `df.write` against a real broker."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark isn't installed")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace.sdk import Record
from headrace.sdk.sync import Admin, Consumer, Producer
from testkit.brokers import BrokerProcess

NOON_MS = 1_700_000_000_000


def reader(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrameReader:
    """A reader with the address and options."""
    return spark.read.format("headrace").options(
        **{"headrace.bootstrap.servers": broker.url, **options}
    )


def _stream(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str]
) -> DataStreamReader:
    stream = spark.readStream.format("headrace").options(**options)
    return stream.option("headrace.bootstrap.servers", broker.url)


def places(frame: DataFrame) -> set[tuple[str, int, int]]:
    """Topic, partition and offset of all rows."""
    rows = frame.select("topic", "partition", "offset").collect()
    assert len(set(rows)) == len(rows)
    return {tuple(row) for row in rows}


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> BrokerProcess:
    """Topic `batch` of two partitions: 0 with 1,000 records a second apart, 1 with 10."""
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic("batch", partitions=2)
        stamps = [NOON_MS + 1000 * index for index in range(1000)]
        values = [b"%d" % index for index in range(1000)]
        producer.send_many("batch", values, timestamps_ms=stamps, partition=0)
        for index in range(10):
            producer.send(
                "batch", None, key=b"k", headers={"n": b"%d" % index, "none": None}, partition=1,
                timestamp_ms=NOON_MS,
            )  # fmt: skip
    return broker


def test_a_record_has_the_columns_of_the_kafka_source(
    spark: SparkSession, filled: BrokerProcess
) -> None:
    frame = reader(spark, filled, subscribe="batch", includeHeaders=True).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert len(places(frame)) == 1010
    first = frame.where("partition = 0 and offset = 999").first()
    assert first is not None
    assert first["timestamp"].astimezone(UTC) == datetime.fromtimestamp(NOON_MS / 1000 + 999, UTC)
    assert (first["key"], first["value"], first["headers"]) == (None, b"999", None)
    last = frame.where("partition = 1 and offset = 9").first()
    assert last is not None
    assert (last["key"], last["value"], last["timestampType"]) == (b"k", None, 0)
    assert [tuple(each) for each in last["headers"]] == [("n", b"9"), ("none", None)]
    chosen = reader(spark, filled, subscribe="batch").schema("value binary, offset bigint").load()
    assert chosen.columns == ["value", "offset"]
    assert chosen.agg(f.sum("offset")).first() == (999 * 500 + 45,)


def test_ranges_by_offset_time_and_size(spark: SparkSession, filled: BrokerProcess) -> None:
    def offsets(**options: Any) -> tuple[int, int, int]:
        frame = reader(spark, filled, assign='{"batch": [0]}', **options).load()
        row = frame.agg(f.min("offset"), f.max("offset"), f.count("*")).collect()[0]
        low, high, count = row[0], row[1], row[2]
        assert count == high - low + 1
        return low, high, frame.rdd.getNumPartitions()

    def json_of(number: int) -> str:
        return json.dumps({"batch": {"0": number}})

    at = NOON_MS + 500_000
    assert offsets(startingOffsets=json_of(10), endingOffsets=json_of(20)) == (10, 19, 1)
    assert offsets(startingOffsets=json_of(-2), endingOffsets=json_of(-1)) == (0, 999, 1)
    assert offsets(startingTimestamp=at, endingTimestamp=at + 10_000) == (500, 509, 1)
    by_time = {"startingOffsetsByTimestamp": json_of(at), "endingOffsets": json_of(510)}
    assert offsets(**by_time) == (500, 509, 1)
    assert offsets(endingOffsetsByTimestamp=json_of(at)) == (0, 499, 1)
    assert offsets(endingTimestamp=at * 2) == (0, 999, 1)
    assert offsets(minPartitions=7) == (0, 999, 7)
    assert offsets(maxRecordsPerPartition=300) == (0, 999, 4)
    late = {"startingTimestamp": at * 2, "subscribePattern": "batc."}
    with pytest.raises(PySparkException, match="no record at or after"):
        reader(spark, filled, **late).load().count()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert reader(spark, filled, **late).load().count() == 0


def test_mistakes_are_told_before_anything_runs(spark: SparkSession, filled: BrokerProcess) -> None:
    for options, words in [
        ({"subscribe": "batch", "failOnDataLos": "false"}, "did you mean 'failOnDataLoss'"),
        ({"subscribe": "batch", "startingOffsets": "{"}, "startingOffsets is not JSON"),
        ({}, "exactly one of subscribe"),
    ]:
        with pytest.raises(PySparkException, match=words):
            reader(spark, filled, **options).load()
    with pytest.raises(PySparkException, match="exactly one of subscribe"):
        _stream(spark, filled, {}).load()
    with pytest.raises(PySparkException, match="there is no topic 'no-such'"):
        reader(spark, filled, subscribe="batch,no-such").load().count()
    with pytest.raises(PySparkException, match="has no column 'body'"):
        reader(spark, filled, subscribe="batch").schema("body binary").load().count()
    ending = '{"batch": {"0": 2000, "1": -1}}'
    with pytest.raises(PySparkException, match="ends at 1000, endingOffsets say 2000"):
        reader(spark, filled, subscribe="batch", endingOffsets=ending).load().count()
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    for frame_, options, words in [
        (frame, {"topic": "t", "acks": "all"}, "option 'acks' is not known"),
        (spark.range(1), {"topic": "t"}, "a column value"),
        (frame, {}, "where to"),
    ]:
        writer = frame_.write.format("headrace").mode("append").options(**options)
        writer = writer.option("headrace.bootstrap.servers", filled.url)
        with pytest.raises(PySparkException, match=words):
            writer.save()


def test_filters_prune_what_is_read(spark: SparkSession, filled: BrokerProcess) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = reader(spark, filled, subscribe="batch", filterPushdown=True).load()
        few = frame.where("partition = 0 and offset >= 990 and offset < 995 and value <> '991'")
        assert {row[2] for row in places(few)} == {990, 992, 993, 994}
        assert few.rdd.getNumPartitions() == 1
        assert frame.where("topic = 'other'").count() == 0
        assert frame.where("partition = 1 and key = 'k'").count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_retention_is_loss_or_told_and_passed_over(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic("expiring", partitions=1)
        producer.send_many("expiring", [b"v"] * 100)
        admin.delete_records({("expiring", 0): 40})
    start = '{"expiring": {"0": 10}}'
    with pytest.raises(PySparkException, match=r"expiring/0: offsets 10 to 39 are gone"):
        reader(spark, broker, subscribe="expiring", startingOffsets=start).load().count()
    lenient = reader(
        spark, broker, subscribe="expiring", startingOffsets=start, failOnDataLoss=False
    )
    assert {row[2] for row in places(lenient.load())} == set(range(40, 100))
    assert len(places(reader(spark, broker, subscribe="expiring").load())) == 60


def test_offsets_that_compaction_removed_are_no_loss(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    config: dict[str, Any] = {
        "cleanup.policy": "compact",
        "segment.bytes": 40_000,
        "min.cleanable.dirty.ratio": 0.01,
    }
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic("compacted", partitions=1, config=config)
        for index in range(400):
            keys = [b"%d" % ((index * 10 + number) % 20) for number in range(10)]
            values = [b"%d" % index + b"-" * 100] * 10
            producer.send_many("compacted", values, keys=keys)
    wanted = reader(spark, broker, subscribe="compacted", minPartitions=3)
    deadline = time.monotonic() + 30
    while wanted.load().count() > 3000:
        assert time.monotonic() < deadline, "the broker compacts nothing"
        time.sleep(0.2)
    rows = wanted.load().groupBy("key").agg(f.max_by("value", "offset").alias("value")).collect()
    assert {row["key"]: row["value"][:4] for row in rows} == {
        b"%d" % number: b"39%d-" % (8 + number // 10) for number in range(20)
    }


def test_rows_are_written_where_their_columns_say(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with Admin(broker.url) as admin:
        admin.create_topic("to-a", partitions=3)
        admin.create_topic("to-b", partitions=1)
    frame = spark.range(300).selectExpr(
        "if(id % 3 = 0, null, cast(id as string)) as key",
        "if(id = 5, null, cast(cast(id as string) as binary)) as value",
        "if(id % 2 = 0, 'to-a', 'to-b') as topic",
        "if(id % 2 = 0, cast(id % 3 as int), 0) as partition",
        "timestamp_millis(1700000000000 + id) as timestamp",
        "if(id = 7, array(named_struct('key', 'h', 'value', cast('x' as binary))), null)"
        " as headers",
        "id as ignored",
    )
    writer = frame.write.format("headrace").mode("append")
    writer.option("headrace.bootstrap.servers", broker.url).save()
    seen: dict[int, Record] = {}
    with Consumer(broker.url, "to-a", "to-b", offset_reset="earliest") as consumer:
        while len(seen) < 300:
            records = consumer.fetch(timeout=10)
            assert records
            for record in records:
                number = record.timestamp_ms - 1_700_000_000_000
                assert number not in seen
                seen[number] = record
    for number, record in seen.items():
        even = number % 2 == 0
        assert record.topic == ("to-a" if even else "to-b")
        assert record.partition == (number % 3 if even else 0)
        assert record.key == (None if number % 3 == 0 else b"%d" % number)
        assert record.value == (None if number == 5 else b"%d" % number)
        assert dict(record.headers) == ({"h": b"x"} if number == 7 else {})
    again = reader(spark, broker, subscribe="to-b").load().select("key", "value")
    named = again.write.format("headrace").mode("append").option("topic", "to-b")
    named = named.option("owner", "job").option("seq", 1).option("headrace.acks", "1")
    named = named.option("headrace.compression.type", "zstd").option("headrace.batch.size", 4096)
    named = named.option("headrace.linger.ms", 5).option("headrace.delivery.timeout.ms", 30_000)
    named = named.option("delivery", "at-least-once").option("includeHeaders", "true")
    named.option("headrace.bootstrap.servers", broker.url).save()
    assert reader(spark, broker, subscribe="to-b").load().count() == 300
    beyond = frame.select("value", "topic").selectExpr("*", "9 as partition").limit(1)
    writer = beyond.write.format("headrace").mode("append")
    with pytest.raises(PySparkException, match="to-a.*partitions 0 to 2"):
        writer.option("headrace.bootstrap.servers", broker.url).save()
    with pytest.raises(PySparkException, match="can't be overwritten"):
        frame.write.format("headrace").mode("overwrite").option(
            "headrace.bootstrap.servers", broker.url
        ).save()
