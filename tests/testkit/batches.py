"""Batches for tests: records that hypothesis makes up, and batches sealed around any payload."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
from crc32c import crc32c
from hypothesis import strategies as st

from headrace.protocol import batch, limits
from headrace.protocol.compression import Codec
from headrace.protocol.record import Headers

Row = tuple[bytes | None, bytes | None, int, Headers | None]

nullable_bytes = st.none() | st.binary(max_size=40)
header_maps = st.none() | st.dictionaries(st.text(max_size=8), nullable_bytes, max_size=4)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_100_000),
    st.integers(limits.TIMESTAMP_MS_MIN, limits.TIMESTAMP_MS_MAX),
    st.sampled_from([limits.TIMESTAMP_MS_MIN, -1, 0, limits.TIMESTAMP_MS_MAX]),
)
rows: st.SearchStrategy[Row] = st.tuples(nullable_bytes, nullable_bytes, timestamps, header_maps)
codecs = st.sampled_from(Codec)


class Sealed(NamedTuple):
    """What a batch says of itself; by default the truth about a payload of one record."""

    record_count: int = 1
    last_offset_delta: int = 0
    first_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    attributes: int = 0
    uncompressed_length: int | None = None
    base_offset: int = 0


def pack(*columns: object) -> bytes:
    """A payload of these columns, well-formed or not."""
    return msgspec.msgpack.encode(columns)


def seal(payload: bytes, header: Sealed | None = None) -> bytes:
    """A batch with good checksums around any payload, true to the layout in `protocol.batch`."""
    header = header or Sealed()
    announced = header.uncompressed_length
    sealed = struct.pack(
        "<HHIIqqqihHII",
        header.attributes, 0, header.record_count, header.last_offset_delta,
        header.first_timestamp_ms, header.max_timestamp_ms, -1, -1, -1, 0,
        len(payload) if announced is None else announced, 0,
    ) + payload  # fmt: skip
    sealed = struct.pack("<I", crc32c(sealed)) + sealed
    length = batch.ASSIGNED_BYTES + len(sealed)
    return (
        batch.assigned_bytes(
            length, base_offset=header.base_offset, append_time_ms=0, leader_epoch=0
        )
        + sealed
    )


def assign(
    raw: bytes, *, base_offset: int, append_time_ms: int = 0, leader_epoch: int = 0
) -> bytes:
    """The batch as the broker stores it: its own 32 bytes in front, the rest untouched."""
    head = batch.assigned_bytes(
        len(raw),
        base_offset=base_offset,
        append_time_ms=append_time_ms,
        leader_epoch=leader_epoch,
    )
    return head + bytes(raw[batch.ASSIGNED_BYTES :])
