"""The values that coordination is about: cluster, registration, topic, partition record.

Exactly what replication.md R1 keeps in the store, as frozen values; `encoding` turns them into the
store's bytes and back, `transitions` makes the next record from one, `election` says who should
lead. Nothing here knows a store, a clock or a broker process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from headrace.protocol.ids import TopicId

PARTITIONS_PER_SHARD = 64
"""Partition records in one store object. More make each change dearer (the whole object travels),
fewer make more objects (replication.md H8a)."""

TOMBSTONES_MAX = 10_000
"""Tombstones kept in the cluster object; the oldest go first. A broker that was away for so many
deletions moves the data to `stray/` instead of deleting it: nothing is lost by the bound."""

FEATURE_LEVEL = 1
"""The newest store and log formats that this version writes once every broker knows them."""

ConfigValue = str | int | float | bool
"""A setting's value, as users give it and as it is stored."""

BrokerState = Literal["starting", "running", "draining"]
"""`starting` brokers aren't elected, `draining` ones only if nobody else can lead."""

Recovery = Literal["none", "possible_loss", "unclean"]
"""How the present leader came to lead: with standing; as the best of those who all lost power
(R24: the last records may be missing); by an unclean election (records are missing)."""


def _no_config() -> Mapping[str, ConfigValue]:
    return MappingProxyType({})


class Generation(NamedTuple):
    """The number of a broker's log contents. It changes only when the log may have lost bytes:
    `disk_gen` with the disk or its meta, `power_gen` with the machine's page cache."""

    disk_gen: int
    power_gen: int


class Member(NamedTuple):
    """An entry of ISR or ELR: a broker as long as its log has this generation."""

    broker_id: int
    generation: Generation


class Leader(NamedTuple):
    """Who leads: a broker as long as it is the process of this session."""

    broker_id: int
    session: int


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """The state of one partition; replication.md R1.

    `partition_epoch` is +1 with every write, `leader_epoch` +1 with every leader and every loss of
    a replica. Invariants: see `transitions.violations`.
    """

    topic_id: TopicId
    partition: int
    partition_epoch: int
    leader_epoch: int
    leader: Leader | None
    isr: tuple[Member, ...]
    elr: tuple[Member, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_isr: int = 1
    unclean: bool = False
    recovery: Recovery = "none"

    @property
    def min_effective(self) -> int:
        """`min_isr`, but never more than there are replicas (R10)."""
        return min(self.min_isr, len(self.replicas))

    def in_isr(self, broker_id: int) -> Member | None:
        """The broker's entry in the ISR, whatever its generation."""
        return next((entry for entry in self.isr if entry.broker_id == broker_id), None)


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A stored partition record that can't be understood (damaged, edited by hand, newer). Its
    partition freezes: nobody leads, elects or overwrites it; `raw` is written back untouched."""

    topic_id: TopicId
    partition: int
    raw: bytes
    reason: str


AnyRecord = PartitionRecord | UnreadableRecord


@dataclass(frozen=True, slots=True)
class Shard:
    """The records of up to 64 partitions of one topic: partition n lies in shard n // 64 at place
    n % 64. `term` is that of the last controller that wrote it (R5)."""

    topic_id: TopicId
    index: int
    records: tuple[AnyRecord, ...]
    term: int = 0


class Move(NamedTuple):
    """Where a partition's replicas are to go, and where they were when that was decided."""

    target: tuple[int, ...]
    origin: tuple[int, ...]


def _no_moves() -> Mapping[int, Move]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TopicObject:
    """A topic. `version` is +1 with each write and orders what is read. `replicas` is how many
    copies each partition was given. `moves`: what a reassignment wants of its partitions; an entry
    stays, as done, until the whole reassignment is. While `deleting`, nobody may use it any
    more."""

    name: str
    topic_id: TopicId
    partition_count: int
    replicas: int
    config: Mapping[str, ConfigValue] = field(default_factory=_no_config)
    deleting: bool = False
    version: int = 0
    moves: Mapping[int, Move] = field(default_factory=_no_moves)


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker as it registered. `session` is +1 with each process start, `nonce` tells which of
    two processes with one id took it, `version` is +1 with each write."""

    broker_id: int
    session: int
    generation: Generation
    url: str
    rack: str | None = None
    state: BrokerState = "starting"
    feature_level: int = FEATURE_LEVEL
    software: str = ""
    nonce: str = ""
    version: int = 0

    @property
    def draining(self) -> bool:
        """Whether the broker is on its way out."""
        return self.state == "draining"


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """The cluster. `store_term` only grows (with each controller and each minute), so that a store
    that went back in time shows. `tombstones`: topic id -> the term in which it was deleted; only
    they allow data to be removed (R25). `config`: cluster-wide defaults of topic settings.
    `cordoned` brokers get no new replicas, and lead only what nobody else can."""

    cluster_id: str
    store_term: int = 0
    feature_level: int = FEATURE_LEVEL
    tombstones: Mapping[TopicId, int] = field(default_factory=lambda: MappingProxyType({}))
    config: Mapping[str, ConfigValue] = field(default_factory=_no_config)
    version: int = 0
    cordoned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stored object other than a partition record that can't be understood."""

    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What an election needs to know of a broker: `live` is the judgement of whoever asks."""

    session: int
    generation: Generation
    live: bool
    state: BrokerState = "running"
    rack: str | None = None
    cordoned: bool = False


def shard_of(partition: int) -> int:
    """The index of the shard that holds a partition's record."""
    return partition // PARTITIONS_PER_SHARD


def shard_count(partition_count: int) -> int:
    """How many shards a topic has."""
    return -(-partition_count // PARTITIONS_PER_SHARD)
