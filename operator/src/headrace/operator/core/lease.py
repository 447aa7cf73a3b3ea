"""Who leads, decided by a Lease as Kubernetes' own components do it: pure.

Nobody compares clocks: a holder is taken for gone once its Lease hasn't changed for the Lease's
duration on the observer's own clock. Taking over is a compare-and-swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.operator.spec import JsonObject

Step = Literal["take", "renew", "wait"]


@dataclass(frozen=True, slots=True)
class Sight:
    """The Lease's spec when it was last seen to differ, and when that was (monotonic seconds)."""

    spec: JsonObject
    since_s: float


def looked(before: Sight | None, lease: JsonObject | None, now_s: float) -> Sight | None:
    """What is known after a look."""
    if lease is None:
        return None
    spec = lease.get("spec") or {}
    if before is not None and before.spec == spec:
        return before
    return Sight(spec, now_s)


def decide(sight: Sight | None, who: str, now_s: float) -> Step:
    """What to do."""
    if sight is None:
        return "take"
    holder = sight.spec.get("holderIdentity")
    if holder == who:
        return "renew"
    if not holder:
        return "take"
    duration = sight.spec.get("leaseDurationSeconds") or 15
    return "take" if now_s - sight.since_s > float(duration) else "wait"


def held(before: JsonObject | None, who: str, *, seconds: float, now: str) -> JsonObject:
    """The Lease's spec with `who` holding it. `now`: RFC 3339 with microseconds, for people."""
    spec: JsonObject = dict(before or {})
    found: dict[str, Any] = {**spec, "holderIdentity": who, "renewTime": now}
    found["leaseDurationSeconds"] = max(1, round(seconds))
    if spec.get("holderIdentity") != who:
        found["acquireTime"] = now
        found["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if spec else 0)
    return found


def released(before: JsonObject) -> JsonObject:
    """The Lease's spec with nobody holding it, so that the next one needn't wait."""
    return {**before, "holderIdentity": "", "leaseDurationSeconds": 1}
