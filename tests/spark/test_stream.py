"""`spark.readStream` and `df.writeStream`: restarts, failures, limits, and what happens to a
cluster under a running query."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

pytest.importorskip("pyspark", reason="Spark isn't installed")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.sdk.sync import Admin, Producer
from pyspark_headrace import LagExporter, lag
from testkit.brokers import BrokerProcess
from testkit.clusters import ClusterProcesses
from testkit.flaky_spark import FlakySource


def stream(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    """A stream from the beginning."""
    wanted = {"headrace.bootstrap.servers": broker.url, "startingOffsets": "earliest", **options}
    return spark.readStream.format("headrace").options(**wanted).load()


class Collected:
    """What a query has given: rows gathered by `foreachBatch`, over restarts."""

    def __init__(self, folder: Path) -> None:
        self.rows: list[tuple[str, int, int]] = []
        self._checkpoint = str(folder / "checkpoint")

    def start(self, frame: DataFrame, *, now: bool = True) -> StreamingQuery:
        """A query on this collection's checkpoint; with `now` up to what is there."""
        chosen = frame.select("topic", "partition", "offset")
        writer = chosen.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", self._checkpoint)
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run(self, frame: DataFrame) -> StreamingQuery:
        """Reads all there is and stops.

        Raises:
            StreamingQueryException: the query fails.
        """
        query = self.start(frame)
        assert query.awaitTermination(60)
        return query

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self.rows += [tuple(row) for row in frame.collect()]

    def check(self, counts: dict[str, int]) -> None:
        """Every record of each topic came, once."""
        assert Counter(topic for topic, _, _ in self.rows) == counts
        assert len(set(self.rows)) == len(self.rows)


@pytest.fixture
def collected(tmp_path: Path) -> Collected:
    """An empty collection."""
    return Collected(tmp_path)


def make(broker: BrokerProcess, topic: str, *, partitions: int = 1, records: int = 0) -> None:
    with Admin(broker.url) as admin:
        admin.create_topic(topic, partitions=partitions)
    send(broker, topic, records, partitions=partitions)


def send(broker: BrokerProcess, topic: str, records: int, *, partitions: int = 1) -> None:
    with Producer(broker.url) as producer:
        for number in range(partitions):
            values = [b"%d/%d" % (number, index) for index in range(records // partitions)]
            producer.send_many(topic, values, partition=number)


def sizes(query: StreamingQuery) -> list[int]:
    return [each.numInputRows for each in query.recentProgress if each.numInputRows]


def test_limits_of_a_trigger_and_a_restart(
    spark: SparkSession, broker: BrokerProcess, collected: Collected
) -> None:
    make(broker, "limits", partitions=3, records=3000)
    named = {"subscribe": "limits", "headrace.group.id": "readers"}
    query = collected.run(stream(spark, broker, maxOffsetsPerTrigger=1001, **named))
    assert sizes(query) == [1001, 1001, 998]
    progress = query.lastProgress
    assert progress is not None
    assert lag(progress) == {("limits", 0): 0, ("limits", 1): 0, ("limits", 2): 0}
    with Admin(broker.url) as admin:
        committed = [each.offset for each in admin.group_offsets("readers").offsets]
        assert sum(committed) == 3000
        admin.alter_topic("limits", partitions=4)
    for number in range(4):
        with Producer(broker.url) as producer:
            for _ in range(3):  # Each a stored batch.
                producer.send_many("limits", [b"v" * 100] * 100, partition=number)
    query = collected.run(stream(spark, broker, maxBytesPerTrigger=41_000, **named))
    assert len(sizes(query)) == 3
    assert sum(sizes(query)) == 1200
    collected.check({"limits": 4200})


def test_a_trigger_waits_for_enough_records_or_long_enough(
    spark: SparkSession, broker: BrokerProcess, collected: Collected
) -> None:
    make(broker, "few", records=10)
    options = {"subscribe": "few", "minOffsetsPerTrigger": 50, "maxTriggerDelay": "4s"}
    query = collected.start(stream(spark, broker, **options), now=False)
    try:
        wait_for(lambda: len(collected.rows) == 10, query)
        began = time.monotonic()
        send(broker, "few", 20)
        wait_for(lambda: len(collected.rows) == 30, query)
        assert time.monotonic() - began > 2
        began = time.monotonic()
        send(broker, "few", 60)
        wait_for(lambda: len(collected.rows) == 90, query)
        assert time.monotonic() - began < 2
    finally:
        query.stop()


def wait_for(condition: Any, query: StreamingQuery, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, "it didn't come to that"
        time.sleep(0.02)


def requests(broker: BrokerProcess) -> float:
    """Requests that the broker has answered so far."""
    with urllib.request.urlopen(broker.health_url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    counts = [
        line.rsplit(" ", 1)[1] for line in lines if line.startswith("headrace_requests_total")
    ]
    return sum(map(float, counts))


def test_an_idle_query_asks_little_and_still_answers_at_once(
    spark: SparkSession, broker: BrokerProcess, collected: Collected
) -> None:
    make(broker, "idle", records=1)
    registry = CollectorRegistry()
    exporter = LagExporter(registry)
    spark.streams.addListener(exporter)
    query = collected.start(stream(spark, broker, subscribe="idle"), now=False)
    try:
        query.processAllAvailable()
        named = {"query": str(query.id), "topic": "idle", "partition": "0"}
        wait_for(lambda: registry.get_sample_value("headrace_spark_lag_records", named) == 0, query)
        for count in range(2, 5):
            send(broker, "idle", 1)
            query.processAllAvailable()
            assert len(collected.rows) == count
        before, began = requests(broker), time.monotonic()
        time.sleep(2)
        assert (requests(broker) - before) / (time.monotonic() - began) <= 10
    finally:
        query.stop()
        spark.streams.removeListener(exporter)


def test_new_topics_and_partitions_are_taken_up(
    spark: SparkSession, broker: BrokerProcess, collected: Collected
) -> None:
    make(broker, "grow-a", records=10)
    query = collected.start(stream(spark, broker, subscribePattern="grow-.*"), now=False)
    try:
        wait_for(lambda: len(collected.rows) == 10, query)
        make(broker, "grow-b", records=20)
        with Admin(broker.url) as admin, Producer(broker.url) as producer:
            admin.alter_topic("grow-a", partitions=2)
            producer.send_many("grow-a", [b"v"] * 30, partition=1)
        wait_for(lambda: len(collected.rows) == 60, query)
        collected.check({"grow-a": 40, "grow-b": 20})
    finally:
        query.stop()


def test_records_that_retention_took_are_loss_or_passed_over(
    spark: SparkSession, broker: BrokerProcess, collected: Collected
) -> None:
    make(broker, "short", records=100)
    strict = stream(spark, broker, subscribe="short")
    collected.run(strict)
    send(broker, "short", 100)
    with Admin(broker.url) as admin:
        admin.delete_records({("short", 0): 150})
    with pytest.raises(StreamingQueryException, match="offsets 100 to 149 are gone"):
        collected.run(strict)
    collected.run(stream(spark, broker, subscribe="short", failOnDataLoss=False))
    collected.check({"short": 150})


def test_a_topic_that_is_made_again_is_another_topic(
    spark: SparkSession, broker: BrokerProcess, collected: Collected
) -> None:
    make(broker, "again", records=10)
    strict = stream(spark, broker, subscribe="again")
    collected.run(strict)
    with Admin(broker.url) as admin:
        admin.delete_topic("again")
    with pytest.raises(StreamingQueryException, match="topic 'again' is gone"):
        collected.run(strict)
    make(broker, "again", records=50)
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        collected.run(strict)
    collected.rows.clear()
    collected.run(stream(spark, broker, subscribe="again", failOnDataLoss=False))
    collected.check({"again": 50})


def test_a_leader_that_is_killed_delays_a_query_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, collected: Collected
) -> None:
    cluster = ClusterProcesses(tmp_path / "three").start()
    try:
        with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            admin.create_topic("killed", partitions=3, replicas=3)
            for number in range(3):
                producer.send_many("killed", [b"v"] * 400, partition=number)
            source = spark.readStream.format("headrace").option("subscribe", "killed")
            source = source.option("headrace.bootstrap.servers", cluster.bootstrap)
            source = source.option("startingOffsets", "earliest")
            frame = source.option("maxOffsetsPerTrigger", 200).load()
            query = collected.start(frame, now=False)
            wait_for(lambda: len(collected.rows) >= 200, query)
            leader = admin.describe_topic("killed").partitions[0].leader
            assert leader is not None
            cluster.brokers[leader].kill()
            for number in range(3):
                producer.send_many("killed", [b"w"] * 100, partition=number)
            wait_for(lambda: len(collected.rows) >= 1500, query)
            assert admin.describe_topic("killed").partitions[0].leader != leader
            query.stop()
        collected.check({"killed": 1500})
    finally:
        cluster.stop()


@pytest.fixture
def flaky(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder for the sink that fails."""
    spark.dataSource.register(FlakySource)
    folder = tmp_path / "flaky"
    folder.mkdir()
    return folder


def test_failed_tasks_and_commits_are_made_good(
    spark: SparkSession, broker: BrokerProcess, flaky: Path
) -> None:
    make(broker, "from", partitions=2, records=600)
    make(broker, "into", partitions=2)
    frame = stream(spark, broker, subscribe="from", maxOffsetsPerTrigger=200)

    def run() -> StreamingQuery:
        writer = frame.select("key", "value").writeStream.format("flaky")
        writer = writer.option("headrace.bootstrap.servers", broker.url).option("topic", "into")
        writer = writer.option("checkpointLocation", str(flaky / "checkpoint"))
        query = writer.option("path", str(flaky)).trigger(availableNow=True).start()
        query.awaitTermination(60)
        return query

    with pytest.raises(StreamingQueryException, match="this commit fails"):
        run()
    query = run()
    wanted = {b"%d/%d" % (number, index) for number in range(2) for index in range(300)}
    loader = spark.read.format("headrace").option("headrace.bootstrap.servers", broker.url)
    rows = loader.option("subscribe", "into").load().select("value").collect()
    counts = Counter(bytes(row["value"]) for row in rows)
    assert counts.keys() == wanted
    twice = sum(count - 1 for count in counts.values())
    assert 100 + 200 <= twice <= 200 + 200  # a task's rows, then a whole micro-batch
    for batch in range(3):  # What transactions will lean on: Spark tells tasks who they are.
        told = json.loads((flaky / f"batch-{batch}.json").read_text())
        assert told == [[query.id, batch]] * 2
