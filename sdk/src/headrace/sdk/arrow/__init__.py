"""Records as Arrow: for pandas, polars, DuckDB and whatever else speaks Arrow, and for Spark.

    from headrace.sdk import arrow
    table = arrow.read_table("http://127.0.0.1:9420", "orders")          # pyarrow.Table
    reader = arrow.open_reader("http://127.0.0.1:9420", "orders")        # pyarrow.RecordBatchReader

Columns of the stored batches become arrays without a Python object a row in between where that is
possible. Needs pyarrow: `pip install 'headrace[arrow]'`.
"""

from __future__ import annotations

try:
    import pyarrow as _pyarrow
except ImportError as _error:
    raise ImportError(
        "headrace.sdk.arrow needs pyarrow, which is not installed: pip install 'headrace[arrow]'"
    ) from _error

from headrace.sdk.arrow.building import SCHEMA, BatchBuilder, schema_of
from headrace.sdk.arrow.reading import open_reader, read_batches, read_table, record_batches

del _pyarrow

__all__ = [
    "SCHEMA",
    "BatchBuilder",
    "open_reader",
    "read_batches",
    "read_table",
    "record_batches",
    "schema_of",
]
