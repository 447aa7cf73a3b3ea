"""The record batch: the same bytes from the producer's memory to the disk, the followers and back.

Little-endian, 88 bytes of header, then the payload (docs/formats.md has the reasons):

    assigned by the broker (32 bytes)
       0  magic         2s   b"HR"
       2  version       u8   1
       3  flags         u8   0
       4  length        u32  bytes of the whole batch, header included
       8  base_offset   i64  offset of the first record
      16  append_time   i64  ms, the leader's clock, never going back within a partition
      24  leader_epoch  i32
      28  crc           u32  CRC-32C of the 28 bytes before
    sealed by the producer (56 bytes)
      32  crc           u32  CRC-32C of all that follows, to the end of the batch
      36  attributes    u16  bits 0-2 codec, 3 transactional, 4 control, 5-7 body kind (0)
      38  reserved      u16
      40  record_count  u32
      44  last_delta    u32  offset of the last record minus base_offset
      48  first_ts      i64  timestamp of the first record, ms
      56  max_ts        i64  largest timestamp, ms
      64  producer_id   i64  -1: not idempotent
      72  base_sequence i32  -1: not idempotent
      76  producer_epoch i16
      78  reserved      u16
      80  uncompressed  u32  bytes of the payload once decompressed
      84  reserved      u32
    payload: MessagePack [keys, values, timestamps, headers, offset_deltas], compressed or not

A column is a list with one entry a record, or nil: no keys, no values, all timestamps equal to
first_ts, no headers, offsets without holes. Timestamps are deltas to first_ts. The broker assigns
its 32 bytes without a second look at the payload; that is why they have a checksum of their own.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Meta

from headrace.protocol import limits
from headrace.protocol.compression import Buffer, Codec, compress, decompress
from headrace.protocol.errors import (
    CorruptBatch,
    InvalidRequest,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedFormat,
)
from headrace.protocol.record import NO_HEADERS, Headers, Record

MAGIC = b"HR"
VERSION = 1
HEADER_BYTES = 88
ASSIGNED_BYTES = 32
NO_PRODUCER = -1

_HEADER = struct.Struct("<2sBBIqqiIIHHIIqqqihHII")
_ASSIGNED = struct.Struct("<2sBBIqqi")
_CRC = struct.Struct("<I")
_SEALED_AFTER_CRC = struct.Struct("<HHIIqqqihHII")
_LENGTH_AT = struct.Struct("<2sBBI")

CODEC_MASK = 0x07
TRANSACTIONAL_BIT = 0x08
CONTROL_BIT = 0x10
BODY_KIND_MASK = 0xE0
_KNOWN_BITS = CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT | BODY_KIND_MASK


class BatchHeader(NamedTuple):
    """All fields of the 88 bytes, as `read_header` finds them; see the module's layout."""

    magic: bytes
    version: int
    flags: int
    length: int
    base_offset: int
    append_time_ms: int
    leader_epoch: int
    assigned_crc: int
    sealed_crc: int
    attributes: int
    reserved_a: int
    record_count: int
    last_offset_delta: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    base_sequence: int
    producer_epoch: int
    reserved_b: int
    uncompressed_length: int
    reserved_c: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset of the first record after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The payload's codec, a `Codec` or a number of a newer version."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        """Whether the batch carries a transaction marker instead of records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)


class Columns(NamedTuple):
    """A decoded payload. Each column is a list of `record_count` entries or None (see module)."""

    keys: list[bytes | None] | None
    values: list[bytes | None] | None
    timestamps: list[int] | None
    headers: list[Headers | None] | None
    offset_deltas: list[int] | None


_COLUMN = Meta(max_length=limits.RECORDS_PER_BATCH_MAX)
"""Looked at before a list is made, so that no payload makes longer ones than a batch can have."""

_NEAR_MS = 100 * 366 * 86_400_000
"""A century: how far from first_ts the timestamps of ordinary batches lie."""
_FAR_MS = limits.TIMESTAMP_MS_MAX - limits.TIMESTAMP_MS_MIN


def _payload_decoder(delta_ms_max: int) -> msgspec.msgpack.Decoder[Any]:
    """Decodes payloads whose timestamp deltas are at most so large; msgspec checks that in C for
    2 ns a record, where a look at the finished list costs 25."""
    delta_ms = Annotated[int, Meta(ge=-delta_ms_max, le=delta_ms_max)]
    offset_delta = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    payload = msgspec.defstruct(
        "Payload",
        [
            ("keys", Annotated[list[bytes | None], _COLUMN] | None),
            ("values", Annotated[list[bytes | None], _COLUMN] | None),
            ("timestamps", Annotated[list[delta_ms], _COLUMN] | None),
            ("headers", Annotated[list[dict[str, bytes | None] | None], _COLUMN] | None),
            ("offset_deltas", Annotated[list[offset_delta], _COLUMN] | None),
        ],
        array_like=True,
        forbid_unknown_fields=True,
        gc=False,
    )
    return msgspec.msgpack.Decoder(payload)


_encoder = msgspec.msgpack.Encoder()
_near_decoder = _payload_decoder(_NEAR_MS)
_far_decoder = _payload_decoder(_FAR_MS)
_EMPTY_HEADER = bytes(HEADER_BYTES)
_UNASSIGNED = (0, 0, 0)
"""base_offset, append_time_ms and leader_epoch of a batch that no broker has seen."""


def encode(
    *,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[Headers | None] | None,
    record_count: int,
    first_timestamp_ms: int,
    max_timestamp_ms: int,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
) -> bytearray:
    """One sealed batch; the broker's fields are zero but for magic, version, length and checksum.

    `timestamps` are **deltas** to `first_timestamp_ms`, or None when all are zero. `offset_deltas`
    and `last_offset_delta` are for compaction; without them offsets have no holes.

    Raises:
        RecordTooLarge: the batch is beyond `limits`, compressed or not.
    """
    out = bytearray(_EMPTY_HEADER)
    _encoder.encode_into((keys, values, timestamps, headers, offset_deltas), out, HEADER_BYTES)
    uncompressed_length = len(out) - HEADER_BYTES
    if uncompressed_length > limits.UNCOMPRESSED_BYTES_MAX:
        raise RecordTooLarge(
            f"a batch of {uncompressed_length:,} bytes is over the limit of"
            f" {limits.UNCOMPRESSED_BYTES_MAX:,}; send smaller records or fewer at once"
        )
    if codec is not Codec.NONE:
        out[HEADER_BYTES:] = compress(codec, memoryview(out)[HEADER_BYTES:].toreadonly())
    if len(out) > limits.BATCH_BYTES_MAX:
        raise RecordTooLarge(
            f"a batch of {len(out):,} bytes is over the limit of {limits.BATCH_BYTES_MAX:,};"
            " send smaller records or fewer at once"
        )
    last_delta = record_count - 1 if last_offset_delta is None else last_offset_delta
    _ASSIGNED.pack_into(out, 0, MAGIC, VERSION, 0, len(out), *_UNASSIGNED)
    _CRC.pack_into(out, 28, crc32c(memoryview(out)[:28]))
    _SEALED_AFTER_CRC.pack_into(
        out, 36, attributes | codec, 0, record_count, last_delta, first_timestamp_ms,
        max_timestamp_ms, producer_id, base_sequence, producer_epoch, 0, uncompressed_length, 0,
    )  # fmt: skip
    _CRC.pack_into(out, 32, crc32c(memoryview(out)[36:]))
    return out


def encode_records(
    records: Sequence[tuple[bytes | None, bytes | None, int, Headers | None]],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """One sealed batch of `(key, value, timestamp_ms, headers)` rows; for paths where rows are
    what there is (JSON, tests, internal topics).

    Raises:
        InvalidRequest: no records, or more than one batch may hold.
        InvalidTimestamp: a timestamp outside the years 1 to 9999.
        RecordTooLarge: as `encode`.
    """
    if not 0 < len(records) <= limits.RECORDS_PER_BATCH_MAX:
        raise InvalidRequest(
            f"a batch holds 1 to {limits.RECORDS_PER_BATCH_MAX} records, got {len(records)}"
        )
    keys, values, stamps, headers = zip(*records, strict=True)
    first, last = min(stamps), max(stamps)
    check_timestamps(first, last)
    first = stamps[0]
    return encode(
        keys=keys if any(key is not None for key in keys) else None,
        values=values if any(value is not None for value in values) else None,
        timestamps=None if min(stamps) == last else [stamp - first for stamp in stamps],
        headers=[head or None for head in headers] if any(headers) else None,
        record_count=len(records),
        first_timestamp_ms=first,
        max_timestamp_ms=last,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def check_timestamps(first_ms: int, max_ms: int) -> None:
    """Refuses timestamps that no calendar of our users can show.

    Raises:
        InvalidTimestamp: outside the years 1 to 9999.
    """
    for stamp in (first_ms, max_ms):
        if not limits.TIMESTAMP_MS_MIN <= stamp <= limits.TIMESTAMP_MS_MAX:
            raise InvalidTimestamp(
                f"timestamp {stamp} ms is outside the years 1 to 9999; timestamps are"
                " milliseconds since 1970-01-01T00:00:00Z"
            )


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; nothing is checked but that 88 bytes are there.

    Raises:
        CorruptBatch: fewer than 88 bytes are left.
    """
    try:
        return BatchHeader._make(_HEADER.unpack_from(data, position))
    except struct.error as error:
        raise CorruptBatch(
            f"a batch header is {HEADER_BYTES} bytes, only {len(data) - position} are there"
        ) from error


def check_shape(header: BatchHeader, size_bytes: int) -> None:
    """Whether the header can be that of a batch of exactly `size_bytes` bytes.

    Raises:
        CorruptBatch: magic, length or counts can't be.
        UnsupportedFormat: a version, flag, codec or body kind of a newer version.
    """
    if header.magic != MAGIC:
        raise CorruptBatch("this is not a record batch: it doesn't start with 'HR'")
    if header.version != VERSION:
        raise UnsupportedFormat(f"batch version {header.version} is not known, only {VERSION}")
    if header.length != size_bytes or size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"the batch says it is {header.length} bytes long, {size_bytes} arrived")
    if header.attributes & ~_KNOWN_BITS or header.attributes & BODY_KIND_MASK or header.flags:
        raise UnsupportedFormat(
            f"batch attributes {header.attributes:#06x} or flags {header.flags:#04x} are not known"
        )
    if header.codec > Codec.ZSTD:
        raise UnsupportedFormat(f"compression codec {header.codec} is not known")
    if header.uncompressed_length > limits.UNCOMPRESSED_BYTES_MAX:
        raise CorruptBatch(
            f"the payload would be {header.uncompressed_length:,} bytes, the limit is"
            f" {limits.UNCOMPRESSED_BYTES_MAX:,}"
        )
    if header.codec == Codec.NONE and header.uncompressed_length != size_bytes - HEADER_BYTES:
        raise CorruptBatch("the payload is not as long as its header says")
    if header.record_count > limits.RECORDS_PER_BATCH_MAX:
        raise CorruptBatch(
            f"a batch holds at most {limits.RECORDS_PER_BATCH_MAX} records,"
            f" this one says {header.record_count}"
        )
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptBatch(
            f"the batch says {header.record_count} records in"
            f" {header.last_offset_delta + 1} offsets"
        )


def check_sealed_crc(data: Buffer, header: BatchHeader) -> None:
    """Compares the producer's checksum with the bytes.

    Raises:
        CorruptBatch: they differ; the batch was damaged on its way.
    """
    if crc32c(memoryview(data)[36 : header.length]) != header.sealed_crc:
        raise CorruptBatch("the batch's checksum is wrong: it was damaged on its way")


def check_whole(data: Buffer, header: BatchHeader) -> None:
    """Shape and both checksums of the one batch that `data` is; the payload stays closed.

    Raises:
        CorruptBatch: one of them is wrong; `details` has the offsets unless they are damaged.
        UnsupportedFormat: something of a newer version.
    """
    check_shape(header, len(data))
    if not is_assigned_crc_good(data):
        raise CorruptBatch("the checksum of the batch's offsets is wrong: it was damaged")
    try:
        check_sealed_crc(data, header)
    except CorruptBatch as error:
        raise _with_offsets(error, header) from None


def _with_offsets(error: CorruptBatch, header: BatchHeader) -> CorruptBatch:
    error.details = {"first_offset": header.base_offset, "last_offset": header.last_offset}
    return error


def assigned_bytes(
    length: int, *, base_offset: int, append_time_ms: int, leader_epoch: int
) -> bytes:
    """The 32 bytes that the broker puts in front of a producer's 56 and the payload."""
    head = _ASSIGNED.pack(MAGIC, VERSION, 0, length, base_offset, append_time_ms, leader_epoch)
    return head + _CRC.pack(crc32c(head))


def is_assigned_crc_good(data: Buffer, position: int = 0) -> bool:
    """Whether the 28 bytes at `position` match their checksum."""
    view = memoryview(data)[position : position + ASSIGNED_BYTES]
    return len(view) == ASSIGNED_BYTES and crc32c(view[:28]) == _CRC.unpack_from(view, 28)[0]


def walk(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """`(position, header)` of each whole batch in `data`; stops at a cut-off last one.

    Only length and magic are looked at; what must be trusted is checked by the caller.

    Raises:
        CorruptBatch: bytes that are no batch.
    """
    position, end = 0, len(data)
    while end - position >= HEADER_BYTES:
        header = read_header(data, position)
        if header.magic != MAGIC or header.length < HEADER_BYTES:
            raise CorruptBatch(f"no batch at byte {position} of {end}")
        if header.length > end - position:
            return
        yield position, header
        position += header.length


def decode_columns(data: Buffer, header: BatchHeader | None = None) -> Columns:
    """The columns of the one batch that `data` is, after checking both checksums and all counts.

    Raises:
        CorruptBatch: a wrong checksum, or rubbish inside a good one; `details` has the offsets
            unless it is they that are damaged.
        UnsupportedFormat: something of a newer version.
    """
    if header is None:
        header = read_header(data)
    check_whole(data, header)
    try:
        return _decode_payload(memoryview(data)[HEADER_BYTES:], header)
    except CorruptBatch as error:
        raise _with_offsets(error, header) from error.__cause__


def _decode_payload(payload: memoryview, header: BatchHeader) -> Columns:
    plain: Buffer = payload
    if header.codec != Codec.NONE:
        plain = decompress(header.codec, payload, header.uncompressed_length)
    columns = _decode_body(plain, header)
    for column in columns:
        if column is not None and len(column) != header.record_count:
            raise CorruptBatch(
                f"the batch says {header.record_count} records, a column has {len(column)}"
            )
    _check_offsets(columns.offset_deltas, header)
    return columns


def _decode_body(plain: Buffer, header: BatchHeader) -> Columns:
    """The columns, their timestamps within the years 1 to 9999. Far-off deltas, which hardly a
    batch has, take a second decoding and are looked at one by one."""
    first = header.first_timestamp_ms
    if limits.TIMESTAMP_MS_MIN + _NEAR_MS <= first <= limits.TIMESTAMP_MS_MAX - _NEAR_MS:
        try:
            return Columns(*msgspec.structs.astuple(_near_decoder.decode(plain)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    try:
        columns = Columns(*msgspec.structs.astuple(_far_decoder.decode(plain)))
        deltas = columns.timestamps or [0]
        check_timestamps(first + min(deltas), first + max(deltas))
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidTimestamp) as error:
        raise CorruptBatch(f"the checksum is good but the payload is no batch: {error}") from error
    return columns


def _check_offsets(deltas: list[int] | None, header: BatchHeader) -> None:
    """Offsets grow and end within the batch; without a column of their own they have no holes."""
    if deltas is None:
        if header.record_count not in (0, header.last_offset_delta + 1):
            raise CorruptBatch(
                f"the batch says {header.record_count} records in"
                f" {header.last_offset_delta + 1} offsets, but not which ones"
            )
    elif deltas and (
        deltas[-1] > header.last_offset_delta
        or not all(map(operator.lt, deltas, islice(deltas, 1, None)))
    ):
        raise CorruptBatch("the offsets in the batch don't grow, or go past its end")


def records(topic: str, partition: int, data: Buffer, header: BatchHeader) -> list[Record]:
    """The records of one batch, in order; empty for a control batch.

    Raises:
        CorruptBatch, UnsupportedFormat: as `decode_columns`.
    """
    if header.is_control:
        check_whole(data, header)
        return []
    columns = decode_columns(data, header)
    count, base, first = header.record_count, header.base_offset, header.first_timestamp_ms
    nothing: list[None] = [None] * count
    offsets: Sequence[int] = (
        range(base, base + count)
        if columns.offset_deltas is None
        else [base + delta for delta in columns.offset_deltas]
    )
    stamps = (
        [first] * count
        if columns.timestamps is None
        else [first + delta for delta in columns.timestamps]
    )
    heads: Sequence[Headers]
    if columns.headers is None:
        heads = [NO_HEADERS] * count
    else:
        heads = [head or NO_HEADERS for head in columns.headers]
    return list(
        map(
            Record, [topic] * count, [partition] * count, offsets,
            columns.keys or nothing, columns.values or nothing, stamps, heads,
        )
    )  # fmt: skip
