"""What users copy: the examples of Spark's Kafka guide by search and replace, and the pipeline."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="Spark isn't installed")

from pyspark.sql import DataFrame, SparkSession

from headrace.demo.flights import load_flights
from headrace.sdk.sync import Admin, Consumer, Producer
from testkit.brokers import BrokerProcess

ROOT = Path(__file__).parents[2]

READS = {
    "one topic": '.option("subscribe", "topic1")',
    "several topics, explicit offsets": """
        .option("subscribe", "topic1,topic2")
        .option("startingOffsets", '{"topic1":{"0":23,"1":-2},"topic2":{"0":-2}}')
        .option("endingOffsets", '{"topic1":{"0":50,"1":-1},"topic2":{"0":-1}}')
        """,
    "a pattern, earliest and latest": """
        .option("subscribePattern", "topic.*")
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        """,
    "with headers": '.option("subscribe", "topic1").option("includeHeaders", "true")',
}
"""Batch queries as the guide has them, between the servers and `load()`."""

ROWS = {
    "one topic": 100,
    "several topics, explicit offsets": 27 + 40 + 30,
    "a pattern, earliest and latest": 130,
    "with headers": 100,
}

READ = """(spark.read.format("kafka")
    .option("kafka.bootstrap.servers", "host1:port1,host2:port2"){}.load()
    .selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)"))"""

WRITE_ONE = """(df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    .write.format("kafka")
    .option("kafka.bootstrap.servers", "host1:port1,host2:port2")
    .option("topic", "out1").save())"""

WRITE_BY_COLUMN = """(df
    .selectExpr("'out2' AS topic", "CAST(key AS STRING)", "CAST(value AS STRING)")
    .write.format("kafka")
    .option("kafka.bootstrap.servers", "host1:port1,host2:port2").save())"""

STREAM = """(spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "host1:port1,host2:port2")
    .option("subscribe", "topic1").option("startingOffsets", "earliest").load()
    .selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    .writeStream.format("kafka")
    .option("checkpointLocation", checkpoint)
    .option("kafka.bootstrap.servers", "host1:port1,host2:port2")
    .option("topic", "out3").trigger(availableNow=True).start())"""


def translated(example: str, address: str) -> str:
    """What docs/spark.md tells to do to a Kafka job."""
    text = example.replace("kafka", "headrace").replace(".save()", '.mode("append").save()')
    return text.replace("host1:port1,host2:port2", address)


@pytest.fixture(scope="module")
def guide(broker: BrokerProcess) -> str:
    """The guide's topics, filled; the address as Kafka's are written."""
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        for topic, partitions in [("topic1", 2), ("topic2", 1), ("out1", 2), ("out2", 1)]:
            admin.create_topic(topic, partitions=partitions)
        admin.create_topic("out3", partitions=1)
        for topic, partition, count in [("topic1", 0, 60), ("topic1", 1, 40), ("topic2", 0, 30)]:
            keys = [b"k%d" % index for index in range(count)]
            values = [b"%s-%d-%d" % (topic.encode(), partition, n) for n in range(count)]
            producer.send_many(topic, values, keys=keys, partition=partition)
    return broker.url.removeprefix("http://")


@pytest.mark.parametrize("name", READS)
def test_the_guides_reads(spark: SparkSession, guide: str, name: str) -> None:
    frame: DataFrame = eval(translated(READ.format(READS[name]), guide), {"spark": spark})
    rows = frame.collect()
    assert len(rows) == ROWS[name]
    assert len({row["value"] for row in rows}) == len(rows)
    assert frame.columns == ["key", "value"]


def test_the_guides_writes(spark: SparkSession, guide: str, tmp_path: Path) -> None:
    frame: DataFrame = eval(translated(READ.format(READS["one topic"]), guide), {"spark": spark})
    sent = {(row["key"].encode(), row["value"].encode()) for row in frame.collect()}
    names: dict[str, Any] = {"spark": spark, "df": frame, "checkpoint": str(tmp_path)}
    eval(translated(WRITE_ONE, guide), names)
    eval(translated(WRITE_BY_COLUMN, guide), names)
    eval(translated(STREAM, guide), names).awaitTermination()
    found = defaultdict(list)
    with Consumer(f"http://{guide}", "out1", "out2", "out3", offset_reset="earliest") as consumer:
        while records := consumer.fetch(timeout=1):
            for record in records:
                found[record.topic].append((record.key, record.value))
    for topic in ("out1", "out2", "out3"):
        assert len(found[topic]) == 100
        assert set(found[topic]) == sent


def test_the_pipeline_computes_what_plain_python_does(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("flights", ROOT / "examples/spark/flights.py")
    assert spec is not None
    assert spec.loader is not None
    pipeline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pipeline)
    flights = load_flights(5_000)
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        for topic in ("flights", "flight-delays-by-day"):
            admin.create_topic(topic, partitions=2)
        producer.send_many("flights", flights.values, keys=flights.keys)
    parser_arguments = ["--bootstrap", broker.url, "--now", "--checkpoint", str(tmp_path / "c")]
    pipeline.main([*parser_arguments, "--parquet", str(tmp_path / "out")])
    days: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for value in flights.values:
        row = msgspec.json.decode(value)
        days[row["time_hour"][:10], row["carrier"]].append(row["arr_delay"])
    latest = max(day for day, _ in days)
    written = spark.read.parquet(str(tmp_path / "out")).collect()
    found = {(str(row["date"]), row["carrier"]): row for row in written}
    assert len(found) == len(written)
    assert {day for day, _ in found} >= {"2013-01-01", "2013-01-02"}
    assert latest not in {day for day, _ in found}  # Within the watermark: more may come.
    for where, row in found.items():
        known = [delay for delay in days[where] if delay is not None]
        assert row["flights"] == len(days[where])
        assert row["mean_delay"] == pytest.approx(sum(known) / len(known))
    with Consumer(broker.url, "flight-delays-by-day", offset_reset="earliest") as consumer:
        records = consumer.fetch(max_records=1000, timeout=5)
    assert len(records) == len(written)
