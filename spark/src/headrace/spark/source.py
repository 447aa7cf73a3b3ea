"""`format("headrace")`: what Spark instantiates. It reads the options and hands out readers and
writers; a mistake in the options or in the schema is an error here, before anything runs."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.spark.columns import check_schema, full_schema
from headrace.spark.core.options import parse_read, parse_write


class HeadraceDataSource(DataSource):
    """Reads and writes topics of a Headrace cluster:

        spark.dataSource.register(HeadraceDataSource)
        spark.read.format("headrace").option("headrace.bootstrap.servers", "broker:9420")
            .option("subscribe", "orders").load()

    Options and schema are those of Spark's Kafka source with `headrace` for `kafka`
    (docs/spark.md).
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headrace"

    def schema(self) -> StructType:
        """All columns; `headers` with includeHeaders."""
        return full_schema(include_headers=parse_read(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        options = parse_read(self.options).for_batch()
        check_schema(schema)
        # Imported when all is right so far: it costs Spark's planner a quarter of a second.
        from headrace.spark.batch import HeadraceBatchReader, PushdownBatchReader

        kind = PushdownBatchReader if options.filter_pushdown else HeadraceBatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming read."""
        options = parse_read(self.options).for_stream()
        check_schema(schema)
        from headrace.spark.stream import HeadraceStreamReader

        return HeadraceStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from headrace.spark.sink import HeadraceWriter

        return HeadraceWriter(parse_write(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming write; what a query appends or updates is appended."""
        from headrace.spark.sink import HeadraceStreamWriter

        return HeadraceStreamWriter(parse_write(self.options), schema)
