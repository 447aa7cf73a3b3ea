"""The StatefulSet controller: pods by ordinal, their claims, revisions of the template.

As the real one does it, with what an operator comes to lean on: identity, Parallel and
OrderedReady, OnDelete and RollingUpdate, the revision labels, claims made again when they are gone,
and that under OnDelete `status.currentRevision` never moves.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field

from kubelet.caches import Caches
from kubelet.client import Json, Refused

REVISION_LABEL = "controller-revision-hash"
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be made and to go."""

    claims: list[Json] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    deletions: list[Json] = field(default_factory=list)


def template_hash(owner: Json) -> str:
    """Names a template: equal ones have equal hashes."""
    raw = json.dumps(owner["spec"]["template"], sort_keys=True).encode()
    return hashlib.sha256(raw).hexdigest()[:10]


def ordinals(stateful_set: Json) -> range:
    """The ordinals that there shall be."""
    spec = stateful_set["spec"]
    start = (spec.get("ordinals") or {}).get("start", 0)
    return range(start, start + spec.get("replicas", 1))


def ordinal_of(pod: Json) -> int:
    """A pod's number."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


def claims_of(stateful_set: Json, ordinal: int) -> dict[str, str]:
    """Volume name → name of its claim."""
    name = stateful_set["metadata"]["name"]
    return {
        template["metadata"]["name"]: f"{template['metadata']['name']}-{name}-{ordinal}"
        for template in stateful_set["spec"].get("volumeClaimTemplates") or ()
    }


def owner_reference(owner: Json, api_version: str) -> Json:
    """A controller's reference."""
    return {
        "apiVersion": api_version,
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_for(stateful_set: Json, ordinal: int) -> Json:
    """The pod of an ordinal, by the template of now."""
    meta, spec = stateful_set["metadata"], stateful_set["spec"]
    template = copy.deepcopy(spec["template"])
    name = f"{meta['name']}-{ordinal}"
    labels = {
        **(template.get("metadata", {}).get("labels") or {}),
        REVISION_LABEL: f"{meta['name']}-{template_hash(stateful_set)}",
        POD_NAME_LABEL: name,
        POD_INDEX_LABEL: str(ordinal),
    }
    pod_spec = template["spec"]
    claims = claims_of(stateful_set, ordinal)
    others = [v for v in pod_spec.get("volumes") or () if v["name"] not in claims]
    pod_spec["volumes"] = others + [
        {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
        for volume, claim in claims.items()
    ]
    pod_spec["hostname"] = name
    pod_spec["subdomain"] = spec.get("serviceName", "")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": template.get("metadata", {}).get("annotations") or {},
            "ownerReferences": [owner_reference(stateful_set, "apps/v1")],
        },
        "spec": pod_spec,
    }


def _claim_for(stateful_set: Json, template: Json, name: str) -> Json:
    meta = template["metadata"]
    selector = stateful_set["spec"]["selector"].get("matchLabels") or {}
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": stateful_set["metadata"]["namespace"],
            "labels": {**(meta.get("labels") or {}), **selector},
            "annotations": meta.get("annotations") or {},
        },
        "spec": copy.deepcopy(template["spec"]),
    }
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    if policy.get("whenDeleted") == "Delete":
        made["metadata"]["ownerReferences"] = [owner_reference(stateful_set, "apps/v1")]
    return made


def missing_claims(stateful_set: Json, ordinal: int, present: set[str]) -> list[Json]:
    """The claims that a pod needs and that aren't there."""
    templates = {
        each["metadata"]["name"]: each
        for each in stateful_set["spec"].get("volumeClaimTemplates") or ()
    }
    return [
        _claim_for(stateful_set, templates[volume], claim)
        for volume, claim in claims_of(stateful_set, ordinal).items()
        if claim not in present
    ]


def is_ready(pod: Json) -> bool:
    """Whether a pod is Ready."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_ending(value: Json) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in value["metadata"]


def plan(stateful_set: Json, pods: list[Json], claims: set[str]) -> Plan:
    """What to do now. `claims`: names of those there are."""
    if is_ending(stateful_set):
        return Plan()
    wanted = ordinals(stateful_set)
    by_ordinal = {ordinal_of(pod): pod for pod in pods}
    is_ordered = stateful_set["spec"].get("podManagementPolicy", "OrderedReady") != "Parallel"
    found = Plan()
    for ordinal in wanted:
        pod = by_ordinal.get(ordinal)
        if pod is None:
            found.claims.extend(missing_claims(stateful_set, ordinal, claims))
            found.pods.append(pod_for(stateful_set, ordinal))
        elif is_ending(pod):
            pass
        elif pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            found.deletions.append(pod)
        elif pod.get("status", {}).get("phase", "Pending") == "Pending":
            found.claims.extend(missing_claims(stateful_set, ordinal, claims))
        if is_ordered and (pod is None or not is_ready(pod) or is_ending(pod)):
            return found
    surplus = [p for n, p in sorted(by_ordinal.items(), reverse=True) if n not in wanted]
    found.deletions.extend([p for p in surplus if not is_ending(p)][: 1 if is_ordered else None])
    if not surplus:
        found.deletions.extend(_outdated(stateful_set, by_ordinal))
    return found


def _outdated(stateful_set: Json, by_ordinal: dict[int, Json]) -> list[Json]:
    """RollingUpdate: the highest ordinal of another revision, once all above are ready."""
    strategy = (stateful_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate")
    if strategy != "RollingUpdate":
        return []
    newest = f"{stateful_set['metadata']['name']}-{template_hash(stateful_set)}"
    for _, pod in sorted(by_ordinal.items(), reverse=True):
        if pod["metadata"]["labels"].get(REVISION_LABEL) != newest:
            return [] if is_ending(pod) else [pod]
        if not is_ready(pod) or is_ending(pod):
            return []
    return []


def status(stateful_set: Json, pods: list[Json]) -> Json:
    """The status."""
    name = stateful_set["metadata"]["name"]
    newest = f"{name}-{template_hash(stateful_set)}"
    before = stateful_set.get("status") or {}
    current = before.get("currentRevision", newest)
    labels = [pod["metadata"]["labels"].get(REVISION_LABEL) for pod in pods if not is_ending(pod)]
    strategy = (stateful_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate")
    replicas = stateful_set["spec"].get("replicas", 1)
    ready = sum(is_ready(pod) for pod in pods)
    if strategy == "RollingUpdate" and ready == labels.count(newest) == replicas:
        current = newest
    return {
        "observedGeneration": stateful_set["metadata"].get("generation", 1),
        "replicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": labels.count(current),
        "updatedReplicas": labels.count(newest),
        "currentRevision": current,
        "updateRevision": newest,
        "collisionCount": 0,
    }


async def reconcile(caches: Caches) -> None:
    """One look at every StatefulSet."""
    for stateful_set in caches.all("StatefulSet"):
        try:
            await _reconcile(caches, stateful_set)
        except Refused as error:
            if error.code not in (403, 404, 409):
                raise


async def _reconcile(caches: Caches, stateful_set: Json) -> None:
    namespace = stateful_set["metadata"]["namespace"]
    await _keep_revision(caches, stateful_set)
    pods = caches.owned("Pod", stateful_set)
    claims = {claim["metadata"]["name"] for claim in caches.all("PersistentVolumeClaim", namespace)}
    todo = plan(stateful_set, pods, claims)
    for made in (*todo.claims, *todo.pods):
        await caches.create(made)
    for pod in todo.deletions:
        await caches.delete(pod)
        await _drop_claims(caches, stateful_set, ordinal_of(pod))
    pods = caches.owned("Pod", stateful_set)
    await caches.set_status(stateful_set, status(stateful_set, pods))


async def _keep_revision(caches: Caches, stateful_set: Json) -> None:
    meta = stateful_set["metadata"]
    name = f"{meta['name']}-{template_hash(stateful_set)}"
    if is_ending(stateful_set) or caches.get("ControllerRevision", meta["namespace"], name):
        return
    numbers = [each["revision"] for each in caches.owned("ControllerRevision", stateful_set)]
    await caches.create(
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": {REVISION_LABEL: template_hash(stateful_set)},
                "ownerReferences": [owner_reference(stateful_set, "apps/v1")],
            },
            "revision": max(numbers, default=0) + 1,
            "data": {"spec": {"template": stateful_set["spec"]["template"]}},
        }
    )


async def _drop_claims(caches: Caches, stateful_set: Json, ordinal: int) -> None:
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    if policy.get("whenScaled") != "Delete" or ordinal in ordinals(stateful_set):
        return
    for name in claims_of(stateful_set, ordinal).values():
        claim = caches.get("PersistentVolumeClaim", stateful_set["metadata"]["namespace"], name)
        if claim is not None:
            await caches.delete(claim)
