"""Good checksums around rubbish: every way in which a payload can contradict itself."""

from __future__ import annotations

import msgspec
import pytest

from headrace.protocol import batch, limits
from headrace.protocol.errors import CorruptBatch, UnsupportedFormat
from testkit.batches import Sealed, pack, seal

VALUE = [b"v"]
CENTURY_MS = 100 * 366 * 86_400_000

RUBBISH = {
    "an empty payload": b"",
    "no array": msgspec.msgpack.encode({"keys": None}),
    "four columns": pack(None, VALUE, None, None),
    "six columns": pack(None, VALUE, None, None, None, None),
    "bytes after the end": pack(None, VALUE, None, None, None) + b"\xc0",
    "keys of text": pack(["k"], VALUE, None, None, None),
    "keys of numbers": pack([1], VALUE, None, None, None),
    "values of extension types": pack(None, [msgspec.msgpack.Ext(5, b"x")], None, None, None),
    "timestamps of fractions": pack(None, VALUE, [0.5], None, None),
    "timestamps of whole floats": pack(None, VALUE, [5.0], None, None),
    "timestamps of booleans": pack(None, VALUE, [True], None, None),
    "timestamps of nulls": pack(None, VALUE, [None], None, None),
    "timestamps of extension types": pack(
        None, VALUE, [msgspec.msgpack.Ext(-1, bytes(4))], None, None
    ),
    "timestamps beyond 64 bits": pack(None, VALUE, [2**64 - 1], None, None),
    "timestamps after the year 9999": pack(None, VALUE, [limits.TIMESTAMP_MS_MAX + 1], None, None),
    "timestamps before the year 1": pack(None, VALUE, [limits.TIMESTAMP_MS_MIN - 1], None, None),
    "headers of lists": pack(None, VALUE, None, [[]], None),
    "header names of bytes": pack(None, VALUE, None, [{b"a": b"b"}], None),
    "header values of text": pack(None, VALUE, None, [{"a": "b"}], None),
    "header names that aren't UTF-8": b"\x95\xc0\xc0\xc0\x91\x81\xa1\xff\xc0\xc0",
    "two values for one record": pack(None, [b"v", b"w"], None, None, None),
    "no value for one record": pack(None, [], None, None, None),
    "an offset past the end": pack(None, VALUE, None, None, [1]),
    "an offset before the start": pack(None, VALUE, None, None, [-1]),
    "an offset beyond 32 bits": pack(None, VALUE, None, None, [2**32]),
}


@pytest.mark.parametrize("payload", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_is_a_corrupt_batch_with_its_offsets(payload: bytes) -> None:
    raw = seal(payload, Sealed(base_offset=70))
    with pytest.raises(CorruptBatch) as caught:
        batch.records("t", 0, raw, batch.read_header(raw))
    assert caught.value.details == {"first_offset": 70, "last_offset": 70}


@pytest.mark.parametrize(
    "header",
    [
        Sealed(record_count=2, last_offset_delta=1),
        Sealed(record_count=0),
        Sealed(record_count=2, last_offset_delta=0),
        Sealed(record_count=1, last_offset_delta=7),
        Sealed(record_count=limits.RECORDS_PER_BATCH_MAX + 1, last_offset_delta=2**32 - 1),
        Sealed(record_count=2**32 - 1, last_offset_delta=2**32 - 1),
        Sealed(uncompressed_length=3),
        Sealed(first_timestamp_ms=limits.TIMESTAMP_MS_MAX + 1),
        Sealed(first_timestamp_ms=-(2**63)),
    ],
)
def test_a_header_that_contradicts_its_payload_is_a_corrupt_batch(header: Sealed) -> None:
    with pytest.raises(CorruptBatch):
        batch.decode_columns(seal(pack(None, VALUE, None, None, None), header))


@pytest.mark.parametrize("deltas", [[3, 1], [1, 1], [0, 6]])
def test_offsets_that_go_back_stand_still_or_leave_the_batch_are_corrupt(deltas: list[int]) -> None:
    raw = seal(pack(None, [b"a", b"b"], None, None, deltas), Sealed(2, 5))
    with pytest.raises(CorruptBatch):
        batch.decode_columns(raw)


@pytest.mark.parametrize(
    ("first_ms", "delta_ms"),
    [
        (0, CENTURY_MS + 1),
        (0, -CENTURY_MS - 1),
        (limits.TIMESTAMP_MS_MIN, limits.TIMESTAMP_MS_MAX - limits.TIMESTAMP_MS_MIN),
        (limits.TIMESTAMP_MS_MAX, limits.TIMESTAMP_MS_MIN - limits.TIMESTAMP_MS_MAX),
        (limits.TIMESTAMP_MS_MAX, 0),
    ],
)
def test_timestamps_far_apart_within_the_calendar_are_read(first_ms: int, delta_ms: int) -> None:
    raw = seal(pack(None, VALUE, [delta_ms], None, None), Sealed(first_timestamp_ms=first_ms))
    found = batch.records("t", 0, raw, batch.read_header(raw))
    assert found[0].timestamp_ms == first_ms + delta_ms


@pytest.mark.parametrize(
    ("first_ms", "delta_ms"),
    [(limits.TIMESTAMP_MS_MAX, 1), (limits.TIMESTAMP_MS_MIN, -1), (-62_000_000_000_000, -(10**12))],
)
def test_a_delta_that_leaves_the_calendar_is_corrupt(first_ms: int, delta_ms: int) -> None:
    raw = seal(pack(None, VALUE, [delta_ms], None, None), Sealed(first_timestamp_ms=first_ms))
    with pytest.raises(CorruptBatch, match="years 1 to 9999"):
        batch.decode_columns(raw)


@pytest.mark.parametrize("attributes", [0x03, 0x07, 0x20, 0x80, 0x100, 0x8000])
def test_attributes_of_a_newer_version_are_an_unsupported_format(attributes: int) -> None:
    raw = seal(pack(None, VALUE, None, None, None), Sealed(attributes=attributes))
    with pytest.raises(UnsupportedFormat):
        batch.decode_columns(raw)


def test_of_two_headers_of_one_name_the_last_counts() -> None:
    payload = b"\x95\xc0\x91\xc4\x01v\xc0\x91\x82\xa1a\xc4\x01x\xa1a\xc4\x01y\xc0"
    raw = seal(payload)
    assert batch.records("t", 0, raw, batch.read_header(raw))[0].headers == {"a": b"y"}


def test_a_control_batch_has_no_records_but_is_checked() -> None:
    raw = bytearray(seal(b"marker", Sealed(attributes=batch.CONTROL_BIT)))
    assert batch.records("t", 0, raw, batch.read_header(raw)) == []
    raw[-1] ^= 1
    with pytest.raises(CorruptBatch):
        batch.records("t", 0, raw, batch.read_header(raw))
