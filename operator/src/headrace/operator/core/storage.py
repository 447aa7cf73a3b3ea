"""Volume claims grow to what the spec asks for, where their storage class allows it.

A claim that is larger than the spec is left so: somebody else grew it, or the spec was made
smaller, which no volume can follow; a warning says so.
"""

from __future__ import annotations

from copy import deepcopy

from headrace.operator.core import pods, quantities
from headrace.operator.core.actions import Action, Replace
from headrace.operator.core.conditions import Condition
from headrace.operator.core.observed import Cluster
from headrace.operator.core.part import Part, not_ready, progressing, warning
from headrace.operator.spec import JsonObject


def plan_storage(seen: Cluster) -> Part:
    """Which claims grow now."""
    wanted = quantities.parse(seen.spec.storage.size)
    if wanted is None or wanted <= 0:
        told = f"spec.storage.size {seen.spec.storage.size!r} isn't a size, such as 20Gi"
        return Part(conditions=(not_ready("InvalidConfig", told),))
    actions: list[Action] = []
    conditions: list[Condition] = []
    for _, claim in sorted(seen.claims.items()):
        present = quantities.parse(_requested(claim))
        if pods.is_resizing(claim) or pods.needs_file_system_resize(claim):
            told = f"volume of {claim['metadata']['name']} is growing"
            conditions.append(progressing("PvcResizing", told))
        if present is None or present == wanted or pods.is_terminating(claim):
            continue
        if present > wanted:
            conditions.append(_too_small(seen, claim))
        elif not seen.expandable.get(claim["spec"].get("storageClassName") or "", False):
            conditions.append(_cannot_grow(claim))
        elif not pods.is_resizing(claim):
            actions.append(Replace(_grown(claim, str(seen.spec.storage.size))))
    return Part(tuple(actions), tuple(conditions))


def _requested(claim: JsonObject) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def _grown(claim: JsonObject, size: str) -> JsonObject:
    found = deepcopy(claim)
    found["spec"]["resources"]["requests"]["storage"] = size
    found.pop("status", None)
    return found


def _too_small(seen: Cluster, claim: JsonObject) -> Condition:
    told = (
        f"spec.storage.size {seen.spec.storage.size} is less than the {_requested(claim)} that"
        f" {claim['metadata']['name']} has; volumes can't shrink, so it stays as it is"
    )
    return warning("PvcShrinkIgnored", told)


def _cannot_grow(claim: JsonObject) -> Condition:
    name = claim["spec"].get("storageClassName") or "the default"
    told = (
        f"{claim['metadata']['name']} has {_requested(claim)} and can't grow: storage class {name}"
        " doesn't say allowVolumeExpansion: true"
    )
    return warning("PvcNotExpandable", told)
