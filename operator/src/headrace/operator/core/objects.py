"""Which objects are missing or differ, and what to write.

Only fields that the builders set are compared: the API server and others (autoscalers, meshes, cost
labels) may add theirs. An object that isn't this cluster's is left alone and named.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from headrace.operator import names
from headrace.operator.core import quantities
from headrace.operator.core.actions import Create, Replace
from headrace.operator.core.observed import Cluster
from headrace.operator.spec import JsonObject, Owner

WHOLE = {
    "ConfigMap": ("data",),
    "Role": ("rules",),
    "RoleBinding": ("subjects",),
    "NetworkPolicy": ("spec",),
}
"""Fields in which nothing of others has a place."""

MUTABLE = frozenset(
    {"replicas", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy"}
)
"""Of a StatefulSet's spec; the rest, such as its claim templates, stays as it was made."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """An object that is in the way. `is_leftover`: of a cluster of the same name that is going."""

    kind: str
    name: str
    is_leftover: bool


def plan_object(seen: Cluster, wanted: JsonObject) -> Create | Replace | Foreign | None:
    """What to do about one object; None: it is as it should be."""
    key = (wanted["kind"], wanted["metadata"]["name"])
    present = seen.objects.get(key)
    if present is None:
        return Create(wanted)
    foreign = _foreign(seen.owner, present)
    if foreign is not None:
        return foreign
    if wanted["kind"] == "StatefulSet":
        spec = {key: value for key, value in wanted["spec"].items() if key in MUTABLE}
        wanted = {**wanted, "spec": spec}
    if wanted["kind"] == "Secret" or not _is_off(wanted, present):
        return None
    return Replace(overlaid(present, wanted))


def _foreign(owner: Owner, present: JsonObject) -> Foreign | None:
    meta = present["metadata"]
    references = meta.get("ownerReferences") or []
    controller = next((each for each in references if each.get("controller")), None)
    if controller is not None:
        if controller["uid"] == owner.uid:
            return None
        is_leftover = (controller["kind"], controller["name"]) == ("BrokerCluster", owner.name)
        return Foreign(present["kind"], meta["name"], is_leftover)
    labels = meta.get("labels") or {}
    if names.labels(owner.name).items() <= labels.items():
        return None
    return Foreign(present["kind"], meta["name"], is_leftover=False)


def _is_off(wanted: JsonObject, present: JsonObject) -> bool:
    if differs(wanted, present):
        return True
    return any(differs(present.get(key), wanted[key]) for key in WHOLE.get(wanted["kind"], ()))


def differs(wanted: Any, present: Any) -> bool:
    """Whether `present` lacks anything of `wanted`. Empty and absent are the same, as are two ways
    to write a quantity: the API server rewrites both."""
    if not wanted and not present:
        return False
    if isinstance(wanted, dict):
        if not isinstance(present, dict):
            return bool(wanted)
        return any(differs(value, present.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(present, list) or len(wanted) != len(present):
            return True
        return any(differs(*pair) for pair in zip(wanted, present, strict=True))
    if wanted == present:
        return False
    if isinstance(wanted, str | int) and isinstance(present, str | int):
        return not quantities.equal(wanted, present)
    return True


def overlaid(present: JsonObject, wanted: JsonObject) -> JsonObject:
    """`present` with all of `wanted` in it; others' fields stay, but for those in `WHOLE` and the
    template of a StatefulSet of another revision."""
    found: JsonObject = _overlaid(deepcopy(present), wanted)
    for field in WHOLE.get(wanted["kind"], ()):
        found[field] = deepcopy(wanted[field])
    if wanted["kind"] == "StatefulSet" and _revision(wanted) != _revision(present):
        found["spec"]["template"] = deepcopy(wanted["spec"]["template"])
    found.pop("status", None)
    return found


def _revision(stateful_set: JsonObject) -> Any:
    meta = stateful_set["spec"]["template"].get("metadata") or {}
    return (meta.get("annotations") or {}).get(names.REVISION)


def _overlaid(present: Any, wanted: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(present, dict):
        for key, value in wanted.items():
            present[key] = _overlaid(present[key], value) if key in present else deepcopy(value)
        return present
    return deepcopy(wanted)
