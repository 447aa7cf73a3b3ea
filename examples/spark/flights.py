"""Flights from a topic: parse, mean arrival delay by carrier and day, to another topic and Parquet.

    spark-submit flights.py --bootstrap main-bootstrap:9420 --checkpoint /checkpoint --parquet /out

Two queries over one parsed stream, each with a checkpoint of its own, so that each recovers by
itself: the file sink writes each window once, the topic may see a window twice after a failure.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_headrace import HeadraceDataSource

SCHEMA = "carrier string, origin string, dest string, arr_delay int, time_hour string"
LATE = "2 days"
WINDOW = "1 day"


def read(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """The topic as a stream, from its beginning."""
    source = (
        spark.readStream.format("headrace")
        .option("headrace.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .option("headrace.group.id", "flights-delays")
    )
    if arguments.token:
        source = source.option("headrace.token.path", arguments.token)
    return source.load()


def parse(records: DataFrame) -> DataFrame:
    """One row a flight, with the hour it was due to leave."""
    flight = f.from_json(f.col("value").cast("string"), SCHEMA)
    return (
        records.select(flight.alias("flight"))
        .select("flight.*", f.to_timestamp("flight.time_hour").alias("due"))
        .where("due IS NOT NULL")
    )


def mean_delays(flights: DataFrame) -> DataFrame:
    """Flights and mean arrival delay (minutes) by carrier and day."""
    return (
        flights.withWatermark("due", LATE)
        .groupBy(f.window("due", WINDOW), "carrier")
        .agg(f.count("*").alias("flights"), f.avg("arr_delay").alias("mean_delay"))
        .select(f.col("window.start").alias("day"), "carrier", "flights", "mean_delay")
    )


def to_topic(delays: DataFrame, arguments: argparse.Namespace) -> StreamingQuery:
    """Key the carrier, value JSON."""
    rows = delays.selectExpr("carrier AS key", "to_json(struct(*)) AS value")
    writer = (
        rows.writeStream.format("headrace")
        .queryName("delays-to-topic")
        .option("headrace.bootstrap.servers", arguments.bootstrap)
        .option("topic", arguments.target)
        .option("checkpointLocation", f"{arguments.checkpoint}/topic")
    )
    if arguments.token:
        writer = writer.option("headrace.token.path", arguments.token)
    return _triggered(writer, arguments).start()


def to_parquet(delays: DataFrame, arguments: argparse.Namespace) -> StreamingQuery:
    """Files by day."""
    writer = (
        delays.withColumn("date", f.to_date("day"))
        .writeStream.format("parquet")
        .queryName("delays-to-parquet")
        .partitionBy("date")
        .option("path", arguments.parquet)
        .option("checkpointLocation", f"{arguments.checkpoint}/parquet")
    )
    return _triggered(writer, arguments).start()


def _triggered(writer: DataStreamWriter, arguments: argparse.Namespace) -> DataStreamWriter:
    if arguments.now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=arguments.every)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--parquet", required=True)
    parser.add_argument("--source", default="flights")
    parser.add_argument("--target", default="flight-delays-by-day")
    parser.add_argument("--token", default="", help="file with a bearer token, on every pod")
    parser.add_argument("--every", default="10 seconds")
    parser.add_argument("--now", action="store_true", help="read what is there and stop")
    arguments = parser.parse_args(argv)
    spark = SparkSession.builder.appName("flights").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # Days are UTC's, wherever this runs.
    spark.dataSource.register(HeadraceDataSource)
    delays = mean_delays(parse(read(spark, arguments)))
    queries = [to_topic(delays, arguments), to_parquet(delays, arguments)]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
