"""examples/kubernetes as its reader applies it, file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suite.cluster import Cluster
from suite.kube import Kube, documents
from suite.waiting import until
from suite.world import World

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"


def apply(world: World, namespace: str, file: str) -> list[dict[str, Any]]:
    """`kubectl apply -f`, with the image that is tested; volumes as small as a test needs."""
    found = []
    for each in documents((FOLDER / file).read_text().replace("headrace:dev", world.image)):
        if each["kind"] == "BrokerCluster":
            each["spec"]["storage"]["size"] = "1Gi"
        each["metadata"]["namespace"] = namespace
        found.append(world.kube.apply(each, namespace))
    return found


def pods(kube: Kube, namespace: str, app: str) -> list[str]:
    found = kube.list("Pod", namespace, labelSelector=f"app={app}")
    return sorted(pod["metadata"]["name"] for pod in found)


def handled(kube: Kube, namespace: str) -> dict[str, int]:
    """Lines of each consumer."""
    return {
        pod: kube.log(namespace, pod, lines=10_000).count("customer-")
        for pod in pods(kube, namespace, "billing")
    }


def test_programs_share_a_topic_and_a_group_starts_anew(
    world: World, namespace: str, cluster: Cluster, kube: Kube
) -> None:
    apply(world, namespace, "first-topic.yaml")
    apply(world, namespace, "programs.yaml")
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    until(
        "three consumers have had records",
        lambda: len(counts := handled(kube, namespace)) == 3 and all(counts.values()),
        timeout_s=120,
    )
    apply(world, namespace, "reset.yaml")
    kube.patch("Deployment", namespace, "billing", {"spec": {"replicas": 0}})

    def is_reset() -> bool:
        status = cluster.get("ConsumerGroup", "billing").get("status", {})
        return bool(status.get("lastResetId") == "new-year")

    until("the reset was carried out", is_reset, timeout_s=120)


def test_a_broker_in_one_pod_needs_no_operator(world: World, namespace: str, kube: Kube) -> None:
    apply(world, namespace, "dev-in-one-pod.yaml")

    def is_ready() -> bool:
        found = kube.get("Deployment", namespace, "headrace-dev") or {}
        return int(found.get("status", {}).get("readyReplicas", 0)) == 1

    until("the broker is ready", is_ready, timeout_s=90)
    (pod,) = pods(kube, namespace, "headrace-dev")
    answer = kube.through("GET", "Pod", namespace, f"{pod}:9420", "/v1/cluster")
    assert [broker["id"] for broker in answer.value["brokers"]] == [0]
