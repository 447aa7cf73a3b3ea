"""Scale, eviction, reviews and the choice of a patch. Pure but for what `lifecycle` does."""

from __future__ import annotations

import copy
from typing import Any

from apiserver import answers, patches
from apiserver.answers import ApiError, Json
from apiserver.lifecycle import DeleteOptions, Lifecycle
from apiserver.resources import Resource
from apiserver.selectors import matches_labels
from apiserver.state import Ref


def patched(resource: Resource, value: Json, patch: Any, kind: str, manager: str) -> Json:
    """The object after a patch of a content type.

    Raises:
        ApiError: 400, 415.
    """
    match kind:
        case "application/merge-patch+json":
            result = patches.merge(value, patch)
        case "application/json-patch+json":
            result = patches.json_patch(value, patch)
        case "application/strategic-merge-patch+json" if not resource.custom:
            result = patches.strategic(value, patch)
        case "application/apply-patch+yaml":
            return _applied(value, patch, manager)
        case _:
            raise answers.unsupported_media_type(kind)
    revision = patch.get("metadata", {}).get("resourceVersion") if isinstance(patch, dict) else None
    if not revision:
        # A patch without a revision is unconditional: it is made from what is there.
        result["metadata"]["resourceVersion"] = value["metadata"]["resourceVersion"]
    return dict(result)


def _applied(value: Json, patch: Json, manager: str) -> Json:
    """Server-side apply: what this manager applied before and doesn't any more goes."""
    if not manager:
        raise answers.bad_request("fieldManager is required for apply patch")
    entries = list(value.get("metadata", {}).get("managedFields") or ())
    mine: Json = next((e["fieldsV1"] for e in entries if e["manager"] == manager), {})
    named = patches.owned_fields(patch)
    for key in ("f:apiVersion", "f:kind"):
        named.pop(key, None)
    for key in ("f:name", "f:namespace"):
        named.get("f:metadata", {}).pop(key, None)
    result = patches.without_fields(value, mine, named)
    result = patches.strategic(result, patch)
    kept = [e for e in entries if e["manager"] != manager]
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": patch.get("apiVersion", ""),
        "fieldsType": "FieldsV1",
        "fieldsV1": named,
    }
    result["metadata"] = {**result["metadata"], "managedFields": [*kept, entry]}
    return dict(result)


# --- scale ---


def read_scale(resource: Resource, value: Json) -> Json:
    """The Scale of an object."""
    assert resource.scale is not None
    meta = value["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Json = {"replicas": _at(value, resource.scale.status) or 0}
    if resource.scale.selector:
        status["selector"] = _at(value, resource.scale.selector) or ""
    else:
        labels = (value["spec"].get("selector") or {}).get("matchLabels") or {}
        status["selector"] = ",".join(f"{key}={item}" for key, item in labels.items())
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": _at(value, resource.scale.spec) or 0},
        "status": status,
    }


def write_scale(resource: Resource, value: Json, scale: Json) -> Json:
    """The object with another number of replicas."""
    assert resource.scale is not None
    replicas = (scale.get("spec") or {}).get("replicas")
    if not isinstance(replicas, int) or replicas < 0:
        cause = ("spec.replicas", f"Invalid value: {replicas}: must be greater than or equal to 0")
        raise answers.invalid("Scale", value["metadata"]["name"], [cause])
    changed = copy.deepcopy(value)
    at = changed
    *steps, last = resource.scale.spec.split(".")
    for step in steps:
        at = at.setdefault(step, {})
    at[last] = replicas
    if revision := (scale.get("metadata") or {}).get("resourceVersion"):
        changed["metadata"]["resourceVersion"] = revision
    return changed


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


# --- eviction ---


def evict(lifecycle: Lifecycle, resource: Resource, ref: Ref) -> None:
    """Deletes a pod unless a PodDisruptionBudget forbids it.

    Raises:
        ApiError: 404, 429 (the budget).
    """
    pod = lifecycle.state.get(ref)
    if pod is None:
        raise answers.not_found("pods", ref.name)
    labels = pod["metadata"].get("labels") or {}
    for _, budget in lifecycle.state.listed(("policy", "poddisruptionbudgets"), ref.namespace):
        if not matches_labels(budget["spec"].get("selector") or {}, labels):
            continue
        if budget.get("status", {}).get("disruptionsAllowed", 0) < 1:
            raise ApiError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
            )
    lifecycle.delete(resource, ref, DeleteOptions())
