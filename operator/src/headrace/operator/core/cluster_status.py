"""The status of a BrokerCluster: what is seen, and whether all is well."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.operator import names
from headrace.operator.core import pods
from headrace.operator.core.conditions import Condition, rendered
from headrace.operator.core.observed import Admin, Broker, Cluster
from headrace.operator.core.part import not_ready
from headrace.operator.core.roll import due
from headrace.operator.spec import JsonObject


def cluster_status(seen: Cluster, planned: Iterable[Condition], *, now: str) -> JsonObject:
    """All of `status`. `now`: RFC 3339."""
    found: JsonObject = {
        "observedGeneration": seen.owner.generation,
        "replicas": len(seen.pods),
        "readyReplicas": sum(pods.is_ready(pod) for pod in seen.pods.values()),
        "selector": names.selector_text(seen.owner.name),
        "bootstrap": names.bootstrap(seen.owner.namespace, seen.owner.name),
        "brokers": [_broker(seen, each) for each in sorted(seen.pods)],
    }
    if seen.admin is not None:
        found |= _told_by_brokers(seen.admin)
    else:
        kept = ("clusterId", "version")
        found |= {key: seen.status[key] for key in kept if key in seen.status}
    asked = _rolled_for(seen)
    if asked:
        found["rolledFor"] = asked
    conditions = [*planned, *_health(seen)]
    if not any(each.type == "Ready" for each in conditions):
        conditions.append(Condition("Ready", "True", "AllIsWell", "All brokers are ready."))
    before = seen.status.get("conditions") or []
    found["conditions"] = rendered(conditions, before, generation=seen.owner.generation, now=now)
    return found


def paused_status(present: JsonObject, *, generation: int, now: str) -> JsonObject:
    """The status of a resource that a person has paused: as it was, and `Paused`."""
    told = f"annotation {names.PAUSE} is true: the operator does nothing until it is taken away"
    before = present.get("conditions") or []
    paused = Condition("Paused", "True", "ReconciliationPaused", told)
    # What was said stays said of the generation that it was said of.
    kept = [each for each in before if each["type"] != "Paused"]
    kept += rendered([paused], before, generation=generation, now=now)
    kept.sort(key=lambda each: (each["type"] != "Ready", each["type"]))
    return {**present, "conditions": kept}


def _told_by_brokers(admin: Admin) -> JsonObject:
    found: JsonObject = {
        "clusterId": admin.cluster_id,
        "underReplicated": admin.under_replicated,
        "underMinIsr": admin.under_min_isr,
        "offline": admin.offline,
    }
    if admin.controller_id is not None:
        found["controllerId"] = admin.controller_id
    versions = {each.version for each in admin.brokers.values() if each.version}
    if len(versions) == 1:
        found["version"] = versions.pop()
    if admin.moving is not None:
        moving = admin.moving
        found["reassignment"] = {"total": moving.total, "done": moving.done}
        if moving.bytes_remaining is not None:
            found["reassignment"]["bytesRemaining"] = moving.bytes_remaining
    return found


def _broker(seen: Cluster, broker_id: int) -> JsonObject:
    pod = seen.pods[broker_id]
    broker: Broker | None = None
    if seen.admin is not None:
        broker = seen.admin.brokers.get(broker_id)
    found: JsonObject = {"id": broker_id, "state": "unknown" if broker is None else broker.state}
    if not pods.is_ready(pod):
        found["pod"] = _trouble(pod)
    if broker is not None and broker.recovering:
        found["recoveringRemaining"] = broker.recovering
    if broker is not None and broker.storage_full:
        found["storageFull"] = True
    return found


def _trouble(pod: JsonObject) -> str:
    if pods.is_terminating(pod):
        return "Terminating"
    return pods.stuck_reason(pod) or (pod.get("status") or {}).get("phase") or "Pending"


def _rolled_for(seen: Cluster) -> str | None:
    """What was asked for on the BrokerCluster, once all pods have it; before, what was last."""
    last: str | None = seen.status.get("rolledFor")
    found = seen.stateful_set
    if found is None or due(seen):
        return last
    return pods.annotation(found["spec"]["template"], names.ROLLED_FOR) or last


def _health(seen: Cluster) -> list[Condition]:
    return [*_pods_health(seen), *_brokers_health(seen)]


def _pods_health(seen: Cluster) -> list[Condition]:
    wanted = seen.spec.replicas
    stuck = [
        f"{pod['metadata']['name']} ({pods.stuck_reason(pod)})"
        for _, pod in sorted(seen.pods.items())
        if pods.stuck_reason(pod)
    ]
    if stuck:
        told = f"pods that can't run: {', '.join(stuck)}; `kubectl describe pod` says more"
        return [not_ready("PodsStuck", told)]
    ready = sum(pods.is_ready(pod) for broker_id, pod in seen.pods.items() if broker_id < wanted)
    if ready < wanted:
        return [not_ready("PodsNotReady", f"{ready} of {wanted} brokers are ready")]
    return []


def _brokers_health(seen: Cluster) -> list[Condition]:
    admin = seen.admin
    if admin is None:
        return [not_ready("BrokerUnavailable", seen.trouble or "no broker answers yet")]
    found = []
    if admin.offline:
        told = f"{admin.offline} partitions have no leader; `headrace cluster describe` names them"
        found.append(not_ready("PartitionsOffline", told))
    if admin.under_replicated or admin.under_min_isr:
        told = (
            f"{admin.under_replicated} partitions have fewer in-sync replicas than replicas,"
            f" {admin.under_min_isr} fewer than their minimum"
        )
        found.append(Condition("Degraded", "True", "UnderReplicated", told))
    full = [str(each.id) for each in admin.brokers.values() if each.storage_full]
    if full:
        told = (
            f"broker(s) {', '.join(full)} refuse writes because their disk is nearly full: raise"
            " spec.storage.size or shorten retention"
        )
        found.append(Condition("Degraded", "True", "StorageFull", told))
        found.append(not_ready("StorageFull", told))
    return found
