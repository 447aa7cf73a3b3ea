"""What a new user does in the first five minutes."""

from __future__ import annotations

from suite.cluster import Cluster


def test_three_brokers_a_topic_and_a_group_from_three_resources(cluster: Cluster) -> None:
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=3, replicas=3, config={"retention.ms": 86_400_000})
    cluster.group("billing", topics=["orders"], startFrom="earliest", maxLag=100)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    cluster.until_ready("ConsumerGroup", "billing")

    assert cluster.brokers() == [0, 1, 2]
    found = cluster.describe("orders")
    assert [len(partition["replicas"]) for partition in found["partitions"]] == [3, 3, 3]
    assert cluster.settings_of("orders")["retention.ms"] == 86_400_000
    assert cluster.get("Topic", "orders")["status"]["topicId"] == found["topic_id"]

    clients = cluster.load("orders", partitions=3)
    clients.go_on(500)
    clients.stop()

    status = cluster.get()["status"]
    assert status["readyReplicas"] == 3
    assert status["bootstrap"] == f"http://main.{cluster.namespace}.svc:9420"
