"""What a user writes wrong is refused with its path, or said; nothing else suffers from it."""

from __future__ import annotations

from typing import Any

import pytest

from suite import install
from suite.cluster import Cluster
from suite.kube import Kube, Refused
from suite.waiting import stays, until

BAD_CLUSTERS: dict[str, dict[str, Any]] = {
    "spec.replicas": {"replicas": 0},
    "spec.image": {"image": ""},
    "spec.storage.size": {"storage": {"size": "much"}},
    "spec.rebalance.maxConcurrentMoves": {"rebalance": {"maxConcurrentMoves": 0}},
}
BAD_TOPICS: dict[str, dict[str, Any]] = {
    "spec.partitions": {"partitions": 0},
    "spec.replicas": {"replicas": "three"},
    "spec.deletionPolicy": {"deletionPolicy": "Perhaps"},
}


@pytest.mark.parametrize("path", BAD_CLUSTERS)
def test_a_bad_cluster_is_refused_with_its_path(cluster: Cluster, path: str) -> None:
    with pytest.raises(Refused) as refused:
        cluster.create(**BAD_CLUSTERS[path])
    assert refused.value.code == 422
    assert path in refused.value.message


@pytest.mark.parametrize("path", BAD_TOPICS)
def test_a_bad_topic_is_refused_with_its_path(cluster: Cluster, path: str) -> None:
    with pytest.raises(Refused) as refused:
        cluster.topic("orders", **BAD_TOPICS[path])
    assert refused.value.code in (400, 422)
    assert path in refused.value.message


def test_a_topic_of_no_cluster_says_so(cluster: Cluster) -> None:
    cluster.topic("orders", partitions=1)
    assert cluster.until_said("ClusterNotFound", "Topic", "orders")["status"] == "False"


def test_what_the_brokers_refuse_is_said_where_it_was_written(cluster: Cluster) -> None:
    cluster.create(replicas=1)
    cluster.topic("typo", partitions=1, config={"retention.msec": 5})
    cluster.topic("nonsense", partitions=1, config={"cleanup.policy": "shred"})
    cluster.topic("fine", partitions=1)
    cluster.until_ready()
    cluster.until_ready("Topic", "fine")
    until("each says what is wrong", lambda: (
        "retention.msec" in messages(cluster, "typo")
        and "cleanup.policy" in messages(cluster, "nonsense")
    ))  # fmt: skip


def messages(cluster: Cluster, topic: str) -> str:
    conditions = cluster.get("Topic", topic).get("status", {}).get("conditions") or ()
    return "\n".join(each["message"] for each in conditions)


@pytest.mark.soak
def test_partitions_never_become_fewer(cluster: Cluster) -> None:
    cluster.create(replicas=1)
    cluster.topic("orders", partitions=3)
    cluster.until_ready("Topic", "orders")
    with pytest.raises(Refused) as refused:
        cluster.change({"partitions": 2}, "Topic", "orders")
    assert "partitions can't decrease" in refused.value.message
    with pytest.raises(Refused) as refused:
        cluster.change({"clusterRef": {"name": "other"}}, "Topic", "orders")
    assert "clusterRef" in refused.value.message


@pytest.mark.soak
def test_a_setting_that_is_the_operators_own_or_nonsense_stops_nobody(cluster: Cluster) -> None:
    cluster.create(replicas=1, config={"port": 1})
    said = cluster.until_said("InvalidConfig", type="Warning")
    assert "port" in said["message"]
    cluster.change({"config": {"port": None}})
    cluster.until_ready()


@pytest.mark.soak
def test_brokers_that_crash_at_once_are_told_and_a_better_spec_brings_them_up(
    cluster: Cluster,
) -> None:
    cluster.create(replicas=3, config={"io.threads": "many"})
    until("the cluster isn't ready, and says why", lambda: (
        cluster.condition("BrokerCluster").get("status") == "False"
        and cluster.condition("BrokerCluster")["message"]
    ), timeout_s=180)  # fmt: skip
    cluster.change({"config": {"io.threads": 2}})
    cluster.until_ready(timeout_s=360)


@pytest.mark.soak
def test_pods_that_fit_nowhere_are_told_and_a_smaller_request_brings_them_up(
    cluster: Cluster,
) -> None:
    cluster.create(replicas=3, resources={"requests": {"cpu": "4000"}})
    said = until("the cluster isn't ready, and says why", lambda: (
        found if (found := cluster.condition("BrokerCluster")).get("status") == "False" else None
    ), timeout_s=180)  # fmt: skip
    assert said is not None
    assert said["message"]
    cluster.change({"resources": {"requests": {"cpu": "100m"}}})
    cluster.until_ready(timeout_s=360)


@pytest.mark.soak
def test_a_bad_cluster_does_not_keep_others_from_theirs(world: Any, cluster: Cluster) -> None:
    cluster.create(replicas=3, image="registry.invalid/headrace:missing")
    with world.namespace() as name:
        other = world.cluster(name).create(replicas=1)
        other.until_ready()
    stays("the operator is up", lambda: install.is_up(cluster.kube), seconds=3)


@pytest.mark.soak
def test_a_cluster_that_would_take_over_somebody_elses_object_does_not(
    cluster: Cluster, kube: Kube
) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "main-config", "namespace": cluster.namespace},
        "data": {"theirs": "yes"},
    }
    kube.apply(theirs)
    cluster.create(replicas=1)
    cluster.until_said("ResourceConflict")
    found = kube.get("ConfigMap", cluster.namespace, "main-config")
    assert found is not None
    assert found["data"] == {"theirs": "yes"}
    kube.delete("ConfigMap", cluster.namespace, "main-config")
    cluster.until_ready(timeout_s=300)
