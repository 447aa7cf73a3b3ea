"""The JSON bodies about where replicas are: plans, progress, cordoned and drained brokers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from headrace.protocol.models import Answer, Body, Partition

BrokerId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Brokers = Annotated[list[BrokerId], Meta(max_length=10_000)]
BytesPerSecond = Annotated[int, Meta(ge=-1, le=1 << 50)]
MovesMax = Annotated[int, Meta(ge=1, le=1_000)]

PLAN_PARTITIONS_MAX = 100_000
"""Partitions in one plan that is written by hand."""

PROGRESS_PARTITIONS_MAX = 1_000
"""Unfinished partitions that one answer lists; it counts all."""


class WantedReplicas(Body):
    """The replicas that a partition shall have, the preferred leader first."""

    topic: str
    partition: Partition
    replicas: Annotated[list[BrokerId], Meta(min_length=1, max_length=32)]


class Reassign(Body):
    """Where replicas shall be. Without more they are spread evenly over all live brokers, or over
    `brokers`; `leaders`: only preferred leaders change places, and lead at once where they can;
    `plan`: exactly as written. `dry_run` only says what would be done. Throttle (-1: none) and
    moves at a time are the cluster's settings; given here, they are changed."""

    dry_run: bool = False
    mode: Literal["even", "leaders"] = "even"
    brokers: Brokers | None = None
    plan: Annotated[list[WantedReplicas], Meta(max_length=PLAN_PARTITIONS_MAX)] | None = None
    throttle_bytes_per_second: BytesPerSecond | None = None
    max_concurrent_moves: MovesMax | None = None


class Drain(Body):
    """All replicas leave the broker, which is cordoned first. `ignore_racks`: topics may end in
    fewer racks than now."""

    dry_run: bool = False
    ignore_racks: bool = False
    throttle_bytes_per_second: BytesPerSecond | None = None
    max_concurrent_moves: MovesMax | None = None


class PlannedReplicas(Answer):
    """One partition's replicas, now and as planned."""

    topic: str
    partition: int
    replicas: list[int]
    target: list[int]


class ReassignmentPlan(Answer):
    """What is going to be moved (`executed`), or would be. `copies`: replicas that have to be
    copied. `refusals`: topics that can't be moved so, and why; a dry run tells of them, otherwise
    nothing is begun."""

    executed: bool
    copies: int
    moves: list[PlannedReplicas]
    refusals: dict[str, str] = {}


class MovingPartition(Answer):
    """A partition that isn't yet where it shall be. `state`: waiting for its turn, copying, or
    cancelling. `missing`: replicas that aren't in sync yet. `reason`: what it waits for."""

    topic: str
    partition: int
    replicas: list[int]
    target: list[int]
    state: str
    missing: list[int] = []
    reason: str = ""
    bytes_remaining: int | None = None


class ReassignmentProgress(Answer):
    """How far the reassignment is; `state` none: there is none. `partitions` are the first of those
    that aren't done. `bytes_remaining`: what is left to copy of the partitions under way, as far as
    their leaders say."""

    state: Literal["none", "running", "cancelling"]
    total: int
    done: int
    copying: int
    bytes_remaining: int | None
    throttle_bytes_per_second: int
    max_concurrent_moves: int
    partitions: list[MovingPartition]


class ReassignmentsCancelled(Answer):
    """Topics whose partitions stay where they are, or go back there."""

    topics: list[str]


class BrokerPlacement(Answer):
    """A broker as a place for replicas: whether it gets no new ones, and how many it has."""

    id: int
    cordoned: bool
    replicas: int
