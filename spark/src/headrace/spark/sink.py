"""`write` and `writeStream.format("headrace")`: at least once.

Tasks send and answer with a message; the driver gets all of them in `commit`, or in `abort`. With
direct delivery nothing is left to do there. After a failed task or a crash between a micro-batch
and its commit Spark writes rows again; readers see them twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.protocol.errors import InvalidConfig
from headrace.spark.core.options import WriteOptions
from headrace.spark.core.rows import check_columns
from headrace.spark.delivery import Delivery, Direct, Written

log = logging.getLogger("headrace.spark")


def _open(options: WriteOptions) -> Delivery:
    return Direct(options)


def deliver(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """One task's rows, sent.

    Raises:
        HeadraceError: some could not be; the task fails and Spark tries it again.
    """
    delivery = _open(options)
    try:
        for batch in batches:
            if batch.num_rows:
                delivery.send(batch)
        return delivery.finish()
    except BaseException:
        delivery.give_up()
        raise


def _check(options: WriteOptions, schema: StructType) -> None:
    columns = {field.name: field.dataType.simpleString() for field in schema.fields}
    check_columns(columns, options.topic)


class HeadraceWriter(DataSourceArrowWriter):
    """A batch's rows."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfig("a topic can't be overwritten, only added to: mode('append')")
        _check(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task's rows, in an executor."""
        return deliver(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have sent their rows."""
        log.info("written: %s", _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The job failed. What its tasks have sent stays."""
        log.warning("the job failed; what was sent stays: %s", _summary(messages))


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """A stream's rows."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.owner is not None:
            raise InvalidConfig(
                "owner and seq are for batch writes (foreachBatch); a stream is its query and its"
                " batch id"
            )
        _check(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task's rows of a micro-batch, in an executor."""
        return deliver(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have sent their rows."""
        log.info("micro-batch %d written: %s", batchId, _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch failed, or its commit. Spark runs it again; what was sent stays."""
        log.warning("micro-batch %d failed; what was sent stays: %s", batchId, _summary(messages))


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    written = [each for each in messages if isinstance(each, Written)]
    records = sum(each.records for each in written)
    owners = {(each.identity.owner, each.identity.seq) for each in written}
    names = ", ".join(f"{owner} seq {seq}" for owner, seq in owners if owner is not None)
    return f"{records} records of {len(written)} tasks" + (f" ({names})" if names else "")
