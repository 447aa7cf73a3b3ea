"""The demo's Spark job, a process of its own: `python -m headrace.demo.spark_job ADDRESS FROM INTO
FOLDER`. Prints one line of JSON: figures by carrier, rows and seconds.

It is what a user would write: nothing here knows Headrace but by `format("headrace")`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

ROWS_PER_TRIGGER = 100_000
SCHEMA = "carrier string, arr_delay int"


def main(address: str, source: str, target: str, folder: str) -> None:
    """Batch, then availableNow."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("headrace demo")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    began = time.perf_counter()
    totals = {
        row["carrier"]: [row["flights"], row["arrived"], row["minutes"]]
        for row in _by_carrier(_topic(spark.read, address, source)).collect()
    }
    batch_s = time.perf_counter() - began
    began = time.perf_counter()
    stream = _topic(spark.readStream, address, source, maxOffsetsPerTrigger=ROWS_PER_TRIGGER)
    query = (
        _by_carrier(stream)
        .selectExpr("carrier AS key", "to_json(struct(flights, arrived, minutes)) AS value")
        .writeStream.format("headrace")
        .outputMode("complete")
        .option("headrace.bootstrap.servers", address)
        .option("topic", target)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sizes = [each.numInputRows for each in query.recentProgress if each.numInputRows]
    told = {
        "spark": spark.version, "totals": totals, "batch_s": batch_s,
        "stream_s": time.perf_counter() - began, "micro_batches": sizes,
    }  # fmt: skip
    spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")


def _topic(reader: Any, address: str, topic: str, **options: Any) -> Any:
    return (
        reader.format("headrace")
        .option("headrace.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


def _by_carrier(frame: Any) -> Any:
    """Flights, those that arrived, and the minutes they were late, by carrier."""
    parsed = frame.selectExpr(f"from_json(cast(value AS string), '{SCHEMA}') AS flight")
    return parsed.groupBy("flight.carrier").agg(*_figures())


def _figures() -> list[Any]:
    from pyspark.sql import functions as f

    return [
        f.count("*").alias("flights"),
        f.count("flight.arr_delay").alias("arrived"),
        f.coalesce(f.sum("flight.arr_delay"), f.lit(0)).alias("minutes"),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
