"""The disruption controller: how many pods of a budget may be evicted now."""

from __future__ import annotations

import math

from apiserver.selectors import matches_labels
from kubelet.caches import Caches
from kubelet.client import Json
from kubelet.statefulsets import is_ready


def status(budget: Json, pods: list[Json]) -> Json:
    """The status of a budget for its pods."""
    spec = budget["spec"]
    healthy = sum(is_ready(pod) for pod in pods)
    if "maxUnavailable" in spec:
        desired = len(pods) - _share(spec["maxUnavailable"], len(pods))
    else:
        desired = _share(spec.get("minAvailable", 1), len(pods))
    return {
        "observedGeneration": budget["metadata"].get("generation", 1),
        "currentHealthy": healthy,
        "desiredHealthy": max(0, desired),
        "expectedPods": len(pods),
        "disruptionsAllowed": max(0, healthy - desired),
    }


def _share(amount: int | str, of: int) -> int:
    if isinstance(amount, int):
        return amount
    return math.ceil(of * int(amount.rstrip("%")) / 100)


async def reconcile(caches: Caches) -> None:
    """One look at every budget."""
    for budget in caches.all("PodDisruptionBudget"):
        pods = [
            pod
            for pod in caches.all("Pod", budget["metadata"]["namespace"])
            if matches_labels(
                budget["spec"].get("selector") or {}, pod["metadata"].get("labels") or {}
            )
        ]
        await caches.set_status(budget, status(budget, pods))
