"""Installs the custom resources and the operator, from the files that users apply."""

from __future__ import annotations

from pathlib import Path

from suite.kube import Json, Kube, documents
from suite.waiting import until

ROOT = Path(__file__).parents[2]
NAMESPACE = "headrace-system"
OPERATOR = "headrace-operator"
MANIFESTS = ROOT / "operator" / "deploy"


def install(kube: Kube, image: str) -> None:
    """Applies everything and waits until the operator is up."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        for each in documents(path.read_text()):
            kube.apply(each)
    until("the custom resources are served", lambda: _are_served(kube))
    for each in objects(image):
        kube.apply(each, NAMESPACE)
    until("the operator is up", lambda: is_up(kube), timeout_s=120)


def _are_served(kube: Kube) -> bool:
    for kind in ("BrokerCluster", "Topic", "ConsumerGroup"):
        kube.list(kind)
    return True


def objects(image: str) -> list[Json]:
    """The manifests, with the image to be tested."""
    found = [
        each for path in sorted(MANIFESTS.glob("*.yaml")) for each in documents(path.read_text())
    ]
    for each in found:
        if each["kind"] == "Deployment":
            # One, so that scenarios choose when there are two.
            each["spec"]["replicas"] = 1
            container = each["spec"]["template"]["spec"]["containers"][0]
            container["image"] = image
            container["imagePullPolicy"] = "IfNotPresent"
    return found


def is_up(kube: Kube, replicas: int | None = None) -> bool:
    """Whether the operator's pods are ready."""
    found = kube.get("Deployment", NAMESPACE, OPERATOR)
    assert found is not None
    wanted = found["spec"].get("replicas", 1) if replicas is None else replicas
    return int((found.get("status") or {}).get("readyReplicas", 0)) == wanted


def scale(kube: Kube, replicas: int) -> None:
    """Starts or stops operators, and waits for it."""
    kube.patch("Deployment", NAMESPACE, OPERATOR, {"spec": {"replicas": replicas}})
    until(
        f"{replicas} operators run",
        lambda: len(pods(kube)) == replicas and is_up(kube, replicas),
        timeout_s=90,
    )


def pods(kube: Kube) -> list[str]:
    """The operator's pods."""
    found = kube.list("Pod", NAMESPACE, labelSelector=f"app.kubernetes.io/name={OPERATOR}")
    return sorted(pod["metadata"]["name"] for pod in found)


def log(kube: Kube, *, lines: int = 60) -> str:
    """The end of the operator's log."""
    return "\n".join(f"--- {pod}\n{kube.log(NAMESPACE, pod, lines=lines)}" for pod in pods(kube))
