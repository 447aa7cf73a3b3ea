"""The scheduler: which node a pod goes to, or why none. Pure but for the write."""

from __future__ import annotations

from apiserver.validation import quantity
from kubelet.caches import Caches
from kubelet.client import Json, Refused
from kubelet.statefulsets import is_ending


def requests(pod: Json) -> dict[str, float]:
    """What a pod asks for."""
    found: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        asked = (container.get("resources") or {}).get("requests") or {}
        for name, amount in asked.items():
            found[name] = found.get(name, 0.0) + quantity(str(amount))
    return found


def fits(pod: Json, node: Json, others: list[Json]) -> bool:
    """Whether a node is healthy, tolerated, selected, and has room beside the pods it has."""
    labels = node["metadata"].get("labels") or {}
    selector = pod["spec"].get("nodeSelector") or {}
    if node["spec"].get("unschedulable") or not _is_healthy(node):
        return False
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    tolerations = pod["spec"].get("tolerations") or ()
    if any(not _is_tolerated(t, tolerations) for t in node["spec"].get("taints") or ()):
        return False
    room = node["status"]["allocatable"]
    for name, amount in requests(pod).items():
        taken = sum(requests(other).get(name, 0.0) for other in others)
        if taken + amount > quantity(str(room.get(name, "0"))):
            return False
    return True


def _is_healthy(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _is_tolerated(taint: Json, tolerations: list[Json] | tuple[Json, ...]) -> bool:
    if taint["effect"] == "PreferNoSchedule":
        return True
    return any(
        each.get("key") in (None, "", taint["key"])
        and each.get("effect") in (None, "", taint["effect"])
        and (each.get("operator") == "Exists" or each.get("value") == taint.get("value"))
        for each in tolerations
    )


def choose(pod: Json, nodes: list[Json], pods: list[Json]) -> str | None:
    """The fitting node with the fewest pods like this one, then the fewest at all."""
    on: dict[str, list[Json]] = {node["metadata"]["name"]: [] for node in nodes}
    for other in pods:
        if (name := other["spec"].get("nodeName")) in on:
            on[name].append(other)
    alike = pod["metadata"].get("labels", {}).get("app.kubernetes.io/instance")

    def burden(name: str) -> tuple[int, int, str]:
        same = [
            other
            for other in on[name]
            if other["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == alike
        ]
        return len(same), len(on[name]), name

    fitting = [n["metadata"]["name"] for n in nodes if fits(pod, n, on[n["metadata"]["name"]])]
    return min(fitting, key=burden, default=None)


def waits_for_claim(pod: Json, caches: Caches) -> str | None:
    """The first claim of a pod that keeps it from being placed, in the real scheduler's words."""
    for volume in pod["spec"].get("volumes") or ():
        name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if name is None:
            continue
        claim = caches.get("PersistentVolumeClaim", pod["metadata"]["namespace"], name)
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if is_ending(claim):
            return f'persistentvolumeclaim "{name}" is being deleted'
        if claim.get("status", {}).get("phase") != "Bound":
            return "pod has unbound immediate PersistentVolumeClaims"
    return None


async def reconcile(caches: Caches, now: str) -> None:
    """Places what has no node."""
    for pod in caches.all("Pod"):
        if pod["spec"].get("nodeName") or is_ending(pod):
            continue
        why = waits_for_claim(pod, caches)
        nodes = caches.all("Node")
        node = None if why else choose(pod, nodes, caches.all("Pod"))
        try:
            if node is not None:
                await caches.patch(pod, {"spec": {"nodeName": node}})
            else:
                message = why or f"0/{len(nodes)} nodes are available"
                await caches.set_status(pod, {"conditions": [unschedulable(message, pod, now)]})
        except Refused as error:
            if error.code not in (404, 409):
                raise


def unschedulable(message: str, pod: Json, now: str) -> Json:
    """The condition of a pod that nobody takes."""
    before = pod.get("status", {}).get("conditions") or [{}]
    if before[0].get("message") == message:
        return dict(before[0])
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": now,
    }
