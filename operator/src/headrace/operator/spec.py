"""The three resources as values: what a user may write, typed, with the defaults filled in.

The API server has checked the schema (crds/); this is the operator's own reading of it, so that a
resource that came by another way (an older CRD, a changed one) ends in a condition and not in a
crash. Defaults live here and not in the CRDs: nothing is written into a user's spec.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from headrace.protocol.errors import InvalidConfig

JsonObject = dict[str, Any]
ConfigValue = int | str


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what users write. Unknown fields are ignored: the API server has pruned them."""


class Storage(Spec, frozen=True):
    """The volume of each broker."""

    size: str | int
    storage_class_name: str | None = None
    delete_claim: bool = False


class Rack(Spec, frozen=True):
    """Where brokers learn their failure domain from."""

    topology_key: str


class Rebalance(Spec, frozen=True):
    """How data is moved when brokers come and go."""

    auto: bool = True
    throttle_bytes_per_second: Annotated[int, Meta(ge=1)] = 50_000_000
    max_concurrent_moves: Annotated[int, Meta(ge=1)] = 4


class PodTemplate(Spec, frozen=True):
    """Additions to the brokers' pods, as in a pod."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    affinity: JsonObject | None = None
    tolerations: list[JsonObject] = []
    topology_spread_constraints: list[JsonObject] | None = None
    priority_class_name: str | None = None
    termination_grace_period_seconds: int = 120
    security_context: JsonObject = {}
    env: list[JsonObject] = []


class ServiceTemplate(Spec, frozen=True):
    """Additions to the Services."""

    annotations: dict[str, str] = {}
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"


class Template(Spec, frozen=True):
    """Additions to the objects that the operator makes."""

    pod: PodTemplate = PodTemplate()
    service: ServiceTemplate = ServiceTemplate()


class LocalName(Spec, frozen=True):
    """An object in the same namespace."""

    name: str


class BrokerClusterSpec(Spec, frozen=True):
    """`spec` of a BrokerCluster."""

    replicas: Annotated[int, Meta(ge=1, le=1000)]
    image: str
    storage: Storage
    image_pull_policy: str | None = None
    image_pull_secrets: list[LocalName] = []
    config: dict[str, ConfigValue] = {}
    resources: JsonObject = {}
    rack: Rack | None = None
    rebalance: Rebalance = Rebalance()
    template: Template = Template()


class TopicSpec(Spec, frozen=True):
    """`spec` of a Topic. What is None is left as it is."""

    cluster_ref: LocalName
    topic_name: str | None = None
    partitions: Annotated[int, Meta(ge=1, le=2048)] | None = None
    replicas: Annotated[int, Meta(ge=1, le=32)] | None = None
    config: dict[str, ConfigValue] = {}
    deletion_policy: Literal["Delete", "Retain"] = "Delete"


class DeadLetter(Spec, frozen=True):
    """Where a queue's records go that can't be handled."""

    topic: str
    max_deliveries: Annotated[int, Meta(ge=1)] = 5


class Reset(Spec, frozen=True):
    """Offsets to set, once for each id. `to`: earliest, latest or a timestamp."""

    id: str
    to: str
    topics: list[str] = []


class ConsumerGroupSpec(Spec, frozen=True):
    """`spec` of a ConsumerGroup."""

    cluster_ref: LocalName
    group_name: str | None = None
    topics: list[str] = []
    type: Literal["stream", "queue", "broadcast"] = "stream"
    start_from: str | None = None
    max_lag: Annotated[int, Meta(ge=0)] | None = None
    dead_letter: DeadLetter | None = None
    reset: Reset | None = None


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The resource an object is made for."""

    namespace: str
    name: str
    uid: str
    generation: int = 0


S = TypeVar("S", bound=Spec)


def read(kind: type[S], raw: Any) -> S:
    """The typed `spec`.

    Raises:
        InvalidConfig: names the field.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"spec: {error}") from error
