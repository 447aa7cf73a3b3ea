"""Stored batches made into Arrow record batches, column by column. Pure: bytes in, arrays out.

A batch's payload is columns already, so each goes to `pyarrow.array` as it is; rows are never made.
Many small stored batches are joined and large ones cut, because what reads Arrow works best on
5,000 to 20,000 rows at a time (measured with Spark: 100 rows a batch halve the speed, and so do
100,000).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.batch import decode_columns
from headrace.protocol.errors import InvalidRequest
from headrace.protocol.record import Headers
from headrace.sdk.core.positions import RawBatch

HEADER_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""A record's headers, in the order given; null where there are none."""

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
    ]
)
"""All that a record has."""

ROWS = 10_000
"""Rows after which an Arrow batch is closed."""

ROWS_MAX = 20_000
"""Rows of the largest Arrow batch."""

FLUSH_BYTES = 8 << 20
"""Bytes of payload after which an Arrow batch is closed, however few its rows."""

TIMESTAMP_TYPE_CREATE = 0
"""What the column `timestampType` says: the time is the producer's, as in Kafka."""

_UNIT_FACTORS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@cache
def _counting() -> pa.Array:
    """0, 1, 2 ... Made when first needed: `pyarrow.array` imports pandas where there is one, and
    who only plans a read needs neither."""
    return pa.array(range(ROWS_MAX), pa.int64())


def schema_of(columns: Iterable[str] | None) -> pa.Schema:
    """`SCHEMA`, or only the named columns of it.

    Raises:
        InvalidRequest: there is no such column.
    """
    if columns is None:
        return SCHEMA
    wanted = [columns] if isinstance(columns, str) else list(columns)
    for name in wanted:
        if name not in SCHEMA.names:
            raise InvalidRequest(
                f"a record has no column {name!r}; it has {', '.join(SCHEMA.names)}"
            )
    return pa.schema([SCHEMA.field(name) for name in wanted])


class BatchBuilder:
    """Joins and cuts one partition's stored batches. `schema` names the columns wanted, out of
    those of `SCHEMA` and `timestampType`; timestamps in ms, us or ns."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = schema
        self._wants = {name: name in schema.names for name in ("key", "value", "headers")}
        self._wants_stamps = "timestamp" in schema.names
        self._wants_offsets = "offset" in schema.names
        self._clear()

    def _clear(self) -> None:
        self.row_count = 0
        self._size_bytes = 0
        self._columns: dict[str, list[Any]] = {"key": [], "value": [], "headers": []}
        self._offsets: list[tuple[int, Sequence[int] | None, int]] = []
        self._stamps: list[tuple[int, Sequence[int] | None, int]] = []

    def add(self, raw: RawBatch, until: int | None = None) -> Iterator[pa.RecordBatch]:
        """Takes in a stored batch's records from its `first_offset` to before `until`, and gives
        the Arrow batches that are full. Use it up.

        Raises:
            CorruptBatch, UnsupportedFormat: as `decode_columns`.
        """
        header = raw.header
        if header.is_control or not header.record_count:
            return
        columns = decode_columns(raw.data, header)
        deltas = columns.offset_deltas
        start = _index_of(raw.first_offset - header.base_offset, deltas, header.record_count)
        end = header.record_count
        if until is not None:
            end = _index_of(until - header.base_offset, deltas, header.record_count)
        whole_size = header.uncompressed_length
        while start < end:
            stop = min(end, start + ROWS_MAX - self.row_count)
            self._append("key", columns.keys, start, stop)
            self._append("value", columns.values, start, stop)
            self._append("headers", columns.headers, start, stop)
            count = stop - start
            if self._wants_offsets:
                self._add_offsets(header.base_offset, deltas, start, count)
            if self._wants_stamps:
                stamps = columns.timestamps
                piece = None if stamps is None else stamps[start:stop]
                self._stamps.append((header.first_timestamp_ms, piece, count))
            self.row_count += count
            self._size_bytes += whole_size * count // header.record_count
            start = stop
            if self.row_count >= ROWS or self._size_bytes >= FLUSH_BYTES:
                yield self.flush()

    def flush(self) -> pa.RecordBatch:
        """What was taken in since the last Arrow batch."""
        arrays = [self._array(field) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._clear()
        return batch

    def _append(self, name: str, column: list[Any] | None, start: int, stop: int) -> None:
        if not self._wants[name]:
            return
        into = self._columns[name]
        if column is None:
            into.extend([None] * (stop - start))
        elif not into and start == 0 and stop == len(column):
            self._columns[name] = column
        else:
            into.extend(column[start:stop])

    def _add_offsets(self, base: int, deltas: list[int] | None, start: int, count: int) -> None:
        if deltas is not None:
            self._offsets.append((base, deltas[start : start + count], count))
        elif self._offsets and self._offsets[-1][1] is None:
            first, _, before = self._offsets[-1]
            if first + before == base + start:
                self._offsets[-1] = (first, None, before + count)
                return
            self._offsets.append((base + start, None, count))
        else:
            self._offsets.append((base + start, None, count))

    def _array(self, field: pa.Field) -> pa.Array:
        name, count = field.name, self.row_count
        if name in ("key", "value"):
            return pa.array(self._columns[name], field.type)
        if name == "headers":
            return _headers_array(self._columns[name], field.type)
        if name == "offset":
            return _numbers(self._offsets, counting=True)
        if name == "timestamp":
            factor = _UNIT_FACTORS[field.type.unit]
            stamps = _numbers(self._stamps, counting=False)
            return (stamps if factor == 1 else pc.multiply(stamps, factor)).view(field.type)
        constants = {
            "topic": self._topic,
            "partition": self._partition,
            "timestampType": TIMESTAMP_TYPE_CREATE,
        }
        return pa.repeat(pa.scalar(constants[name], field.type), count)


def _index_of(delta: int, deltas: list[int] | None, count: int) -> int:
    """The index of the first record at or behind an offset."""
    if delta <= 0:
        return 0
    return min(delta, count) if deltas is None else bisect_left(deltas, delta)


def _numbers(runs: Sequence[tuple[int, Sequence[int] | None, int]], *, counting: bool) -> pa.Array:
    """Numbers given as runs: a base and deltas to it, or (None) without deltas: `count` times the
    base, or counting up from it."""
    pieces: list[pa.Array] = []
    plain: list[int] = []

    def close_plain() -> None:
        if plain:
            pieces.append(pa.array(plain, pa.int64()))
            plain.clear()

    for base, deltas, count in runs:
        if count < 16:  # Many tiny batches: a list is cheaper than an array each.
            if deltas is not None:
                plain.extend([base + delta for delta in deltas])
            else:
                plain.extend(range(base, base + count) if counting else [base] * count)
            continue
        close_plain()
        if deltas is not None:
            pieces.append(pc.add(pa.array(deltas, pa.int64()), base))
        elif counting:
            pieces.append(pc.add(_counting().slice(0, count), base))
        else:
            pieces.append(pa.repeat(pa.scalar(base, pa.int64()), count))
    close_plain()
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _headers_array(column: list[Headers | None], kind: pa.DataType) -> pa.Array:
    if not any(column):
        return pa.nulls(len(column), kind)
    ends: list[int | None] = []
    names: list[str] = []
    values: list[bytes | None] = []
    for headers in column:
        ends.append(len(names) if headers else None)
        if headers:
            names.extend(headers.keys())
            values.extend(headers.values())
    fields = [kind.value_type.field(index) for index in range(2)]
    structs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=fields
    )
    # An offset of null marks a null list (as `ListArray.from_arrays` documents).
    offsets = pa.array([*ends, len(names)], pa.int32())
    return pa.ListArray.from_arrays(offsets, structs, type=kind)
