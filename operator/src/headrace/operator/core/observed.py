"""What a reconcile has seen, as values: Kubernetes objects as they were read, brokers' answers.

`reconcile.gather` fills them in; every plan is a function of them. `admin` is None while no broker
answers: then nothing is decided that needs to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headrace.operator import names
from headrace.operator.spec import BrokerClusterSpec, ConfigValue, JsonObject, Owner

Phase = Literal["before", "after"]
ObjectKey = tuple[str, str]
"""Kind and name of an object in the cluster's namespace."""


@dataclass(frozen=True, slots=True)
class Check:
    """A restart check's answer. `first` names what speaks against it."""

    ok: bool
    blocking: int = 0
    unavoidable: int = 0
    first: str = ""

    @property
    def allows(self) -> bool:
        """Whether only partitions speak against it that have too few replicas for any restart:
        waiting for those would be waiting for ever."""
        return self.ok or (self.blocking > 0 and self.blocking == self.unavoidable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A registered broker. `replicas` is None where unknown."""

    id: int
    state: str
    replicas: int | None = None
    cordoned: bool = False
    version: str = ""
    recovering: int | None = None
    storage_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """A reassignment under way. `onto`: brokers that get replicas by it."""

    total: int
    done: int
    bytes_remaining: int | None = None
    cancelling: bool = False
    onto: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """What the brokers say. `config` has what is set for the whole cluster, not defaults.
    `refusals`: why brokers can't be drained, by topic. `spread_moves`: partitions that an even
    spread would move, None where nobody asked."""

    cluster_id: str
    controller_id: int | None
    brokers: Mapping[int, Broker]
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    offline: int = 0
    moving: Moving | None = None
    checks: Mapping[tuple[int, Phase], Check] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    spread_moves: int | None = None

    @property
    def replicas(self) -> int:
        """All replicas there are."""
        return sum(broker.replicas or 0 for broker in self.brokers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A BrokerCluster and all that there is of it."""

    owner: Owner
    spec: BrokerClusterSpec
    annotations: Mapping[str, str] = field(default_factory=dict)
    status: JsonObject = field(default_factory=dict)
    objects: Mapping[ObjectKey, JsonObject] = field(default_factory=dict)
    pods: Mapping[int, JsonObject] = field(default_factory=dict)
    claims: Mapping[int, JsonObject] = field(default_factory=dict)
    expandable: Mapping[str, bool] = field(default_factory=dict)
    racks: Mapping[int, str] = field(default_factory=dict)
    admin: Admin | None = None
    trouble: str = ""

    @property
    def stateful_set(self) -> JsonObject | None:
        """The StatefulSet, if there is one."""
        return self.objects.get(("StatefulSet", names.stateful_set(self.owner.name)))

    @property
    def replicas(self) -> int | None:
        """Pods that the StatefulSet is told to run."""
        found = self.stateful_set
        return None if found is None else int(found["spec"].get("replicas", 1))

    def with_object(self, value: JsonObject) -> Cluster:
        """As if `value` were there."""
        key = (value["kind"], value["metadata"]["name"])
        return replace(self, objects={**self.objects, key: value})
