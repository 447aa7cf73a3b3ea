"""Topics by resource: made, taken over, altered, put right, deleted."""

from __future__ import annotations

import pytest

from suite.cluster import Cluster
from suite.waiting import until


@pytest.fixture
def one(cluster: Cluster) -> Cluster:
    """A cluster of one broker."""
    cluster.create(replicas=1)
    cluster.until_ready()
    return cluster


def test_a_topic_that_is_there_already_is_adopted_and_keeps_what_is_not_named(
    one: Cluster,
) -> None:
    one.ask("POST", "/v1/topics", {
        "name": "orders", "partitions": 2,
        "config": {"retention.ms": 1_000_000, "max.message.bytes": 500_000},
    })  # fmt: skip
    before = one.describe("orders")["topic_id"]
    one.send("orders", "kept")
    one.topic("orders", partitions=3, config={"retention.ms": 2_000_000})
    one.until_ready("Topic", "orders")
    found = one.describe("orders")
    assert found["topic_id"] == before == one.get("Topic", "orders")["status"]["topicId"]
    assert len(found["partitions"]) == 3
    assert one.settings_of("orders") == {"retention.ms": 2_000_000, "max.message.bytes": 500_000}

    # Deleting the resource takes the topic along, since it says so.
    one.kube.delete("Topic", one.namespace, "orders")
    until("the topic is gone", lambda: not one.ask("GET", "/v1/topics")["topics"])


@pytest.mark.soak
def test_what_is_changed_by_hand_is_put_right(one: Cluster) -> None:
    one.topic("orders", partitions=1, config={"retention.ms": 1_000_000})
    one.until_ready("Topic", "orders")
    one.ask("PATCH", "/v1/topics/orders", {"config": {"retention.ms": 5_000_000}})
    until("it is as the resource says",
          lambda: one.settings_of("orders")["retention.ms"] == 1_000_000,
          timeout_s=300)  # fmt: skip


@pytest.mark.soak
def test_of_two_resources_for_one_topic_the_older_wins(one: Cluster) -> None:
    one.topic("first", topicName="orders", partitions=1)
    one.until_ready("Topic", "first")
    one.topic("second", topicName="orders", partitions=5)
    one.until_said("ResourceConflict", "Topic", "second")
    assert len(one.describe("orders")["partitions"]) == 1
    one.kube.delete("Topic", one.namespace, "second")
    until("the second is gone", lambda: one.kube.get("Topic", one.namespace, "second") is None)
    assert len(one.describe("orders")["partitions"]) == 1


@pytest.mark.soak
def test_more_replicas_are_made_by_moving_data(cluster: Cluster) -> None:
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=3, replicas=1)
    cluster.until_ready("Topic", "orders")
    cluster.send("orders", "a", "b", "c")
    cluster.change({"replicas": 3}, "Topic", "orders")
    cluster.until_ready("Topic", "orders")
    until("every partition has three in sync", lambda: all(
        len(each["isr"]) == 3 for each in cluster.describe("orders")["partitions"]
    ))  # fmt: skip
    kept = [value for partition in range(3) for value in cluster.read("orders", partition)]
    assert sorted(kept) == ["a", "b", "c"]


@pytest.mark.soak
def test_a_topic_that_shall_stay_outlives_its_resource(one: Cluster) -> None:
    one.topic("orders", partitions=1, deletionPolicy="Retain")
    one.until_ready("Topic", "orders")
    one.kube.delete("Topic", one.namespace, "orders")
    until("the resource is gone", lambda: one.kube.get("Topic", one.namespace, "orders") is None)
    assert [each["name"] for each in one.ask("GET", "/v1/topics")["topics"]] == ["orders"]
