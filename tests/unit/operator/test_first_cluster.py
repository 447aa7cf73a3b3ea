"""The chart's first cluster is applied by the operator: made, kept up to date, never taken from
people."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver.server import ApiServer
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.paths import BROKER_CLUSTER
from headrace.operator.process import first_cluster
from headrace.protocol.errors import InvalidConfig

CRD = Path(__file__).parents[3] / "crds" / "headrace.dev_brokerclusters.yaml"


def cluster(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "main", "namespace": "default"},
        "spec": {"replicas": 3, "image": "headrace:dev", "storage": {"size": "1Gi"}, **spec},
    }


@pytest.fixture
async def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """A client of an API server that doesn't know the kind yet."""
    async with ApiServer() as api:
        api.write_kubeconfig(tmp_path / "kubeconfig")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        async with KubeClient() as client:
            yield client


async def define(kube: KubeClient) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    definition = yaml.safe_load(CRD.read_text())
    await kube._send("create", BROKER_CLUSTER, "POST", path, body=definition)


async def test_it_waits_for_the_kind_makes_the_cluster_and_follows_its_values(
    kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_cluster, "PAUSE_S", (0.02, 0.05))
    applying = asyncio.create_task(first_cluster.apply(kube, cluster()))
    await asyncio.sleep(0.2)
    assert not applying.done()
    await define(kube)
    await asyncio.wait_for(applying, 10)
    made = await kube.get(BROKER_CLUSTER, "default", "main")
    assert made is not None
    assert made["spec"]["replicas"] == 3
    # A person sets what the chart doesn't name, and the chart's values change.
    await kube.patch(BROKER_CLUSTER, "default", "main", {"spec": {"config": {"num.partitions": 9}}})
    await first_cluster.apply(kube, cluster(replicas=5))
    found = await kube.get(BROKER_CLUSTER, "default", "main")
    assert found is not None
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert found["spec"]["replicas"] == 5
    assert found["spec"]["config"] == {"num.partitions": 9}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", json.dumps({**cluster(), "kind": 7}),
     json.dumps({**cluster(), "apiVersion": "v1"}),
     json.dumps({**cluster(), "metadata": {"name": "main"}})],
)  # fmt: skip
def test_a_file_with_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match="holds no resource"):
        first_cluster.read(str(file))


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="holds no resource"):
        first_cluster.read(str(tmp_path / "nothing"))
