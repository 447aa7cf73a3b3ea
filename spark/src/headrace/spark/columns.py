"""The columns of a record in Spark: those of the Kafka source, and what a given schema may choose.

A schema given by the user picks columns (Spark has no column pruning for Python sources); names and
types must be those of the full one.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.protocol.errors import InvalidConfig

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
"""Name → type, in the order of the full schema."""


def full_schema(*, include_headers: bool) -> StructType:
    """The schema of a read that was given none."""
    names = [name for name in COLUMNS if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Refuses a given schema that isn't a choice of the columns.

    Raises:
        InvalidConfig: an unknown column, or one of another type.
    """
    for column in schema.fields:
        wanted = COLUMNS.get(column.name)
        if wanted is None:
            raise InvalidConfig(
                f"a record has no column {column.name!r}; it has {', '.join(COLUMNS)}"
            )
        if column.dataType.simpleString() != wanted.simpleString():
            raise InvalidConfig(
                f"column {column.name!r} is {wanted.simpleString()}, not"
                f" {column.dataType.simpleString()}; cast it after reading"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark wants record batches of this schema to be, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")
