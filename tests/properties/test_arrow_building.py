"""Arrow batches hold exactly the records of the stored ones, however those are cut."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import batch as batches
from headrace.protocol.batch import encode, read_header
from headrace.protocol.record import Headers, Record
from headrace.sdk.arrow import SCHEMA, BatchBuilder, schema_of
from headrace.sdk.arrow import building as arrow_building
from headrace.sdk.core.positions import RawBatch

FIRST_MS = 1_700_000_000_000
_bytes = st.none() | st.binary(max_size=5)
_headers = st.none() | st.dictionaries(st.text(max_size=3), _bytes, max_size=2)


@st.composite
def stored(draw: st.DrawFn) -> list[RawBatch]:
    """Batches of one partition in order, some with holes and some without optional columns."""
    found = []
    base = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(0, 40))
        gaps = draw(st.none() | st.lists(st.integers(1, 3), min_size=count, max_size=count))
        deltas = None if gaps is None else [sum(gaps[:index]) for index in range(count)]
        column: Any = lambda of, n=count: draw(  # noqa: E731
            st.none() | st.lists(of, min_size=n, max_size=n)
        )
        stamps = column(st.integers(-5000, 5000))
        data = encode(
            keys=column(_bytes), values=column(_bytes), timestamps=stamps, headers=column(_headers),
            record_count=count, first_timestamp_ms=FIRST_MS,
            max_timestamp_ms=FIRST_MS + max(stamps or [0]), offset_deltas=deltas,
            last_offset_delta=max((deltas or [count - 1])[-1], count - 1, 0) if count else 3,
        )  # fmt: skip
        assigned = batches.assigned_bytes(
            len(data), base_offset=base, append_time_ms=0, leader_epoch=0
        )
        data[: len(assigned)] = assigned
        header = read_header(data)
        first = base + draw(st.integers(0, 3))
        found.append(RawBatch("t", 3, header, memoryview(bytes(data)), first))
        base = header.next_offset
    return found


def _expected(raw: RawBatch, until: int) -> list[Record]:
    found = batches.records("t", 3, raw.data, raw.header)
    return [record for record in found if raw.first_offset <= record.offset < until]


def _row(record: Record) -> dict[str, Any]:
    headers: Headers = record.headers
    return {
        "topic": "t", "partition": 3, "offset": record.offset, "timestamp": record.timestamp_ms,
        "key": record.key, "value": record.value,
        "headers": [{"key": k, "value": v} for k, v in headers.items()] or None,
    }  # fmt: skip


def _built(stored_ones: list[RawBatch], until: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    builder = BatchBuilder("t", 3, schema)
    found = [batch for raw in stored_ones for batch in builder.add(raw, until)]
    return [*found, builder.flush()] if builder.row_count else found


@given(stored(), st.data())
def test_rows_are_the_records_in_order(stored_ones: list[RawBatch], data: st.DataObject) -> None:
    last = stored_ones[-1].header.next_offset
    until = data.draw(st.integers(last - 30, last + 2))
    table = pa.Table.from_batches(_built(stored_ones, until, SCHEMA), SCHEMA)
    stamps = table["timestamp"].cast(pa.int64())
    rows = table.set_column(3, "timestamp", stamps).to_pylist()
    table.validate(full=True)
    assert rows == [_row(record) for raw in stored_ones for record in _expected(raw, until)]


@given(stored())
def test_fewer_columns_are_the_same_columns(stored_ones: list[RawBatch]) -> None:
    until = stored_ones[-1].header.next_offset
    whole = pa.Table.from_batches(_built(stored_ones, until, SCHEMA), SCHEMA)
    some = schema_of(["value", "offset"])
    assert pa.Table.from_batches(_built(stored_ones, until, some), some) == whole.select(
        ["value", "offset"]
    )


@given(stored())
def test_small_limits_cut_and_join_without_loss(stored_ones: list[RawBatch]) -> None:
    until = stored_ones[-1].header.next_offset
    whole = pa.Table.from_batches(_built(stored_ones, until, SCHEMA), SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_building, "ROWS", 7)
        patch.setattr(arrow_building, "ROWS_MAX", 16)
        cut = _built(stored_ones, until, SCHEMA)
    assert all(batch.num_rows <= 16 for batch in cut)
    assert all(batch.num_rows >= 7 for batch in cut[:-1])
    assert pa.Table.from_batches(cut, SCHEMA).combine_chunks() == whole.combine_chunks()
