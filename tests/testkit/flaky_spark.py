"""A Headrace sink whose tasks and commits fail when told to, for tests of what Spark does then.

Importable in Spark's workers. Each fault happens once: a file in the folder says that it has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.spark.core.options import parse_write
from headrace.spark.delivery import Written
from headrace.spark.sink import HeadraceStreamWriter
from headrace.spark.source import HeadraceDataSource


def _first_time(file: Path) -> bool:
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class FlakyWriter(HeadraceStreamWriter):
    """Fails after its rows are sent: in task 0 of the first micro-batch, and in the second
    micro-batch's commit. Keeps what tasks say of themselves."""

    folder: Path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends the rows; then may fail."""
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and _first_time(self.folder / "task-failed"):
            raise OSError("this task fails after it has sent its rows")
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commits; then may fail."""
        super().commit(messages, batchId)
        told = [
            (each.identity.owner, each.identity.seq)
            for each in messages
            if isinstance(each, Written)
        ]
        (self.folder / f"batch-{batchId}.json").write_text(json.dumps(told))
        if batchId == 1 and _first_time(self.folder / "commit-failed"):
            raise OSError("this commit fails after all tasks are done")


class FlakySource(HeadraceDataSource):
    """`format("flaky")`; the option `path` names the folder."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "flaky"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer that fails."""
        writer = FlakyWriter(parse_write(self.options), schema)
        writer.folder = Path(self.options["path"])
        return writer
