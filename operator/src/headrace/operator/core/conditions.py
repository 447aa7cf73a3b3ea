"""Conditions in the form of metav1.Condition: what is the case, why, and what to do.

`lastTransitionTime` is kept while the status stays, and the order is fixed, so that a resource
whose state hasn't changed has the same status, byte for byte, and isn't written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.operator.spec import JsonObject

State = Literal["True", "False", "Unknown"]
MESSAGE_MAX = 2_000
"""Characters of a message; the API server takes 32,768."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    type: str
    status: State
    reason: str
    message: str


def merged(conditions: Iterable[Condition]) -> list[Condition]:
    """One for each type, `Ready` first, the others by name: the first reason counts, all messages
    are told."""
    by_type: dict[str, Condition] = {}
    for each in conditions:
        before = by_type.get(each.type)
        if before is None:
            by_type[each.type] = each
        elif each.message not in before.message:
            message = f"{before.message}; {each.message}"
            by_type[each.type] = Condition(each.type, before.status, before.reason, message)
    return sorted(by_type.values(), key=lambda each: (each.type != "Ready", each.type))


def rendered(
    conditions: Iterable[Condition], previous: Sequence[JsonObject], *, generation: int, now: str
) -> list[JsonObject]:
    """What is written to status. `now`: RFC 3339."""
    before = {each["type"]: each for each in previous}
    return [_rendered(each, before.get(each.type), generation, now) for each in merged(conditions)]


def _rendered(
    condition: Condition, before: JsonObject | None, generation: int, now: str
) -> JsonObject:
    since = now
    if before is not None and before["status"] == condition.status:
        since = before["lastTransitionTime"]
    return {
        "type": condition.type,
        "status": condition.status,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": condition.reason,
        "message": condition.message[:MESSAGE_MAX],
    }


def status_patch(present: JsonObject, wanted: JsonObject) -> JsonObject:
    """The merge patch that makes `present` the `wanted` status: only what differs, null for what is
    to go; empty when there is nothing to write."""
    patch: JsonObject = {}
    for key, value in wanted.items():
        before = present.get(key)
        if before != value:
            if isinstance(before, dict) and isinstance(value, dict):
                value = status_patch(before, value)
            patch[key] = value
    return patch | {key: None for key in sorted(present) if key not in wanted}


SERIOUS = frozenset(
    {
        "BrokerUnavailable",
        "ClusterNotFound",
        "InvalidConfig",
        "KubernetesRefused",
        "NotSupported",
        "PartitionsOffline",
        "PodsStuck",
        "ResourceConflict",
        "ScaleDownBlocked",
        "StorageFull",
    }
)
"""Reasons of `Ready: False` that a person should look at; others are ways to there."""

ALARMS = frozenset({"Degraded", "LagHigh", "ScaleDownBlocked", "Warning"})
"""Conditions that a person should look at while they are True."""


def news(before: Sequence[JsonObject], after: Sequence[JsonObject]) -> list[tuple[bool, Condition]]:
    """What is worth an event: conditions that are new, or are so for another reason; with whether
    a person should look."""
    known = {(each["type"], each["status"], each["reason"]) for each in before}
    found = []
    for each in after:
        kind, status, reason = each["type"], each["status"], each["reason"]
        if (kind, status, reason) in known or (kind != "Ready" and status != "True"):
            continue
        is_bad = kind in ALARMS or (status == "False" and reason in SERIOUS)
        found.append((is_bad, Condition(kind, status, reason, each["message"])))
    return found
