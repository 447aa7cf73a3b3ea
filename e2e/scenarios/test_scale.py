"""Brokers come and go while clients work."""

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


@pytest.mark.soak
def test_three_to_five_to_three_brokers_under_load_and_nothing_is_lost(busy: Cluster) -> None:
    clients = busy.load("orders", partitions=6)

    busy.scale(5)
    busy.until_ready(timeout_s=360)
    assert busy.brokers() == [0, 1, 2, 3, 4]
    until("the new brokers carry data", lambda: {3, 4} <= busy.carrying(), timeout_s=240)
    clients.go_on()

    busy.scale(3)
    until("five have become three", lambda: sorted(busy.pods()) == ["main-0", "main-1", "main-2"],
          timeout_s=360)  # fmt: skip
    busy.until_ready(timeout_s=240)
    assert busy.carrying() == {0, 1, 2}
    clients.go_on()
    clients.stop()

    # The volumes of the brokers that went are kept.
    assert {"data-main-3", "data-main-4"} <= set(busy.claims())


def test_one_more_broker_and_one_fewer_under_load(cluster: Cluster) -> None:
    cluster.create(replicas=2)
    cluster.topic("orders", partitions=4, replicas=2)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    clients = cluster.load("orders", partitions=4)

    cluster.scale(3)
    cluster.until_ready()
    until("the new broker carries data", lambda: 2 in cluster.carrying(), timeout_s=180)
    clients.go_on()

    cluster.scale(2)
    until("it is gone again", lambda: sorted(cluster.pods()) == ["main-0", "main-1"], timeout_s=240)
    cluster.until_ready()
    assert cluster.carrying() == {0, 1}
    clients.go_on()
    clients.stop()


@pytest.mark.soak
def test_too_few_brokers_for_the_replicas_is_refused_and_called_off_by_editing_back(
    busy: Cluster,
) -> None:
    busy.scale(2)
    said = busy.until_said("ScaleDownBlocked")
    assert "orders" in said["message"]
    stays("all brokers are there", lambda: len(busy.pods()) == 3, seconds=5)
    busy.scale(3)
    busy.until_ready()
    busy.send("orders", "still at work")
