"""Payloads that ask for more memory than they are worth: refused before they get it."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from headrace.protocol import batch, limits
from headrace.protocol.compression import Codec, decompress
from headrace.protocol.errors import CorruptBatch
from testkit.batches import Sealed, pack, seal

MIB = 1 << 20
PLAIN = pack(None, [b"x" * 5_000], None, None, None)


def _zstd_without_size(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(plain)


def _lz4_without_size(plain: bytes) -> bytes:
    return bytes(lz4.frame.compress(plain, store_size=False))


def _lz4(plain: bytes) -> bytes:
    return bytes(lz4.frame.compress(plain, store_size=True))


def _zstd(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(plain)


FRAMES = [
    pytest.param(Codec.LZ4, _lz4, id="lz4"),
    pytest.param(Codec.LZ4, _lz4_without_size, id="lz4-without-size"),
    pytest.param(Codec.ZSTD, _zstd, id="zstd"),
    pytest.param(Codec.ZSTD, _zstd_without_size, id="zstd-without-size"),
]
Compress = Callable[[bytes], bytes]


def _batch(payload: bytes, codec: Codec, announced: int) -> bytes:
    return seal(payload, Sealed(attributes=codec, uncompressed_length=announced))


@pytest.mark.parametrize(("codec", "compress"), FRAMES)
def test_a_frame_of_the_announced_length_is_read(codec: Codec, compress: Compress) -> None:
    columns = batch.decode_columns(_batch(compress(PLAIN), codec, len(PLAIN)))
    assert columns.values == [b"x" * 5_000]


@pytest.mark.parametrize("announced", [0, 1, len(PLAIN) - 1, len(PLAIN) + 1, 1_000_000, 64 * MIB])
@pytest.mark.parametrize(("codec", "compress"), FRAMES)
def test_a_lie_about_the_length_is_noticed(
    codec: Codec, compress: Compress, announced: int
) -> None:
    with pytest.raises(CorruptBatch):
        batch.decode_columns(_batch(compress(PLAIN), codec, announced))


@pytest.mark.parametrize(("codec", "compress"), FRAMES)
def test_a_bomb_stops_at_the_announced_length(codec: Codec, compress: Compress) -> None:
    bomb = compress(bytes(48 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, bomb, 1_000)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_more_than_the_limit_is_refused_before_decompression_starts() -> None:
    with pytest.raises(CorruptBatch, match="limit"):
        batch.decode_columns(_batch(_zstd(PLAIN), Codec.ZSTD, limits.UNCOMPRESSED_BYTES_MAX + 1))


@pytest.mark.parametrize(("codec", "compress"), FRAMES)
@pytest.mark.parametrize("spoil", ["junk behind", "a second frame", "the end cut off"])
def test_a_payload_is_exactly_one_frame(codec: Codec, compress: Compress, spoil: str) -> None:
    frame = compress(PLAIN)
    payload = {
        "junk behind": frame + b"junk",
        "a second frame": frame + frame,
        "the end cut off": frame[:-1],
    }[spoil]
    with pytest.raises(CorruptBatch):
        batch.decode_columns(_batch(payload, codec, len(PLAIN)))


def test_a_zstd_window_larger_than_any_payload_is_refused() -> None:
    """A frame may ask for a window of gigabytes; ours is as large as a payload may be."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=27, write_content_size=False, compression_level=1
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    chunk = compressor.compressobj()
    frame = chunk.compress(PLAIN) + chunk.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 128 * MIB
    with pytest.raises(CorruptBatch, match="memory"):
        batch.decode_columns(_batch(frame, Codec.ZSTD, len(PLAIN)))


def test_a_skippable_zstd_frame_is_no_payload() -> None:
    frame = struct.pack("<II", 0x184D2A50, len(PLAIN)) + PLAIN
    with pytest.raises(CorruptBatch):
        batch.decode_columns(_batch(frame, Codec.ZSTD, len(PLAIN)))


@pytest.mark.parametrize("column", range(5))
def test_a_column_longer_than_a_batch_may_be_is_refused_before_it_is_made(column: int) -> None:
    """A few kilobytes of zstd can hold 60 million nulls, half a gigabyte as a Python list."""
    nulls = b"\xdd" + struct.pack(">I", 40 * MIB) + b"\xc0" * (40 * MIB)
    plain = b"\x95" + b"\xc0" * column + nulls + b"\xc0" * (4 - column)
    raw = _batch(_zstd(plain), Codec.ZSTD, len(plain))
    assert len(raw) < 10_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            batch.decode_columns(raw)
        assert tracemalloc.get_traced_memory()[1] < len(plain) + MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "payload",
    [
        b"\x95\xdd\xff\xff\xff\xff" + b"\xc0" * 10,
        b"\x95\x91\xc6\xff\xff\xff\xff" + b"\xc0" * 10,
        b"\x95\xc0\xc0\xc0\x91\xdf\xff\xff\xff\xff\xc0",
        b"\x95\xc0\xc0\xc0\xc0" + b"\x91" * 100_000 + b"\xc0",
        b"\x96\xc0\xc0\xc0\xc0\xc0" + b"\x91" * 100_000 + b"\xc0",
        b"\x95" + b"\x91" * 100_000,
    ],
    ids=["long array", "long bytes", "long map", "deep column", "deep sixth", "deep first"],
)
def test_lengths_and_depths_that_lie_are_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptBatch):
        batch.decode_columns(seal(payload))
