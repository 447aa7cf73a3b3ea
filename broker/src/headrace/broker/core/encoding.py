"""The values of `model` as the store's bytes and back.

JSON, so that a person with sqlite3 or kubectl can read it; partition records are arrays, so that a
shard of 64 stays around 4 kB. Bytes come from outside (another version, a restored backup, a hand
edit), so reading never raises: what can't be understood is an `Unreadable` value, and one bad
partition record leaves its 63 neighbours readable (replication.md H12).

    shard  {"v":1,"topic_id":hex,"index":n,"term":n,"records":[row, ...]}
    row    [partition_epoch, leader_epoch, [leader, session]|null, [[id, disk_gen, power_gen], ...]
            (ISR), the same (ELR), replicas, adding, removing, min_isr, unclean, recovery]
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from headrace.broker.core.model import (
    PARTITIONS_PER_SHARD,
    AnyRecord,
    BrokerState,
    ClusterObject,
    ConfigValue,
    Generation,
    Leader,
    Member,
    Move,
    PartitionRecord,
    Recovery,
    Registration,
    Shard,
    TopicObject,
    Unreadable,
    UnreadableRecord,
)
from headrace.broker.core.transitions import violations
from headrace.protocol.ids import TopicId, parse_topic_id
from headrace.protocol.limits import PARTITIONS_PER_TOPIC_MAX

Count = Annotated[int, Meta(ge=0)]
_Entry = tuple[Count, Count, Count]
_RECOVERIES: tuple[Recovery, ...] = ("none", "possible_loss", "unclean")
_S = TypeVar("_S", bound=Struct)
VERSION = 1


class _Versioned(Struct, kw_only=True):
    v: int


class _ClusterDoc(_Versioned, kw_only=True):
    cluster_id: Annotated[str, Meta(min_length=1)]
    version: Count
    store_term: Count
    feature_level: Count
    tombstones: dict[str, Count]
    config: dict[str, ConfigValue]
    cordoned: list[Count] = []


class _BrokerDoc(_Versioned, kw_only=True):
    id: Count
    version: Count
    session: Annotated[int, Meta(ge=1)]
    disk_gen: Count
    power_gen: Count
    url: str
    rack: str | None
    state: BrokerState
    feature_level: Count
    software: str
    nonce: str


class _TopicDoc(_Versioned, kw_only=True):
    name: str
    topic_id: str
    version: Count
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_TOPIC_MAX)]
    replicas: Annotated[int, Meta(ge=1)]
    config: dict[str, ConfigValue]
    deleting: bool
    moves: dict[Count, tuple[tuple[Count, ...], tuple[Count, ...]]] = {}


class _ShardDoc(_Versioned, kw_only=True):
    topic_id: str
    index: Count
    term: Count
    records: Annotated[list[Raw], Meta(max_length=PARTITIONS_PER_SHARD)]


class _Row(Struct, array_like=True, forbid_unknown_fields=True):
    partition_epoch: Count
    leader_epoch: Count
    leader: tuple[Count, Count] | None
    isr: list[_Entry]
    elr: list[_Entry]
    replicas: tuple[Count, ...]
    adding: tuple[Count, ...]
    removing: tuple[Count, ...]
    min_isr: Count
    unclean: bool
    recovery: Annotated[int, Meta(ge=0, lt=len(_RECOVERIES))]


_encode = msgspec.json.Encoder().encode
_row_decoder = msgspec.json.Decoder(_Row)


def encode_cluster(cluster: ClusterObject) -> bytes:
    """The cluster object's bytes."""
    return _encode(
        _ClusterDoc(
            v=VERSION,
            cluster_id=cluster.cluster_id,
            version=cluster.version,
            store_term=cluster.store_term,
            feature_level=cluster.feature_level,
            tombstones={key.hex(): term for key, term in cluster.tombstones.items()},
            config=dict(cluster.config),
            cordoned=sorted(cluster.cordoned),
        )
    )


def decode_cluster(raw: bytes) -> ClusterObject | Unreadable:
    """The cluster object, or why not."""
    doc = _decode(raw, _ClusterDoc)
    if isinstance(doc, Unreadable):
        return doc
    try:
        tombstones = {parse_topic_id(key): term for key, term in doc.tombstones.items()}
    except ValueError as error:
        return Unreadable(raw, str(error))
    return ClusterObject(
        cluster_id=doc.cluster_id,
        store_term=doc.store_term,
        feature_level=doc.feature_level,
        tombstones=MappingProxyType(tombstones),
        config=_frozen(doc.config),
        version=doc.version,
        cordoned=frozenset(doc.cordoned),
    )


def encode_registration(registration: Registration) -> bytes:
    """A registration's bytes."""
    return _encode(
        _BrokerDoc(
            v=VERSION,
            id=registration.broker_id,
            version=registration.version,
            session=registration.session,
            disk_gen=registration.generation.disk_gen,
            power_gen=registration.generation.power_gen,
            url=registration.url,
            rack=registration.rack,
            state=registration.state,
            feature_level=registration.feature_level,
            software=registration.software,
            nonce=registration.nonce,
        )
    )


def decode_registration(raw: bytes) -> Registration | Unreadable:
    """A registration, or why not."""
    doc = _decode(raw, _BrokerDoc)
    if isinstance(doc, Unreadable):
        return doc
    return Registration(
        broker_id=doc.id,
        session=doc.session,
        generation=Generation(doc.disk_gen, doc.power_gen),
        url=doc.url,
        rack=doc.rack,
        state=doc.state,
        feature_level=doc.feature_level,
        software=doc.software,
        nonce=doc.nonce,
        version=doc.version,
    )


def encode_topic(topic: TopicObject) -> bytes:
    """A topic object's bytes."""
    return _encode(
        _TopicDoc(
            v=VERSION,
            name=topic.name,
            topic_id=topic.topic_id.hex(),
            version=topic.version,
            partitions=topic.partition_count,
            replicas=topic.replicas,
            config=dict(topic.config),
            deleting=topic.deleting,
            moves={partition: (m.target, m.origin) for partition, m in topic.moves.items()},
        )
    )


def decode_topic(raw: bytes) -> TopicObject | Unreadable:
    """A topic object, or why not."""
    doc = _decode(raw, _TopicDoc)
    if isinstance(doc, Unreadable):
        return doc
    try:
        topic_id = parse_topic_id(doc.topic_id)
    except ValueError as error:
        return Unreadable(raw, str(error))
    return TopicObject(
        name=doc.name,
        topic_id=topic_id,
        partition_count=doc.partitions,
        replicas=doc.replicas,
        config=_frozen(doc.config),
        deleting=doc.deleting,
        version=doc.version,
        moves=MappingProxyType({at: Move(*where) for at, where in doc.moves.items()}),
    )


def encode_shard(shard: Shard) -> bytes:
    """A shard's bytes; an unreadable record's own bytes go back untouched."""
    return _encode(
        _ShardDoc(
            v=VERSION,
            topic_id=shard.topic_id.hex(),
            index=shard.index,
            term=shard.term,
            records=[Raw(encode_record(record)) for record in shard.records],
        )
    )


def decode_shard(raw: bytes) -> Shard | Unreadable:
    """A shard, in which single records may be unreadable, or why not even that."""
    doc = _decode(raw, _ShardDoc)
    if isinstance(doc, Unreadable):
        return doc
    try:
        topic_id = parse_topic_id(doc.topic_id)
    except ValueError as error:
        return Unreadable(raw, str(error))
    first = doc.index * PARTITIONS_PER_SHARD
    records = tuple(
        decode_record(bytes(row), topic_id, first + place) for place, row in enumerate(doc.records)
    )
    return Shard(topic_id, doc.index, records, doc.term)


def decode_record(raw: bytes, topic_id: TopicId, partition: int) -> AnyRecord:
    """One partition record; one that is well-formed but breaks the invariants (a hand edit) is as
    unreadable as garbage."""
    try:
        row = _row_decoder.decode(raw)
    except msgspec.MsgspecError as error:
        return UnreadableRecord(topic_id, partition, raw, str(error))
    record = PartitionRecord(
        topic_id=topic_id,
        partition=partition,
        partition_epoch=row.partition_epoch,
        leader_epoch=row.leader_epoch,
        leader=Leader(*row.leader) if row.leader else None,
        isr=_members(row.isr),
        elr=_members(row.elr),
        replicas=row.replicas,
        adding=row.adding,
        removing=row.removing,
        min_isr=row.min_isr,
        unclean=row.unclean,
        recovery=_RECOVERIES[row.recovery],
    )
    faults = violations(record)
    return UnreadableRecord(topic_id, partition, raw, "; ".join(faults)) if faults else record


def encode_record(record: AnyRecord) -> bytes:
    """One partition record's bytes; those of an unreadable one untouched."""
    if isinstance(record, UnreadableRecord):
        return record.raw
    return _encode(
        (
            record.partition_epoch,
            record.leader_epoch,
            record.leader,
            [(entry.broker_id, *entry.generation) for entry in record.isr],
            [(entry.broker_id, *entry.generation) for entry in record.elr],
            record.replicas,
            record.adding,
            record.removing,
            record.min_isr,
            record.unclean,
            _RECOVERIES.index(record.recovery),
        )
    )


def _members(entries: list[_Entry]) -> tuple[Member, ...]:
    return tuple(Member(entry[0], Generation(entry[1], entry[2])) for entry in entries)


def _frozen(config: dict[str, ConfigValue]) -> Mapping[str, ConfigValue]:
    return MappingProxyType(config)


def _decode(raw: bytes, kind: type[_S]) -> _S | Unreadable:
    try:
        version: Any = msgspec.json.decode(raw, type=_Versioned).v
        if version != VERSION:
            return Unreadable(raw, f"version {version}; this Headrace knows {VERSION}")
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Unreadable(raw, str(error))
