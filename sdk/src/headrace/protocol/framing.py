"""Many partitions in one HTTP body, both ways: what there is first, then the batches end to end.

    u32 n | n bytes of MessagePack (a struct of `requests`) | the batches, concatenated

The struct names the length of each partition's bytes, so the reader cuts the rest without
looking inside.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from headrace.protocol.compression import Buffer
from headrace.protocol.errors import InvalidRequest

_LENGTH = struct.Struct("<I")
T = TypeVar("T", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()


def head(meta: msgspec.Struct) -> bytes:
    """The frame's first part; append the batches in the order that `meta` lists them."""
    body = _encoder.encode(meta)
    return _LENGTH.pack(len(body)) + body


def split(body: Buffer, decoder: msgspec.msgpack.Decoder[T]) -> tuple[T, memoryview]:
    """The struct in front and a view of all bytes after it.

    Raises:
        InvalidRequest: cut short, or not of the struct's form.
    """
    if len(body) < _LENGTH.size:
        raise InvalidRequest(f"the body is {len(body)} bytes long, too short for a frame")
    length = _LENGTH.unpack_from(body)[0]
    view = memoryview(body)
    if length > len(body) - _LENGTH.size:
        raise InvalidRequest(
            f"the frame says its head is {length} bytes, only {len(body) - _LENGTH.size} follow"
        )
    data = view[_LENGTH.size + length :]
    try:
        return decoder.decode(view[_LENGTH.size : _LENGTH.size + length]), data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # RecursionError: fields of a newer version are skipped, and may be nested without end.
        raise InvalidRequest(f"the frame's head is not of the documented form: {error}") from error
