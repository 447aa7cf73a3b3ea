"""Spark over Headrace, beside Spark over nothing: the share of what Spark itself can take.

    python bench/spark.py                     # 5,000,000 records of 100 bytes, about three minutes
    python bench/spark.py --records 1000000   # a first look

Broker, JVM and Python workers share the machine's cores. Rounds go over all measurements in turn,
a first turn counts for nothing (JIT, page cache); the table has medians, and the smallest and the
largest round. README.md says how to read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from own_broker import own_broker, show
from pyspark.sql import DataFrame, SparkSession
from spark_generator import GeneratorSource, RowsSource, TuplesSource

from headrace.demo.java import java_home
from headrace.sdk.sync import Admin, Producer

TASKS = 2
PER_TRIGGER = 1_000_000
CHUNK = 10_000
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
PLAIN_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""By default Spark starts a `chmod` for every file of a checkpoint in a local folder."""


def session(folder: Path, master: str) -> SparkSession:
    """A session whose workers find this folder's and the packages' modules."""
    os.environ["JAVA_HOME"] = str(java_home(folder))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    builder = SparkSession.builder.master(master).appName("headrace bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(GeneratorSource)
    spark.dataSource.register(TuplesSource)
    spark.dataSource.register(RowsSource)
    return spark


class Bench:
    """All measurements over one broker and one session. Each answers rows a second, or seconds."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, records: int) -> None:
        self.spark, self.url, self.folder, self.records = spark, url, folder, records
        self.round = 0

    def fill(self) -> None:
        """The topic that is read."""
        values = [b"%0100d" % index for index in range(CHUNK)]
        with Admin(self.url) as admin, Producer(self.url) as producer:
            config = {"flush.policy": "interval"}
            admin.create_topic("bench", partitions=TASKS, config=config)
            admin.create_topic("latency", partitions=1, config=config)
            for _ in range(self.records // CHUNK // TASKS):
                for number in range(TASKS):
                    producer.send_many("bench", values, partition=number)

    def topic(self, *, schema: str | None = None, **options: str | int) -> DataFrame:
        """All of it."""
        reader = self._source(self.spark.read, "headrace").options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    def rows(self, count: int) -> DataFrame:
        """The first `count` records, as a source without Arrow would give them."""
        ends = {str(number): count // TASKS for number in range(TASKS)}
        reader = self._source(self.spark.read, "headrace-rows")
        return reader.option("endingOffsets", json.dumps({"bench": ends})).load()

    def topic_stream(self) -> DataFrame:
        """All of it, in micro-batches."""
        source = self._source(self.spark.readStream, "headrace")
        return source.option("maxOffsetsPerTrigger", PER_TRIGGER).load()

    def _source(self, source: Any, name: str) -> Any:
        source = source.format(name).option("headrace.bootstrap.servers", self.url)
        return source.option("subscribe", "bench").option("startingOffsets", "earliest")

    def made(self, name: str, *, rows: int, stream: bool = False) -> DataFrame:
        """Rows out of nothing."""
        source = (self.spark.readStream if stream else self.spark.read).format(name)
        return source.options(rows=rows, tasks=TASKS, limit=PER_TRIGGER).load()

    def read(self, frame: DataFrame, rows: int) -> float:
        """A batch into nothing."""
        began = time.perf_counter()
        frame.write.format("noop").mode("append").save()
        return rows / (time.perf_counter() - began)

    def stream(self, frame: DataFrame) -> float:
        """A whole availableNow run, from start to stop, into nothing."""
        self.round += 1
        began = time.perf_counter()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{self.folder}/c{self.round}").start()
        query.awaitTermination()
        took = time.perf_counter() - began
        rows = sum(each.numInputRows for each in query.recentProgress)
        assert rows == self.records, rows
        return rows / took

    def sink(self, rows: int, *, keyed: bool) -> float:
        """Ready-made rows into a topic."""
        topic = f"sink-{self.round}-{keyed}"
        self.round += 1
        with Admin(self.url) as admin:
            config = {"flush.policy": "interval"}
            admin.create_topic(topic, partitions=TASKS, config=config)
            key = "cast(offset as string) as key" if keyed else "null as key"
            frame = self.made("generator", rows=rows)
            frame = frame.selectExpr(
                "cast(" + key.replace(" as key", " as string) as key"), "value"
            )
            began = time.perf_counter()
            writer = frame.write.format("headrace").mode("append").option("topic", topic)
            writer.option("headrace.bootstrap.servers", self.url).save()
            took = time.perf_counter() - began
            places = {(topic, number): "latest" for number in range(TASKS)}
            assert sum(each.offset for each in admin.offsets(places).values()) == rows
            admin.delete_topic(topic)
        return rows / took

    def latency(self, *, checkpoints: str | None = None, count: int = 12) -> float:
        """One record sent, until `processAllAvailable` returns: the median, seconds.
        `checkpoints` names the class that writes them."""
        if checkpoints is not None:
            self.spark.conf.set(CHECKPOINTS, checkpoints)
        source = self.spark.readStream.format("headrace").option("subscribe", "latency")
        source = source.option("headrace.bootstrap.servers", self.url)
        self.round += 1
        query = (
            source.load()
            .writeStream.format("noop")
            .option("checkpointLocation", f"{self.folder}/c{self.round}")
        )
        running, took = query.start(), []
        try:
            running.processAllAvailable()
            with Producer(self.url) as producer:
                for _ in range(count):
                    time.sleep(0.3)
                    began = time.perf_counter()
                    producer.send("latency", b"v")
                    running.processAllAvailable()
                    took.append(time.perf_counter() - began)
        finally:
            running.stop()
            self.spark.conf.unset(CHECKPOINTS)
        return statistics.median(took)


def measure(url: str, folder: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """All rounds of all measurements."""
    spark = session(folder, arguments.master)
    rows, few = arguments.records, min(arguments.records, 2_000_000)
    bench = Bench(spark, url, folder, rows)
    bench.fill()
    all_of: dict[str, Callable[[], float]] = {
        "generator, rows/s": lambda: bench.read(bench.made("generator", rows=rows), rows),
        "tuples, rows/s": lambda: bench.read(bench.made("tuples", rows=few), few),
        "headrace, rows/s": lambda: bench.read(bench.topic(), rows),
        "headrace as tuples, rows/s": lambda: bench.read(bench.rows(few), few),
        "headrace, value only, rows/s": lambda: bench.read(
            bench.topic(schema="value binary"), rows
        ),
        "generator stream, rows/s": lambda: bench.stream(
            bench.made("generator", rows=rows, stream=True)
        ),
        "headrace stream, rows/s": lambda: bench.stream(bench.topic_stream()),
        "sink, rows/s": lambda: bench.sink(few, keyed=False),
        "sink with keys, rows/s": lambda: bench.sink(few, keyed=True),
        "latency, s": bench.latency,
        "latency, checkpoints without chmod, s": lambda: bench.latency(checkpoints=PLAIN_FILES),
    }
    chosen = {name: each for name, each in all_of.items() if arguments.only in name}
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(arguments.rounds + 1):
        for name, each in chosen.items():
            figure = each()
            if number:
                found[name].append(figure)
            print(f"round {number}: {name} {figure:,.3f}", file=sys.stderr)
    spark.stop()
    return found


def report(found: dict[str, list[float]]) -> dict[str, float | int | str]:
    """Medians with their ranges, and the ratios that matter."""
    median = {name: statistics.median(values) for name, values in found.items()}
    figures: dict[str, float | int | str] = {}
    for name, values in found.items():
        shown = "{:.3f}" if name.endswith(", s") else "{:,.0f}"
        low, high = shown.format(min(values)), shown.format(max(values))
        figures[name] = f"{shown.format(median[name])} ({low} to {high})"
    for name, above, below in [
        ("headrace / generator", "headrace, rows/s", "generator, rows/s"),
        ("headrace / tuples", "headrace, rows/s", "tuples, rows/s"),
        ("headrace / headrace as tuples", "headrace, rows/s", "headrace as tuples, rows/s"),
        ("stream / generator stream", "headrace stream, rows/s", "generator stream, rows/s"),
        ("sink / tuples", "sink, rows/s", "tuples, rows/s"),
        ("sink with keys / tuples", "sink with keys, rows/s", "tuples, rows/s"),
    ]:
        if above in median and below in median:
            figures[name] = f"{median[above] / median[below]:.2f}"
    return figures


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", default="", help="measurements whose name holds this")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        async with own_broker(folder) as cluster:
            found = await asyncio.to_thread(measure, cluster.bootstrap, folder, arguments)
    if arguments.json:
        json.dump(found, sys.stdout)
        return
    show("spark", report(found), as_json=False)


if __name__ == "__main__":
    asyncio.run(main())
