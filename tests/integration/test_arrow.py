"""Topics read as Arrow from a real broker."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.sdk import OffsetOutOfRange, PartitionNotFound, TopicNotFound, arrow
from headrace.sdk.sync import Admin, Consumer, Producer
from testkit.brokers import BrokerProcess


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> str:
    """A topic of two partitions with records of all kinds."""
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic("filled", partitions=2)
        producer.send_many("filled", [b"%d" % i for i in range(25_000)], partition=0)
        for index in range(20):
            producer.send("filled", b"v", key=b"k", headers={"n": b"%d" % index}, partition=1)
    return broker.url


def test_a_table_holds_every_record(filled: str) -> None:
    table = arrow.read_table(filled, "filled")
    assert table.schema == arrow.SCHEMA
    zero = table.filter(pa.compute.equal(table["partition"], 0))
    assert zero["offset"].to_pylist() == list(range(25_000))
    assert zero["value"].to_pylist() == [b"%d" % i for i in range(25_000)]
    one = table.slice(25_000)
    assert one["headers"].to_pylist() == [[{"key": "n", "value": b"%d" % i}] for i in range(20)]


def test_batches_have_a_size_that_readers_like(filled: str) -> None:
    sizes = [batch.num_rows for batch in arrow.read_batches(filled, "filled", partitions=[0])]
    assert sum(sizes) == 25_000
    assert all(5_000 <= size <= 20_000 for size in sizes[:-1])


def test_a_part_of_a_topic(filled: str) -> None:
    table = arrow.read_table(
        filled, "filled", partitions=[0], start=100, end=200, columns=["offset"]
    )
    assert table.column_names == ["offset"]
    assert table["offset"].to_pylist() == list(range(100, 200))
    beyond = arrow.read_table(filled, "filled", partitions=[1], start=10, end=10_000)
    assert beyond.num_rows == 10


def test_what_isnt_there_is_named(filled: str) -> None:
    with pytest.raises(TopicNotFound):
        arrow.read_table(filled, "no-such")
    with pytest.raises(PartitionNotFound, match="0 to 1"):
        arrow.read_table(filled, "filled", partitions=[2])


def test_records_that_are_gone_are_told_or_skipped(broker: BrokerProcess) -> None:
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic("cut", partitions=1)
        producer.send_many("cut", [b"v"] * 10)
        admin.delete_records({("cut", 0): 6})
    with pytest.raises(OffsetOutOfRange, match="offsets 2 to 5 are gone"):
        arrow.read_table(broker.url, "cut", start=2)
    table = arrow.read_table(broker.url, "cut", start=2, skip_lost=True)
    assert table["offset"].to_pylist() == [6, 7, 8, 9]
    assert arrow.read_table(broker.url, "cut")["offset"].to_pylist() == [6, 7, 8, 9]


def test_raw_batches_of_a_consumer_become_arrow(filled: str) -> None:
    with Consumer(filled, "filled", offset_reset="earliest") as consumer:
        rows = 0
        while rows < 25_020:
            raw = consumer.fetch_batches(timeout=10)
            assert raw
            rows += sum(b.num_rows for b in arrow.record_batches(raw, arrow.SCHEMA))
    assert rows == 25_020


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import headrace.sdk.arrow"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install 'headrace[arrow]'" in done.stderr.splitlines()[-1]


EXAMPLES = Path(__file__).parents[2] / "examples/arrow"


@pytest.mark.parametrize(
    ("library", "shown"),
    [
        ("pandas", [r"0 .* 20 +340", r"1 .* 10 +170"]),
        ("polars", [r"AA +┆ 20 +┆ 9.5", r"UA +┆ 10 +┆ 4.5"]),
        ("duckdb", [r"AA +│ +20 │ +340", r"UA +│ +10 │ +170"]),
    ],
)
def test_the_examples_compute_what_is_there(
    broker: BrokerProcess, library: str, shown: list[str]
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs pip install {library}")
    topic = f"with-{library}"
    with Admin(broker.url) as admin, Producer(broker.url) as producer:
        admin.create_topic(topic, partitions=2)
        for partition, (key, count) in enumerate([(b"AA", 20), (b"UA", 10)]):
            values = [b'{"arr_delay": %2d}' % index for index in range(count)]
            producer.send_many(topic, values, keys=[key] * count, partition=partition)
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"with_{library}.py", broker.url, topic],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for pattern in shown:
        assert re.search(pattern, done.stdout), done.stdout
