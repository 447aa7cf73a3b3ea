"""The records of `__offsets`: their bytes, final from the start (docs/formats.md).

    kind  key                                  value (null: forgotten)
    0     [0, group, topic_id, partition]      a committed offset
    1     [1, group]                           the group: its numbers, since when it is empty
    2     [2, group, member_id]                a member: what it asks for
    3     [3, group, member_id]                what the member is to own in the end
    4     [4, group, member_id]                the step it was told: what it owns, what it gives up

MessagePack arrays; values begin with their version. A reader skips kinds that it doesn't know (they
are a newer version's) and keeps the known ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.broker.core.groups.model import (
    Change,
    Header,
    HeaderSet,
    Partitions,
    Step,
    StepSet,
    Subscription,
    SubscriptionSet,
    TargetSet,
)
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.ids import TopicId, TopicIdPartition

KIND_OFFSET = 0
KIND_GROUP = 1
KIND_MEMBER = 2
KIND_TARGET = 3
KIND_STEP = 4
VALUE_VERSION = 1

FIXARRAY = 0x90
"""First byte of a MessagePack array of up to 15 items, without their count."""

Row = tuple[bytes, bytes | None]
"""A record's key and value."""


class OffsetKey(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Whose offset, of which partition."""

    kind: int
    group: str
    topic_id: bytes
    partition: int


class OffsetValue(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The next offset to read, the leader epoch it was read under (-1 unknown), the client's own
    words, and when it was committed."""

    version: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int


class GroupKey(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Which group, and which member of it where the kind is about one."""

    kind: int
    group: str
    member_id: str = ""


class _GroupValue(msgspec.Struct, array_like=True):
    version: int
    epoch: int
    members_epoch: int
    target_epoch: int
    empty_since_ms: int


class _MemberValue(msgspec.Struct, array_like=True):
    version: int
    topics: list[str]
    subscription_version: int
    instance_id: str | None
    rack: str | None
    assignor: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    has_left: bool


class _TargetValue(msgspec.Struct, array_like=True):
    version: int
    topics: dict[bytes, list[int]]


class _StepValue(msgspec.Struct, array_like=True):
    version: int
    epoch: int
    previous_epoch: int
    assigned: dict[bytes, dict[int, int]]
    revoking: dict[bytes, dict[int, int]]


_encoder = msgspec.msgpack.Encoder()
_offset_key = msgspec.msgpack.Decoder(OffsetKey)
_offset_value = msgspec.msgpack.Decoder(OffsetValue)
_group_key = msgspec.msgpack.Decoder(GroupKey)
_group_value = msgspec.msgpack.Decoder(_GroupValue)
_member_value = msgspec.msgpack.Decoder(_MemberValue)
_target_value = msgspec.msgpack.Decoder(_TargetValue)
_step_value = msgspec.msgpack.Decoder(_StepValue)


# --- offsets -------------------------------------------------------------------------------------


def encode_key(group: str, topic_id: TopicId, partition: int) -> bytes:
    """The key of one committed offset."""
    return _encoder.encode(OffsetKey(KIND_OFFSET, group, topic_id, partition))


def encode_value(offset: int, *, leader_epoch: int, metadata: str, commit_time_ms: int) -> bytes:
    """The value of one committed offset."""
    return _encoder.encode(
        OffsetValue(VALUE_VERSION, offset, leader_epoch, metadata, commit_time_ms)
    )


def kind_of(key: bytes | None) -> int | None:
    """The kind of record a key says, without decoding it; None for what is no key of ours."""
    if key is None or len(key) < 2 or not FIXARRAY < key[0] <= FIXARRAY + 15:
        return None
    return key[1]


def decode(key: bytes | None, value: bytes | None) -> tuple[OffsetKey, OffsetValue | None] | None:
    """The offset a record tells of, with None for one forgotten; None for another kind.

    Raises:
        CorruptBatch: the record is an offset's and can't be read.
    """
    if key is None or kind_of(key) != KIND_OFFSET:
        return None
    try:
        return _offset_key.decode(key), None if value is None else _offset_value.decode(value)
    except msgspec.DecodeError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> CorruptBatch:
    return CorruptBatch(f"a record of __offsets can't be read: {error}")


# --- groups --------------------------------------------------------------------------------------


def encode_change(group: str, change: Change) -> Row:
    """The record of one change of a group."""
    key: list[object]
    value: msgspec.Struct | None
    match change:
        case HeaderSet(header):
            key = [KIND_GROUP, group]
            value = None if header is None else _of_header(header)
        case SubscriptionSet(member_id, subscription):
            key = [KIND_MEMBER, group, member_id]
            value = None if subscription is None else _of_subscription(subscription)
        case TargetSet(member_id, target):
            key = [KIND_TARGET, group, member_id]
            value = None if target is None else _TargetValue(VALUE_VERSION, _by_topic(target))
        case StepSet(member_id, step):
            key = [KIND_STEP, group, member_id]
            value = None if step is None else _of_step(step)
    return _encoder.encode(key), None if value is None else _encoder.encode(value)


def decode_change(key: bytes | None, value: bytes | None) -> tuple[str, Change] | None:
    """The group and the change that a record tells of; None for other kinds.

    Raises:
        CorruptBatch: the record is a group's and can't be read.
    """
    kind = kind_of(key)
    if key is None or kind not in (KIND_GROUP, KIND_MEMBER, KIND_TARGET, KIND_STEP):
        return None
    try:
        found = _group_key.decode(key)
        return found.group, _change(found, value)
    except msgspec.DecodeError as error:
        raise _unreadable(error) from error


def _change(key: GroupKey, value: bytes | None) -> Change:
    if key.kind == KIND_GROUP:
        return HeaderSet(None if value is None else _to_header(value))
    if key.kind == KIND_MEMBER:
        return SubscriptionSet(key.member_id, None if value is None else _to_subscription(value))
    if key.kind == KIND_TARGET:
        return TargetSet(key.member_id, None if value is None else _to_target(value))
    return StepSet(key.member_id, None if value is None else _to_step(value))


def _of_header(header: Header) -> _GroupValue:
    return _GroupValue(
        VALUE_VERSION,
        header.epoch,
        header.members_epoch,
        header.target_epoch,
        header.empty_since_ms,
    )


def _to_header(value: bytes) -> Header:
    read = _group_value.decode(value)
    return Header(read.epoch, read.members_epoch, read.target_epoch, read.empty_since_ms)


def _of_subscription(subscription: Subscription) -> _MemberValue:
    return _MemberValue(
        VALUE_VERSION,
        list(subscription.topics),
        subscription.version,
        subscription.instance_id,
        subscription.rack,
        subscription.assignor,
        subscription.session_timeout_ms,
        subscription.rebalance_timeout_ms,
        subscription.client_id,
        subscription.has_left,
    )


def _to_subscription(value: bytes) -> Subscription:
    read = _member_value.decode(value)
    return Subscription(
        topics=tuple(read.topics),
        version=read.subscription_version,
        instance_id=read.instance_id,
        rack=read.rack,
        assignor=read.assignor,
        session_timeout_ms=read.session_timeout_ms,
        rebalance_timeout_ms=read.rebalance_timeout_ms,
        client_id=read.client_id,
        has_left=read.has_left,
    )


def _to_target(value: bytes) -> Partitions:
    topics = _target_value.decode(value).topics
    return frozenset(
        TopicIdPartition(TopicId(topic_id), partition)
        for topic_id, partitions in topics.items()
        for partition in partitions
    )


def _of_step(step: Step) -> _StepValue:
    return _StepValue(
        VALUE_VERSION,
        step.epoch,
        step.previous_epoch,
        _numbers_by_topic(step.assigned),
        _numbers_by_topic(step.revoking),
    )


def _to_step(value: bytes) -> Step:
    read = _step_value.decode(value)
    return Step(read.epoch, read.previous_epoch, _flat(read.assigned), _flat(read.revoking))


def _by_topic(partitions: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for where in sorted(partitions):
        found.setdefault(where.topic_id, []).append(where.partition)
    return found


def _numbers_by_topic(owned: Mapping[TopicIdPartition, int]) -> dict[bytes, dict[int, int]]:
    found: dict[bytes, dict[int, int]] = {}
    for where, number in sorted(owned.items()):
        found.setdefault(where.topic_id, {})[where.partition] = number
    return found


def _flat(topics: Mapping[bytes, Mapping[int, int]]) -> dict[TopicIdPartition, int]:
    return {
        TopicIdPartition(TopicId(topic_id), partition): number
        for topic_id, numbers in topics.items()
        for partition, number in numbers.items()
    }
