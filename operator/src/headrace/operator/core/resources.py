"""What Topics and ConsumerGroups have in common: the resource as read, and who rules a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.operator import names
from headrace.operator.core.conditions import Condition
from headrace.operator.core.part import not_ready
from headrace.operator.spec import ConsumerGroupSpec, JsonObject, TopicSpec

S = TypeVar("S", TopicSpec, ConsumerGroupSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(Generic[S]):
    """A Topic or ConsumerGroup. `subject`: the name that it rules. `deleting_s`: since how many
    seconds it is on its way out, None if it isn't."""

    namespace: str
    name: str
    uid: str
    subject: str
    created: str
    generation: int
    spec: S
    status: JsonObject = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    has_finalizer: bool = False
    deleting_s: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether a person wants it left alone."""
        return (self.annotations.get(names.PAUSE) or "").lower() == "true"


def rulers(resources: Iterable[Resource[S]]) -> dict[str, Resource[S]]:
    """Who rules each name: the oldest resource, of several made in one second (times are no finer)
    the one that is Ready already. One on its way out rules until it is gone."""
    found: dict[str, Resource[S]] = {}
    for each in sorted(resources, key=lambda r: (r.created, not _is_ready(r), r.uid)):
        found.setdefault(each.subject, each)
    return found


def _is_ready(resource: Resource[S]) -> bool:
    conditions = resource.status.get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def conflict(kind: str, ruler: Resource[S]) -> Condition:
    """Why a younger resource does nothing."""
    told = (
        f"{kind} {ruler.subject!r} is ruled by the older resource {ruler.name}: delete one of the"
        " two, or name another"
    )
    return not_ready("ResourceConflict", told)
