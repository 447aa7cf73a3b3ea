"""The Deployment controller, for the operator: the wanted number of pods of the newest template.

Pods of another template go at once (as with strategy Recreate) and there are no ReplicaSets.
"""

from __future__ import annotations

import copy

from kubelet.caches import Caches
from kubelet.client import Json, Refused
from kubelet.statefulsets import is_ending, is_ready, owner_reference, template_hash

HASH_LABEL = "pod-template-hash"


def pod_for(deployment: Json) -> Json:
    """One more pod."""
    meta = deployment["metadata"]
    template = copy.deepcopy(deployment["spec"]["template"])
    found = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{meta['name']}-{template_hash(deployment)}-",
            "namespace": meta["namespace"],
            "labels": {**(found.get("labels") or {}), HASH_LABEL: template_hash(deployment)},
            "annotations": found.get("annotations") or {},
            "ownerReferences": [owner_reference(deployment, "apps/v1")],
        },
        "spec": template["spec"],
    }


async def reconcile(caches: Caches) -> None:
    """One look at every Deployment."""
    for deployment in caches.all("Deployment"):
        if is_ending(deployment):
            continue
        try:
            await _reconcile(caches, deployment)
        except Refused as error:
            if error.code not in (403, 404, 409):
                raise


async def _reconcile(caches: Caches, deployment: Json) -> None:
    newest = template_hash(deployment)
    pods = caches.owned("Pod", deployment)
    living = [p for p in pods if not is_ending(p) and p["metadata"]["labels"][HASH_LABEL] == newest]
    wanted = deployment["spec"].get("replicas", 1)
    for pod in pods:
        if pod["metadata"]["labels"][HASH_LABEL] != newest and not is_ending(pod):
            await caches.delete(pod)
    for pod in living[wanted:]:
        await caches.delete(pod)
    for _ in range(wanted - len(living)):
        await caches.create(pod_for(deployment))
    ready = sum(is_ready(pod) for pod in living[:wanted])
    await caches.set_status(
        deployment,
        {
            "observedGeneration": deployment["metadata"].get("generation", 1),
            "replicas": min(len(living), wanted),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": min(len(living), wanted),
        },
    )
