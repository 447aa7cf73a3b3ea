"""Spark Connect: a client without a JVM, the sources in the server's Python. A process of its own,
because a program has either kind of session."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.demo.java import java_home
from headrace.sdk.sync import Admin, Producer
from testkit.brokers import BrokerProcess

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        importlib.util.find_spec("grpc") is None, reason="needs pip install 'pyspark[connect]'"
    ),
]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pyspark_headrace import HeadraceDataSource

address, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.dataSource.register(HeadraceDataSource)

def topic(reader, name):
    reader = reader.format("headrace").option("headrace.bootstrap.servers", address)
    return reader.option("subscribe", name).option("startingOffsets", "earliest").load()

assert topic(spark.read, "from").count() == 1000
rows = topic(spark.readStream, "from").select("key", "value")
writer = rows.writeStream.format("headrace").option("headrace.bootstrap.servers", address)
writer = writer.option("topic", "into").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
assert topic(spark.read, "into").count() == 1000
spark.stop()
"""


def test_batch_and_stream_over_connect(broker: BrokerProcess, tmp_path: Path) -> None:
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic("from", partitions=2)
        admin.create_topic("into", partitions=2)
        producer.send_many("from", [b"v"] * 1000)
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(tmp_path)),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.url, str(tmp_path / "checkpoint")],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
