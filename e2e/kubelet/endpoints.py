"""Services: which pods they lead to, EndpointSlices that say so, and the names of everything.

Names are given as the text of a hosts file, one a namespace, in the forms that Kubernetes' DNS
answers: service, service.namespace, service.namespace.svc, and with a pod's name before a headless
one. Pure but for `reconcile`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from kubelet.caches import Caches
from kubelet.client import Json, Refused
from kubelet.statefulsets import is_ending, is_ready

SERVICE_LABEL = "kubernetes.io/service-name"
DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A pod behind a service."""

    pod: str
    uid: str
    address: str
    hostname: str
    ready: bool
    ending: bool


def is_headless(service: Json) -> bool:
    """Whether it has no address of its own."""
    return bool(service["spec"].get("clusterIP") == "None")


def endpoints_of(service: Json, pods: list[Json]) -> list[Endpoint]:
    """All pods that the selector finds and that have an address."""
    selector = service["spec"].get("selector")
    if not selector:
        return []
    found = []
    for pod in pods:
        meta, labels = pod["metadata"], pod["metadata"].get("labels") or {}
        address = pod.get("status", {}).get("podIP")
        phase = pod.get("status", {}).get("phase")
        if address and phase in ("Pending", "Running") and selector.items() <= labels.items():
            is_in = pod["spec"].get("subdomain") == service["metadata"]["name"]
            hostname = pod["spec"].get("hostname", "") if is_in else ""
            ready, ending = is_ready(pod), is_ending(pod)
            found.append(Endpoint(meta["name"], meta["uid"], address, hostname, ready, ending))
    return sorted(found)


def published(service: Json, endpoints: list[Endpoint]) -> list[Endpoint]:
    """Those that DNS and proxies give out."""
    if service["spec"].get("publishNotReadyAddresses"):
        return endpoints
    return [each for each in endpoints if each.ready and not each.ending]


def port_number(service_port: Json, pod: Json) -> int:
    """The port of a pod that a service's port leads to."""
    target = service_port.get("targetPort", service_port["port"])
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == target:
                return int(port["containerPort"])
    return int(service_port["port"])


def hosts_text(namespace: str, services: list[Json], pods: list[Json]) -> str:
    """The names that a pod of this namespace can ask for."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    by_namespace: dict[str, list[Json]] = defaultdict(list)
    for pod in pods:
        by_namespace[pod["metadata"]["namespace"]].append(pod)
    for service in services:
        where, name = service["metadata"]["namespace"], service["metadata"]["name"]
        forms = [f"{name}.{where}.svc", f"{name}.{where}.svc.{DOMAIN}", f"{name}.{where}"]
        forms += [name] if where == namespace else []
        address = service["spec"].get("clusterIP")
        if address and address != "None":
            lines.append(f"{address} {' '.join(forms)}")
            continue
        for each in published(service, endpoints_of(service, by_namespace[where])):
            own = [f"{each.hostname}.{form}" for form in forms] if each.hostname else []
            lines.append(f"{each.address} {' '.join(own + forms)}")
    return "\n".join(lines) + "\n"


def slice_for(service: Json, endpoints: list[Endpoint]) -> Json:
    """The EndpointSlice of a service."""
    meta = service["metadata"]
    always = bool(service["spec"].get("publishNotReadyAddresses"))
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{meta['name']}-1",
            "namespace": meta["namespace"],
            "labels": {SERVICE_LABEL: meta["name"]},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": meta["name"], "uid": meta["uid"]}
            ],
        },
        "addressType": "IPv4",
        "ports": [
            {"name": port.get("name", ""), "port": port["port"], "protocol": "TCP"}
            for port in service["spec"].get("ports") or ()
        ],
        "endpoints": [
            {
                "addresses": [each.address],
                "conditions": {
                    "ready": always or (each.ready and not each.ending),
                    "serving": each.ready,
                    "terminating": each.ending,
                },
                "targetRef": {
                    "kind": "Pod",
                    "name": each.pod,
                    "namespace": meta["namespace"],
                    "uid": each.uid,
                },
                **({"hostname": each.hostname} if each.hostname else {}),
            }
            for each in endpoints
        ],
    }


async def reconcile(caches: Caches) -> None:
    """Keeps every service's EndpointSlice."""
    for service in caches.all("Service"):
        meta = service["metadata"]
        if is_ending(service) or not service["spec"].get("selector"):
            continue
        wanted = slice_for(service, endpoints_of(service, caches.all("Pod", meta["namespace"])))
        present = caches.get("EndpointSlice", meta["namespace"], wanted["metadata"]["name"])
        try:
            if present is None:
                await caches.create(wanted)
            elif present.get("endpoints") != wanted["endpoints"]:
                await caches.patch(present, {"endpoints": wanted["endpoints"]})
        except Refused as error:
            if error.code not in (403, 404, 409):
                raise
