"""The records of `__offsets`: their bytes, final from the start (docs/formats.md).

key    MessagePack [kind, group, topic_id, partition]      kind 0: a committed offset
value  MessagePack [version, offset, leader_epoch, metadata, commit_time_ms], or null: forgotten

A reader skips kinds it doesn't know (they are a newer version's) and keeps the known ones.
"""

from __future__ import annotations

import msgspec

from headrace.protocol.errors import CorruptBatch
from headrace.protocol.ids import TopicId

KIND_OFFSET = 0
VALUE_VERSION = 1


class OffsetKey(msgspec.Struct, array_like=True, frozen=True):
    """Whose offset, of which partition."""

    kind: int
    group: str
    topic_id: bytes
    partition: int


class OffsetValue(msgspec.Struct, array_like=True, frozen=True):
    """The next offset to read, the leader epoch it was read under (-1 unknown), the client's own
    words, and when it was committed."""

    version: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int


_encoder = msgspec.msgpack.Encoder()
_kind_decoder = msgspec.msgpack.Decoder(list[object])
_key_decoder = msgspec.msgpack.Decoder(OffsetKey)
_value_decoder = msgspec.msgpack.Decoder(OffsetValue)


def encode_key(group: str, topic_id: TopicId, partition: int) -> bytes:
    """The key of one committed offset."""
    return _encoder.encode(OffsetKey(KIND_OFFSET, group, topic_id, partition))


def encode_value(offset: int, *, leader_epoch: int, metadata: str, commit_time_ms: int) -> bytes:
    """The value of one committed offset."""
    return _encoder.encode(
        OffsetValue(VALUE_VERSION, offset, leader_epoch, metadata, commit_time_ms)
    )


def decode(key: bytes | None, value: bytes | None) -> tuple[OffsetKey, OffsetValue | None] | None:
    """The offset a record tells of, with None for one forgotten; None for a kind not known here.

    Raises:
        CorruptBatch: the record is of a known kind and can't be read.
    """
    try:
        if key is None or _kind_decoder.decode(key)[:1] != [KIND_OFFSET]:
            return None
        found = _key_decoder.decode(key)
        return found, None if value is None else _value_decoder.decode(value)
    except msgspec.DecodeError as error:
        raise CorruptBatch(f"a record of __offsets can't be read: {error}") from error
