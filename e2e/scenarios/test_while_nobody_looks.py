"""What is changed or deleted while no operator runs, or two do, is put right all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suite import install
from suite.cluster import Cluster
from suite.kube import Kube
from suite.waiting import stays, until
from suite.world import World


@pytest.fixture
def operators(kube: Kube) -> Iterator[Kube]:
    """The number of operators may be changed; afterwards it is one again."""
    yield kube
    install.scale(kube, 1)


@pytest.mark.soak
def test_everything_a_cluster_consists_of_is_deleted_while_the_operator_is_down(
    cluster: Cluster, operators: Kube
) -> None:
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=3, replicas=3)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    cluster.send("orders", "kept")
    install.scale(operators, 0)
    for kind, name in (
        ("StatefulSet", "main"), ("Service", "main"), ("Service", "main-brokers"),
        ("ConfigMap", "main-config"), ("PodDisruptionBudget", "main"), ("Role", "main-broker"),
        ("RoleBinding", "main-broker"), ("NetworkPolicy", "main"),
        ("ServiceAccount", "main-broker"),
    ):  # fmt: skip
        operators.delete(kind, cluster.namespace, name)
    until("no broker is left", lambda: not cluster.pods(), timeout_s=180)
    install.scale(operators, 1)
    cluster.until_ready(timeout_s=300)
    kept = [value for partition in range(3) for value in cluster.read("orders", partition)]
    assert kept == ["kept"]


@pytest.mark.soak
def test_a_topic_that_was_deleted_while_the_operator_was_down_goes_when_it_is_back(
    cluster: Cluster, operators: Kube
) -> None:
    cluster.create(replicas=1)
    cluster.topic("going", partitions=1)
    cluster.topic("staying", partitions=1, deletionPolicy="Retain")
    cluster.until_ready("Topic", "going")
    cluster.until_ready("Topic", "staying")
    install.scale(operators, 0)
    operators.delete("Topic", cluster.namespace, "going")
    operators.delete("Topic", cluster.namespace, "staying")
    cluster.send("going", "still there")
    install.scale(operators, 1)
    until(
        "the resource is gone",
        lambda: operators.get("Topic", cluster.namespace, "going") is None,
    )
    names = [each["name"] for each in cluster.ask("GET", "/v1/topics")["topics"]]
    assert names == ["staying"]


@pytest.mark.soak
def test_a_cluster_that_was_deleted_while_the_operator_was_down_leaves_its_volumes(
    cluster: Cluster, operators: Kube
) -> None:
    cluster.create(replicas=1)
    cluster.topic("orders", partitions=1)
    cluster.until_ready("Topic", "orders")
    cluster.send("orders", "kept")
    install.scale(operators, 0)
    operators.delete("BrokerCluster", cluster.namespace, "main")
    operators.delete("Topic", cluster.namespace, "orders")
    install.scale(operators, 1)
    until("the brokers are gone", lambda: not cluster.pods(), timeout_s=180)
    until(
        "no finalizer holds the topic's resource",
        lambda: operators.get("Topic", cluster.namespace, "orders") is None,
    )
    assert sorted(cluster.claims()) == ["data-main-0"]
    cluster.create(replicas=1)
    cluster.until_ready()
    assert cluster.read("orders") == ["kept"]


@pytest.mark.soak
def test_a_cluster_whose_volumes_shall_go_takes_them_along(cluster: Cluster) -> None:
    cluster.create(replicas=1, storage={"size": "1Gi", "deleteClaim": True})
    cluster.until_ready()
    cluster.kube.delete("BrokerCluster", cluster.namespace, "main")
    until("nothing is left", lambda: not cluster.pods() and not cluster.claims(), timeout_s=180)


@pytest.mark.soak
def test_of_two_operators_one_works_and_the_other_takes_over(
    cluster: Cluster, operators: Kube
) -> None:
    install.scale(operators, 2)
    cluster.create(replicas=1)
    cluster.until_ready()
    lease = operators.get("Lease", install.NAMESPACE, install.OPERATOR)
    assert lease is not None
    leader = lease["spec"]["holderIdentity"]
    assert leader in install.pods(operators)
    operators.delete("Pod", install.NAMESPACE, leader, grace_s=0)
    cluster.topic("orders", partitions=1)
    cluster.until_ready("Topic", "orders", timeout_s=180)


@pytest.mark.soak
def test_a_namespace_is_deleted_with_all_that_is_in_it(world: World) -> None:
    with world.namespace() as name:
        cluster = world.cluster(name).create(replicas=1)
        cluster.topic("orders", partitions=1)
        cluster.group("billing", topics=["orders"])
        cluster.until_ready("Topic", "orders")
        world.kube.delete("Namespace", "", name)
        until(
            "the namespace is gone",
            lambda: world.kube.get("Namespace", "", name) is None,
            timeout_s=240,
        )
        world.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


@pytest.mark.soak
def test_a_cluster_that_is_paused_is_left_alone(cluster: Cluster) -> None:
    cluster.create(replicas=1)
    cluster.until_ready()
    cluster.annotate("pause-reconciliation", "true")
    until("it says so", lambda: any(
        each["reason"] == "ReconciliationPaused"
        for each in cluster.get()["status"]["conditions"]
    ))  # fmt: skip
    cluster.scale(2)
    stays("there is one broker", lambda: len(cluster.pods()) == 1, seconds=5)
    cluster.annotate("pause-reconciliation", None)
    cluster.until_ready()
    assert len(cluster.pods()) == 2
