"""The JSON bodies of looking after a cluster: settings, restarts, recovery, batches of topics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from headrace.protocol.models import (
    Answer,
    Body,
    ConfigEntry,
    ConfigValue,
    ErrorBody,
    Name,
    TopicAlter,
    TopicCreate,
)

TOPICS_PER_CALL_MAX = 1_000
"""Topics in one batch; the SDK splits longer ones."""

RestartPhase = Literal["before", "after"]


class ClusterSettings(Answer):
    """The cluster-wide settings in force. `min.insync.replicas` is missing while it isn't set: it
    then depends on each topic's replicas."""

    config: dict[str, ConfigEntry]


class ClusterSettingsAlter(Body):
    """Changes to cluster-wide settings; null goes back to the default."""

    config: dict[str, ConfigValue | None]


class RestartBlocker(Answer):
    """What speaks against stopping a broker. `topic` empty: the cluster as a whole; `partition` -1:
    not about one. `unavoidable`: it has too few replicas, so waiting doesn't help."""

    topic: str
    partition: int
    reason: str
    unavoidable: bool = False


class RestartCheck(Answer):
    """Whether a broker may be stopped now (`before`), or is whole again after its start (`after`).
    `ok` is true only if nothing speaks against it; `blocking` counts all reasons, `blockers` has
    the first 100 of them."""

    broker_id: int
    phase: RestartPhase
    ok: bool
    blocking: int
    unavoidable: int
    blockers: list[RestartBlocker]


class ElectLeader(Body):
    """Who shall lead a partition whose records are gone. `unclean` must be true: whatever the
    broker's replica lacks is lost for good."""

    broker_id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    unclean: bool = False


class ElectedLeader(Answer):
    """The partition's new leader."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    recovery: str | None = None


class TopicCreates(Body):
    """Topics to make in one call."""

    topics: Annotated[list[TopicCreate], Meta(min_length=1, max_length=TOPICS_PER_CALL_MAX)]


class NamedTopicAlter(TopicAlter, kw_only=True):
    """Changes to one topic of a batch."""

    name: Name


class TopicAlters(Body):
    """Topics to change in one call."""

    topics: Annotated[list[NamedTopicAlter], Meta(min_length=1, max_length=TOPICS_PER_CALL_MAX)]


class TopicOutcome(Answer):
    """What became of one topic of a batch: its id, or an error."""

    name: str
    topic_id: str | None = None
    error: ErrorBody | None = None


class TopicOutcomes(Answer):
    """One outcome for each topic, in the order of the request."""

    topics: list[TopicOutcome]


class TopicNames(Body):
    """Topics to look up in one call."""

    names: Annotated[list[Name], Meta(min_length=1, max_length=TOPICS_PER_CALL_MAX)]


class TopicState(Answer):
    """One of many topics: what was set for it (not what is in force), partitions that lack in-sync
    replicas, and partitions that are being moved with those of them that are where they shall
    be."""

    name: str
    topic_id: str
    partitions: int
    replicas: int
    config: dict[str, ConfigValue]
    under_replicated: int = 0
    moving: int = 0
    moved: int = 0


class TopicStates(Answer):
    """Those of the topics asked for that there are, by name."""

    topics: list[TopicState]


class BrokerLoad(Answer):
    """What one broker carries: partitions led, replicas held, and those of them not in sync.
    `state` is its own, or `dead`; a `cordoned` one gets no new replicas."""

    id: int
    state: str
    leaders: int
    replicas: int
    out_of_sync: int
    cordoned: bool = False


class TroubledPartition(Answer):
    """A partition with problems, the worst first: `unreadable`, `offline`, `under_min_isr`,
    `under_replicated`."""

    topic: str
    partition: int
    problems: list[str]
    leader: int | None = None
    replicas: list[int] = []
    isr: list[int] = []
    elr: list[int] = []
    min_isr: int = 0


class ClusterHealth(Answer):
    """The cluster as one broker sees it. `troubled` are the first of `listed` partitions that have
    the problem asked for; the counts are of all partitions."""

    partitions: int
    offline: int
    under_min_isr: int
    under_replicated: int
    unreadable: int
    brokers: list[BrokerLoad]
    listed: int
    troubled: list[TroubledPartition]


class Recover(Body):
    """Putting a store right from the copies on the brokers' disks. Without `execute` it is only
    said what would be done. `accept_missing`: also if brokers don't answer that may know more."""

    execute: bool = False
    accept_missing: bool = False


class Repaired(Answer):
    """One partition: the epochs that the store has (None: it has no record) and those that are
    written, the broker whose copy counts (None: the store's own), and replicas not heard of."""

    topic: str
    partition: int
    store_epoch: int | None
    partition_epoch: int
    leader_epoch: int
    source: int | None
    unheard: list[int]


class RecoverAnswer(Answer):
    """What was put right, or would be. `skipped`: what a person must look at. `partitions` has the
    first 1,000 of `partition_count`."""

    executed: bool
    cluster: bool
    topics: list[str]
    partition_count: int
    partitions: list[Repaired]
    unheard: list[int]
    skipped: list[str]
