"""Volumes grow, never shrink, and outlive what used them."""

from __future__ import annotations

import pytest

from suite.cluster import Cluster
from suite.kube import Kube
from suite.waiting import until

pytestmark = pytest.mark.soak


def sizes(cluster: Cluster) -> set[str]:
    return {
        claim["spec"]["resources"]["requests"]["storage"] for claim in cluster.claims().values()
    }


def expandable(kube: Kube) -> str:
    """A storage class whose volumes can grow."""
    for each in kube.list("StorageClass"):
        if each.get("allowVolumeExpansion"):
            return str(each["metadata"]["name"])
    pytest.skip("no storage class here lets volumes grow")


def test_volumes_grow(cluster: Cluster, kube: Kube) -> None:
    name = expandable(kube)
    cluster.create(replicas=1, storage={"size": "1Gi", "storageClassName": name})
    cluster.topic("orders", partitions=1)
    cluster.until_ready("Topic", "orders")
    cluster.send("orders", "kept")
    cluster.change({"storage": {"size": "2Gi"}})
    until("the claim asks for more", lambda: sizes(cluster) == {"2Gi"})
    until("the volume has grown", lambda: {
        claim["status"]["capacity"]["storage"] for claim in cluster.claims().values()
    } == {"2Gi"}, timeout_s=360)  # fmt: skip
    cluster.until_ready(timeout_s=360)
    assert cluster.read("orders") == ["kept"]


def test_a_smaller_size_is_ignored_and_said(cluster: Cluster) -> None:
    cluster.create(replicas=1, storage={"size": "2Gi"})
    cluster.until_ready()
    cluster.change({"storage": {"size": "1Gi"}})
    said = cluster.until_said("PvcShrinkIgnored", type="Warning")
    assert said["status"] == "True"
    assert sizes(cluster) == {"2Gi"}
    assert cluster.condition("BrokerCluster")["status"] == "True"


def test_a_new_broker_gets_the_new_size(cluster: Cluster, kube: Kube) -> None:
    name = expandable(kube)
    cluster.create(replicas=1, storage={"size": "1Gi", "storageClassName": name})
    cluster.until_ready()
    cluster.change({"storage": {"size": "2Gi"}})
    until("the claim asks for more", lambda: sizes(cluster) == {"2Gi"})
    cluster.until_ready(timeout_s=240)
    cluster.scale(2)
    cluster.until_ready(timeout_s=240)
    until("both are as large", lambda: len(cluster.claims()) == 2 and sizes(cluster) == {"2Gi"})
