"""The Helm chart: what it renders makes its first cluster, and is upgraded under load.

`helm template` and not `helm install`, since helm talks Protocol Buffers to the API server, which
the emulated one doesn't; tests/charts looks at the rest of the chart.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suite import install
from suite.cluster import Cluster
from suite.kube import Kube, documents
from suite.waiting import until
from suite.world import World
from testkit.helm import helm

CHART = Path(__file__).parents[2] / "charts" / "headrace"
Json = dict[str, Any]


@pytest.fixture
def alone(kube: Kube) -> Iterator[None]:
    """Without the operator that all other scenarios share."""
    install.scale(kube, 0)
    yield
    install.scale(kube, 1)


def render(world: World, namespace: str, **values: object) -> list[Json]:
    """What `helm install` would make."""
    repository, _, tag = world.image.rpartition(":")
    chosen = {
        "image.repository": repository, "image.tag": tag, "namespaces[0]": namespace,
        "rbac.nodes": "false", "rbac.aggregate": "false", "crds.install": "false",
        "firstCluster.enabled": "true", "firstCluster.name": "main",
        "firstCluster.spec.storage.size": "1Gi", **values,
    }  # fmt: skip
    sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [helm(), "template", "shop", str(CHART), "--namespace", namespace, "--no-hooks", *sets],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return list(documents(done.stdout))


@pytest.mark.soak
def test_a_chart_brings_a_cluster_and_is_upgraded_under_load(
    world: World, namespace: str, cluster: Cluster, kube: Kube, alone: None
) -> None:
    made = render(world, namespace)
    try:
        for each in made:
            kube.apply(each, namespace)
        until("the cluster is there", lambda: kube.get("BrokerCluster", namespace, "main"))
        cluster.until_ready()
        cluster.topic("orders", partitions=3, replicas=3)
        cluster.until_ready("Topic", "orders")
        clients = cluster.load("orders", partitions=3)
        clients.go_on(300)

        # Another template of the operator's pods, and of the brokers': a rolling restart.
        label = "firstCluster.spec.template.pod.labels.chart"
        for each in render(world, namespace, **{"log.level": "DEBUG", label: "upgraded"}):
            kube.apply(each, namespace)

        def is_rolled() -> bool:
            found = kube.list(
                "Pod", namespace, labelSelector="app.kubernetes.io/name=headrace,chart=upgraded"
            )
            return len(found) == 3 and cluster.is_ready()

        until("all brokers are restarted", is_rolled, timeout_s=300)
        clients.go_on(300)
        verdict = clients.stop()
        assert verdict["anomalies"] == []
    finally:
        for each in made:
            if each["kind"].startswith("Cluster"):
                kube.delete(each["kind"], "", each["metadata"]["name"])
