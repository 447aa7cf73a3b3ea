"""Consumer groups by resource: where they start, where they are sent, how far behind they are."""

from __future__ import annotations

from typing import Any

import pytest

from suite.cluster import Cluster
from suite.waiting import stays, until


@pytest.fixture
def one(cluster: Cluster) -> Cluster:
    """A broker, a topic, ten records."""
    cluster.create(replicas=1)
    cluster.topic("orders", partitions=1)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    cluster.send("orders", *(str(number) for number in range(10)))
    return cluster


def committed(cluster: Cluster, group: str) -> int | None:
    """The offset of partition 0 that a group goes on from."""
    found: Any = cluster.ask("GET", f"/v1/groups/{group}/offsets")
    for each in found["offsets"]:
        if each["topic"] == "orders" and each["partition"] == 0:
            return int(each["offset"])
    return None


def test_offsets_are_reset_once_for_each_id(one: Cluster) -> None:
    one.group("billing", topics=["orders"], startFrom="latest")
    one.until_ready("ConsumerGroup", "billing")
    until("the group starts at the end", lambda: committed(one, "billing") == 10)

    one.change({"reset": {"id": "1", "to": "earliest"}}, "ConsumerGroup", "billing")
    until("it goes back to the start", lambda: committed(one, "billing") == 0)
    until("the resource says so", lambda: (
        one.get("ConsumerGroup", "billing")["status"].get("lastResetId") == "1"
    ))  # fmt: skip

    one.ask("POST", "/v1/groups/billing/offsets", {
        "offsets": [{"topic": "orders", "partition": 0, "offset": 7}]
    })  # fmt: skip
    stays("it isn't done again", lambda: committed(one, "billing") == 7, seconds=4)

    one.change({"reset": {"id": "2", "to": "earliest"}}, "ConsumerGroup", "billing")
    until("another id does it again", lambda: committed(one, "billing") == 0)


@pytest.mark.soak
def test_a_group_that_is_far_behind_says_so(one: Cluster) -> None:
    one.group("billing", topics=["orders"], startFrom="earliest", maxLag=5)
    said = one.until_said("LagHigh", "ConsumerGroup", "billing", type="LagHigh")
    assert said["status"] == "True"
    assert one.get("ConsumerGroup", "billing")["status"]["lag"] == 10


@pytest.mark.soak
def test_a_queue_is_not_supported_yet_and_says_so(one: Cluster) -> None:
    one.group("workers", topics=["orders"], type="queue")
    one.until_said("NotSupported", "ConsumerGroup", "workers")
