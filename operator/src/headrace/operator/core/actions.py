"""The small steps that plans consist of. Each can be repeated, and lost, without harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.operator.spec import ConfigValue, JsonObject


@dataclass(frozen=True, slots=True)
class Create:
    """Makes an object. That it exists already is found out and looked at in the next pass."""

    object: JsonObject


@dataclass(frozen=True, slots=True)
class Replace:
    """Writes an object over the one it was made from: refused if that has changed since."""

    object: JsonObject


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Restarts a broker: this very pod and no other of its name."""

    name: str
    uid: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Gives a volume up: this very claim."""

    name: str
    uid: str
    message: str


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """Tells a pod something."""

    name: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetLiveConfig:
    """Changes settings of the whole cluster; None goes back to the default."""

    config: Mapping[str, ConfigValue | None]


@dataclass(frozen=True, slots=True)
class Cordon:
    """The broker gets no new replicas."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class Uncordon:
    """The broker gets replicas again."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class Drain:
    """All replicas leave these brokers."""

    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Replicas are spread evenly over all brokers."""


@dataclass(frozen=True, slots=True)
class CancelMoves:
    """What is being moved stays, or goes back, where it was."""


@dataclass(frozen=True, slots=True)
class Emit:
    """An event for people."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = (
    Create | Replace | DeletePod | DeleteClaim | AnnotatePod | SetLiveConfig
    | Cordon | Uncordon | Drain | Rebalance | CancelMoves | Emit
)  # fmt: skip
