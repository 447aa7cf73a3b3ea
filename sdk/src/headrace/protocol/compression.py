"""The codecs of a batch's payload, by the number stored in its attributes.

Contexts are kept and reused: a one-shot zstd call costs about a third more (docs/performance.md).
Both directions are bounded by the caller before they start; decompression checks that it got
exactly what the header announced, so a bomb stops at the announced size.
"""

from __future__ import annotations

import threading
from enum import IntEnum

import lz4.frame
import zstandard

from headrace.protocol import limits
from headrace.protocol.errors import CorruptBatch, UnsupportedFormat

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Payload codecs; the value is what stands in the batch."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


CODEC_NAMES = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

_ZSTD_LEVEL = 1
_local = threading.local()
"""zstd contexts may not be shared between threads, so each thread keeps its own pair."""


def _zstd_compressor() -> zstandard.ZstdCompressor:
    found: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if found is None:
        found = _local.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return found


def _zstd_decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor(
            max_window_size=limits.UNCOMPRESSED_BYTES_MAX
        )
    return found


def compress(codec: Codec, payload: Buffer) -> bytes:
    """The payload under `codec` (not `NONE`)."""
    if codec is Codec.LZ4:
        return bytes(lz4.frame.compress(payload, compression_level=0, store_size=True))
    if codec is Codec.ZSTD:
        return _zstd_compressor().compress(payload)
    raise UnsupportedFormat(f"nothing to compress with under codec {codec!r}")


def decompress(codec: int, payload: Buffer, uncompressed_bytes: int) -> bytes:
    """The payload's `uncompressed_bytes` bytes.

    Never makes more than `uncompressed_bytes` + 1 bytes, whatever the payload claims of itself,
    and takes exactly one frame with nothing behind it.

    Raises:
        CorruptBatch: it isn't of that codec, or of another length than announced.
        UnsupportedFormat: a codec of a newer version.
    """
    if codec == Codec.LZ4:
        plain = _decompress_lz4(payload, uncompressed_bytes)
    elif codec == Codec.ZSTD:
        plain = _decompress_zstd(payload, uncompressed_bytes)
    else:
        raise UnsupportedFormat(
            f"compression codec {codec} is not known to this version; update the client"
        )
    if len(plain) != uncompressed_bytes:
        raise CorruptBatch(
            f"the payload decompresses to another length than the {uncompressed_bytes} bytes"
            " its header announces"
        )
    return plain


def _decompress_lz4(payload: Buffer, uncompressed_bytes: int) -> bytes:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = bytes(decompressor.decompress(payload, max_length=uncompressed_bytes + 1))
    except (RuntimeError, EOFError, ValueError) as error:
        raise CorruptBatch(f"the payload is not an lz4 frame: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise CorruptBatch("the payload is not one whole lz4 frame of the announced length")
    return plain


def _decompress_zstd(payload: Buffer, uncompressed_bytes: int) -> bytes:
    try:
        announced = zstandard.get_frame_parameters(payload).content_size
        if announced not in (uncompressed_bytes, zstandard.CONTENTSIZE_UNKNOWN):
            raise CorruptBatch(
                f"the zstd frame is of {announced} bytes, the batch's header announces"
                f" {uncompressed_bytes}"
            )
        return _zstd_decompressor().decompress(
            payload, max_output_size=uncompressed_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"the payload is not one whole zstd frame: {error}") from error
