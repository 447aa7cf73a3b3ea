"""What encoding refuses, and the header's own questions."""

from __future__ import annotations

import pytest

from headrace.protocol import batch, limits
from headrace.protocol.compression import CODEC_NAMES, Codec, compress, decompress
from headrace.protocol.errors import (
    CorruptBatch,
    InvalidRequest,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedFormat,
)
from testkit.batches import assign


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        batch.encode_records([])


def test_one_record_more_than_a_batch_may_have_is_refused() -> None:
    row = (None, b"", 0, None)
    most = batch.encode_records([row] * limits.RECORDS_PER_BATCH_MAX)
    assert batch.read_header(most).record_count == limits.RECORDS_PER_BATCH_MAX
    with pytest.raises(InvalidRequest):
        batch.encode_records([row] * (limits.RECORDS_PER_BATCH_MAX + 1))


@pytest.mark.parametrize("stamp", [limits.TIMESTAMP_MS_MIN - 1, limits.TIMESTAMP_MS_MAX + 1, 2**63])
def test_a_timestamp_outside_the_calendar_is_refused(stamp: int) -> None:
    with pytest.raises(InvalidTimestamp, match="years 1 to 9999"):
        batch.encode_records([(None, b"v", 0, None), (None, b"v", stamp, None)])


@pytest.mark.parametrize(
    "size", [limits.BATCH_BYTES_MAX, limits.BATCH_BYTES_MAX - batch.HEADER_BYTES]
)
def test_a_batch_beyond_the_limit_is_refused(size: int) -> None:
    with pytest.raises(RecordTooLarge):
        batch.encode_records([(None, bytes(size), 0, None)])


def test_a_batch_of_the_largest_size_is_made() -> None:
    frame = len(batch.encode_records([(None, bytes(1 << 20), 0, None)])) - (1 << 20)
    raw = batch.encode_records([(None, bytes(limits.BATCH_BYTES_MAX - frame), 0, None)])
    assert len(raw) == limits.BATCH_BYTES_MAX


def test_columns_of_nulls_cost_one_byte_each() -> None:
    one = len(batch.encode_records([(None, None, 5, None)]))
    assert one == len(batch.encode_records([(None, None, 5, None)] * 1_000))
    assert one == batch.HEADER_BYTES + 6


def test_a_batch_is_stored_by_replacing_its_first_32_bytes() -> None:
    raw = bytes(batch.encode_records([(b"k", b"v", 5, None)]))
    stored = assign(raw, base_offset=2**62, append_time_ms=-5, leader_epoch=2**31 - 1)
    assert stored[batch.ASSIGNED_BYTES :] == raw[batch.ASSIGNED_BYTES :]
    assert batch.is_assigned_crc_good(stored)
    header = batch.read_header(stored)
    assert (header.base_offset, header.append_time_ms) == (2**62, -5)
    assert header.leader_epoch == 2**31 - 1
    assert batch.records("t", 0, stored, header)[0].offset == 2**62


def test_damaged_offsets_are_noticed_and_not_believed() -> None:
    stored = bytearray(assign(bytes(batch.encode_records([(b"k", b"v", 5, None)])), base_offset=7))
    stored[8] ^= 1
    assert not batch.is_assigned_crc_good(stored)
    with pytest.raises(CorruptBatch) as caught:
        batch.decode_columns(stored)
    assert caught.value.details == {}


def test_a_checksum_of_too_few_bytes_is_not_good() -> None:
    assert not batch.is_assigned_crc_good(b"HR")
    assert not batch.is_assigned_crc_good(bytes(100), 90)


def test_a_header_needs_88_bytes() -> None:
    with pytest.raises(CorruptBatch, match="88 bytes"):
        batch.read_header(bytes(87))
    assert batch.read_header(bytes(100), 12).length == 0


def test_codecs_have_stable_names_and_numbers() -> None:
    assert CODEC_NAMES == {"none": 0, "lz4": 1, "zstd": 2}


@pytest.mark.parametrize("codec", [Codec.NONE, 3, 7])
def test_other_codecs_are_an_unsupported_format(codec: int) -> None:
    with pytest.raises(UnsupportedFormat):
        decompress(codec, b"", 0)
    with pytest.raises(UnsupportedFormat):
        compress(codec, b"")  # type: ignore[arg-type]
