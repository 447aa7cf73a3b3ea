"""Every broker is restarted, one at a time, and clients don't notice."""

from __future__ import annotations

import pytest

from suite.cluster import Cluster
from suite.waiting import stays, until


@pytest.fixture
def busy(cluster: Cluster) -> Cluster:
    """Three brokers with a topic on all of them."""
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=6, replicas=3)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    return cluster


def uids(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["uid"] for pod in cluster.pods().values()}


def ready_brokers(cluster: Cluster) -> int:
    return sum(
        condition["status"] == "True"
        for pod in cluster.pods().values()
        for condition in pod.get("status", {}).get("conditions") or ()
        if condition["type"] == "Ready"
    )


@pytest.mark.soak
def test_a_new_setting_restarts_one_broker_after_the_other_under_load(busy: Cluster) -> None:
    clients = busy.load("orders", partitions=6)
    before = uids(busy)
    busy.change({"config": {"io.threads": 3}})

    def look() -> bool:
        assert ready_brokers(busy) >= 2, "two brokers were away at once"
        return not before & uids(busy) and len(busy.pods()) == 3

    until("every pod is another one", look, timeout_s=480)
    busy.until_ready(timeout_s=180)
    clients.go_on()
    clients.stop()


@pytest.mark.soak
def test_a_person_asks_for_a_restart_of_all(busy: Cluster) -> None:
    before = uids(busy)
    busy.annotate("manual-rolling-update", "monday")
    until("every pod is another one", lambda: not before & uids(busy), timeout_s=480)
    busy.until_ready(timeout_s=180)
    after = uids(busy)
    stays("nobody is restarted twice", lambda: uids(busy) == after, seconds=5)


@pytest.mark.soak
def test_a_live_setting_restarts_nobody(busy: Cluster) -> None:
    before = uids(busy)
    busy.change({"config": {"min.insync.replicas": 2, "retention.ms": 3_600_000}})
    busy.until_ready()
    found = busy.describe("orders")["config"]["retention.ms"]
    assert found == {"value": 3_600_000, "source": "cluster"}
    assert uids(busy) == before


@pytest.mark.soak
def test_a_bad_image_takes_one_broker_and_a_good_one_brings_it_back(busy: Cluster) -> None:
    clients = busy.load("orders", partitions=6)
    busy.change({"image": "registry.invalid/headrace:missing"})
    until("one pod waits for its image", lambda: ready_brokers(busy) == 2, timeout_s=180)
    stays("the others are left alone", lambda: ready_brokers(busy) == 2, seconds=8)
    clients.go_on()
    busy.change({"image": busy.image})
    busy.until_ready(timeout_s=360)
    clients.go_on()
    clients.stop()
