"""One Spark session for all of these tests, and one broker; each test makes topics of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.demo.java import java_home
from testkit.brokers import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2,3]: two threads, and a task may fail twice (without the 3 none is tried again)."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    roots = [str(ROOT / part / "src") for part in ("spark", "sdk", "broker")]
    roots.append(str(ROOT / "tests"))
    os.environ["JAVA_HOME"] = str(java_home(folder))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("headrace tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        # For tests of a few rows: nothing is compiled, checkpoints are written without `chmod`.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker")).start()
    yield process
    process.stop()
