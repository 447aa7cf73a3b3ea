"""The batch codec: what goes in comes out, and what was damaged never comes out as a record."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.protocol import batch
from headrace.protocol.compression import Codec
from headrace.protocol.errors import CorruptBatch, UnsupportedFormat
from headrace.protocol.record import Record
from testkit.batches import Row, Sealed, assign, codecs, header_maps, pack, rows, seal, timestamps

BASE_OFFSET = 1_000


def _read(raw: bytes) -> list[Record]:
    return batch.records("t", 3, raw, batch.read_header(raw))


def _expected(written: list[Row], base: int) -> list[Record]:
    return [
        Record("t", 3, base + number, key, value, stamp, headers or {})
        for number, (key, value, stamp, headers) in enumerate(written)
    ]


@given(written=st.lists(rows, min_size=1, max_size=30), codec=codecs)
@example(written=[(b"", b"", 0, {"": None, "x": b""})], codec=Codec.NONE)
@example(written=[(None, None, -1, None)] * 3, codec=Codec.LZ4)
def test_records_come_back_as_they_were_sent(written: list[Row], codec: Codec) -> None:
    raw = assign(bytes(batch.encode_records(written, codec=codec)), base_offset=BASE_OFFSET)
    assert _read(raw) == _expected(written, BASE_OFFSET)
    header = batch.read_header(raw)
    assert header.codec == codec
    assert header.record_count == len(written)
    assert header.last_offset == BASE_OFFSET + len(written) - 1
    assert header.next_offset == BASE_OFFSET + len(written)
    assert header.first_timestamp_ms == written[0][2]
    assert header.max_timestamp_ms == max(row[2] for row in written)


@given(
    written=st.lists(rows, min_size=1, max_size=5),
    producer_id=st.integers(-1, 2**63 - 1),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 2**31 - 1),
)
def test_a_producers_numbers_come_back(
    written: list[Row], producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    header = batch.read_header(
        batch.encode_records(
            written,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
    )
    assert (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch)
    assert header.base_sequence == base_sequence


@given(
    deltas=st.lists(st.integers(0, 2**32 - 2), min_size=1, max_size=20, unique=True).map(sorted),
    beyond=st.integers(0, 1),
    codec=codecs,
)
def test_holes_left_by_compaction_come_back(deltas: list[int], beyond: int, codec: Codec) -> None:
    raw = batch.encode(
        keys=[b"k"] * len(deltas),
        values=None,
        timestamps=None,
        headers=None,
        record_count=len(deltas),
        first_timestamp_ms=0,
        max_timestamp_ms=0,
        codec=codec,
        offset_deltas=deltas,
        last_offset_delta=deltas[-1] + beyond,
    )
    stored = assign(bytes(raw), base_offset=BASE_OFFSET)
    assert [record.offset for record in _read(stored)] == [BASE_OFFSET + d for d in deltas]


@given(
    written=st.lists(rows, min_size=1, max_size=4),
    codec=codecs,
    place=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
)
def test_one_damaged_byte_is_always_noticed(
    written: list[Row], codec: Codec, place: float, flip: int
) -> None:
    raw = bytearray(
        assign(bytes(batch.encode_records(written, codec=codec)), base_offset=BASE_OFFSET)
    )
    raw[int(place * len(raw))] ^= flip
    with pytest.raises((CorruptBatch, UnsupportedFormat)):
        _read(bytes(raw))


@pytest.mark.parametrize("codec", list(Codec))
def test_damage_to_any_byte_of_a_batch_is_noticed(codec: Codec) -> None:
    written: list[Row] = [(b"key", b"value", 5, {"a": b"b"}), (None, b"v" * 50, 9, None)]
    good = assign(bytes(batch.encode_records(written, codec=codec)), base_offset=BASE_OFFSET)
    for place in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[place] ^= flip
            with pytest.raises((CorruptBatch, UnsupportedFormat)):
                _read(bytes(bad))


@given(written=st.lists(rows, min_size=1, max_size=4), codec=codecs, data=st.data())
def test_a_batch_cut_short_or_with_more_behind_it_is_no_batch(
    written: list[Row], codec: Codec, data: st.DataObject
) -> None:
    raw = bytes(batch.encode_records(written, codec=codec))
    cut = data.draw(st.integers(0, len(raw) - 1))
    for bad in (raw[:cut], raw + b"\0"):
        with pytest.raises(CorruptBatch):
            _read(bad)


@given(garbage=st.binary(max_size=300))
def test_garbage_is_never_a_batch(garbage: bytes) -> None:
    with pytest.raises((CorruptBatch, UnsupportedFormat)):
        _read(garbage)
    with pytest.raises((CorruptBatch, UnsupportedFormat)):
        _read(b"HR\x01\x00" + garbage)


_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=5)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)
_columns = st.lists(_anything, max_size=6) | st.tuples(
    st.none() | st.lists(st.none() | st.binary(max_size=3) | _anything, max_size=3),
    st.none() | st.lists(st.none() | st.binary(max_size=3), max_size=3),
    st.none() | st.lists(st.integers(-(2**63), 2**64 - 1), max_size=3),
    st.none() | st.lists(header_maps, max_size=3),
    st.none() | st.lists(st.integers(-2, 5), max_size=3),
)


@given(
    columns=_columns,
    record_count=st.integers(0, 4),
    last_offset_delta=st.integers(0, 6) | st.just(2**32 - 1),
    first_timestamp_ms=timestamps | st.integers(-(2**63), 2**63 - 1),
)
def test_rubbish_under_a_good_checksum_is_a_corrupt_batch_or_makes_sense(
    columns: object, record_count: int, last_offset_delta: int, first_timestamp_ms: int
) -> None:
    assert isinstance(columns, (list, tuple))
    header = Sealed(record_count, last_offset_delta, first_timestamp_ms, base_offset=BASE_OFFSET)
    raw = seal(pack(*columns), header)
    try:
        found = _read(raw)
    except CorruptBatch:
        return
    assert len(found) == record_count
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert all(BASE_OFFSET <= offset <= BASE_OFFSET + last_offset_delta for offset in offsets)
    for record in found:
        batch.check_timestamps(record.timestamp_ms, record.timestamp_ms)
        assert record.key is None or isinstance(record.key, bytes)


@given(
    payload=st.binary(max_size=200),
    codec=codecs,
    announced=st.integers(0, 400),
    record_count=st.integers(0, 3),
)
def test_random_payloads_under_a_good_checksum_raise_nothing_else(
    payload: bytes, codec: Codec, announced: int, record_count: int
) -> None:
    header = Sealed(
        record_count, max(0, record_count - 1), attributes=codec, uncompressed_length=announced
    )
    with pytest.raises(CorruptBatch):
        _read(seal(payload, header))


@given(written=st.lists(rows, min_size=1, max_size=4), codec=codecs, data=st.data())
def test_a_damaged_payload_that_was_sealed_again_raises_nothing_else(
    written: list[Row], codec: Codec, data: st.DataObject
) -> None:
    """What a producer with broken memory sends: the checksum is good, the payload isn't."""
    raw = bytes(batch.encode_records(written, codec=codec))
    header = batch.read_header(raw)
    payload = bytearray(raw[batch.HEADER_BYTES :])
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    bad = seal(
        bytes(payload),
        Sealed(
            len(written), len(written) - 1, header.first_timestamp_ms, header.max_timestamp_ms,
            codec, header.uncompressed_length,
        ),
    )  # fmt: skip
    try:
        assert len(_read(bad)) == len(written)
    except CorruptBatch:
        pass


@given(
    batches=st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=4), data=st.data()
)
def test_walk_finds_every_whole_batch_and_stops_at_a_cut_one(
    batches: list[list[Row]], data: st.DataObject
) -> None:
    raws = [bytes(batch.encode_records(written)) for written in batches]
    whole = b"".join(raws)
    cut = data.draw(st.integers(0, len(whole)))
    starts, position = [], 0
    for raw in raws:
        if position + len(raw) <= cut:
            starts.append(position)
        position += len(raw)
    assert [place for place, _ in batch.walk(whole[:cut])] == starts


@given(garbage=st.binary(min_size=88, max_size=200))
def test_walk_says_where_there_is_no_batch(garbage: bytes) -> None:
    assume(garbage[:2] != b"HR")
    good = bytes(batch.encode_records([(None, b"v", 0, None)]))
    with pytest.raises(CorruptBatch, match=f"at byte {len(good)} "):
        list(batch.walk(good + garbage))
