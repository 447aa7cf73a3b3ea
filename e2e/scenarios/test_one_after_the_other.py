"""Changes that follow each other, or come at once: what one leaves behind mustn't stop the next."""

from __future__ import annotations

import pytest

from suite.cluster import Cluster
from suite.waiting import until

pytestmark = pytest.mark.soak


def uids(cluster: Cluster) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}


def test_a_cluster_that_was_scaled_in_can_be_rolled_and_scaled_out_again(cluster: Cluster) -> None:
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=4, replicas=2)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")

    cluster.scale(2)
    until("one is gone", lambda: sorted(cluster.pods()) == ["main-0", "main-1"], timeout_s=240)
    cluster.until_ready()

    before = uids(cluster)
    cluster.annotate("manual-rolling-update", "once")
    until("both were restarted", lambda: len(cluster.pods()) == 2
          and not set(uids(cluster).values()) & set(before.values()), timeout_s=300)  # fmt: skip
    cluster.until_ready(timeout_s=180)

    cluster.scale(3)
    cluster.until_ready(timeout_s=180)
    until("the one that is back carries data", lambda: 2 in cluster.carrying(), timeout_s=240)


def test_everything_is_changed_at_once(cluster: Cluster) -> None:
    cluster.create(replicas=2)
    cluster.until_ready()
    cluster.change(
        {
            "replicas": 3,
            "storage": {"size": "2Gi"},
            "config": {"log.level": "DEBUG", "retention.ms": 3_600_000},
            "template": {"pod": {"labels": {"team": "mill"}}},
        }
    )
    cluster.topic("orders", partitions=3, replicas=3)
    until("all have the new template", lambda: len(cluster.pods()) == 3 and all(
        pod["metadata"]["labels"].get("team") == "mill" for pod in cluster.pods().values()
    ), timeout_s=360)  # fmt: skip
    cluster.until_ready(timeout_s=240)
    cluster.until_ready("Topic", "orders")
    assert cluster.describe("orders")["config"]["retention.ms"]["value"] == 3_600_000
