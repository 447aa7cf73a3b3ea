"""From a Topic or ConsumerGroup as it was read to the value that plans are made from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from headrace.operator import spec as specs
from headrace.operator.core.conditions import Condition, rendered
from headrace.operator.core.part import not_ready
from headrace.operator.core.pods import is_terminating
from headrace.operator.core.resources import Resource, rulers
from headrace.operator.process.desk import subject_of
from headrace.operator.reconcile.remove_cluster import deleting_s
from headrace.operator.reconcile.write_status import has_finalizer, now
from headrace.operator.spec import ConsumerGroupSpec, JsonObject, TopicSpec
from headrace.protocol.errors import InvalidConfig

S = TypeVar("S", TopicSpec, ConsumerGroupSpec)


def resource_of(raw: JsonObject, kind: type[S]) -> Resource[S]:
    """The value.

    Raises:
        InvalidConfig: names the field.
    """
    meta = raw["metadata"]
    return Resource(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        subject=subject_of(raw),
        created=meta.get("creationTimestamp") or "",
        generation=meta.get("generation", 0),
        spec=specs.read(kind, raw["spec"]),
        status=raw.get("status") or {},
        annotations=meta.get("annotations") or {},
        has_finalizer=has_finalizer(raw),
        deleting_s=deleting_s(raw) if is_terminating(raw) else None,
    )


def rulers_of(
    subjects: Iterable[str], all_there_are: Iterable[JsonObject], kind: type[S]
) -> dict[str, Resource[S]]:
    """Who rules each of these names. A resource that can't be read rules nothing."""
    wanted = set(subjects)
    found = []
    for raw in all_there_are:
        if subject_of(raw) in wanted:
            try:
                found.append(resource_of(raw, kind))
            except InvalidConfig:
                continue
    return rulers(found)


def status_with(raw: JsonObject, condition: Condition) -> JsonObject:
    """The status as it was, and why nothing can be done."""
    before, generation = raw.get("status") or {}, raw["metadata"].get("generation", 0)
    conditions = rendered(
        [condition], before.get("conditions") or [], generation=generation, now=now()
    )
    return {**before, "observedGeneration": generation, "conditions": conditions}


def cluster_trouble(cluster: JsonObject | None, name: str) -> Condition | None:
    """Why there is no cluster to ask, if there is none."""
    if cluster is None:
        told = f"there is no BrokerCluster {name!r} in this namespace: create it, or name another"
        return not_ready("ClusterNotFound", told)
    if is_terminating(cluster):
        return not_ready("ClusterNotFound", f"BrokerCluster {name!r} is being deleted")
    return None


def no_broker(name: str) -> str:
    """What is said while brokers don't answer: always the same, so that it is written once."""
    return f"no broker of BrokerCluster {name!r} answers; trying again"
