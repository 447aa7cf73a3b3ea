"""What is known of resources, and which passes news orders."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.operator.process.desk import Desk
from headrace.operator.process.work_queue import Key

TOPICS = Key("Topic", "q", "main")
CLUSTER = Key("BrokerCluster", "q", "main")


@pytest.fixture
def asked() -> list[Key]:
    return []


@pytest.fixture
def desk(asked: list[Key]) -> Desk:
    def ask(key: Key, *, delay_s: float, urgent: bool = False) -> None:
        asked.append(key)

    return Desk(ask)


def topic(name: str, revision: int = 1, **changes: Any) -> dict[str, Any]:
    meta = {"namespace": "q", "name": name, "uid": name, "resourceVersion": str(revision)}
    meta |= {"generation": changes.pop("generation", 1)}
    spec = {"clusterRef": {"name": "main"}, **changes.pop("spec", {})}
    return {"kind": "Topic", "metadata": {**meta, **changes}, "spec": spec}


def cluster(revision: int = 1, ready: str = "Unknown") -> dict[str, Any]:
    meta = {"namespace": "q", "name": "main", "uid": "m", "resourceVersion": str(revision)}
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return {"kind": "BrokerCluster", "metadata": meta, "spec": {}, "status": status}


def test_a_new_topic_orders_a_pass_for_those_of_its_cluster(desk: Desk, asked: list[Key]) -> None:
    desk.heard("ADDED", topic("a"))
    assert asked == [TOPICS]
    assert desk.take_news(TOPICS) == {("q", "a")}
    assert desk.take_news(TOPICS) == set()


def test_a_change_of_status_alone_orders_nothing(desk: Desk, asked: list[Key]) -> None:
    desk.heard("ADDED", topic("a"))
    asked.clear()
    desk.heard("MODIFIED", {**topic("a", 2), "status": {"conditions": []}})
    assert asked == []
    desk.heard("MODIFIED", topic("a", 3, generation=2))
    assert asked == [TOPICS]


def test_an_event_that_is_older_than_what_was_written_is_dropped(
    desk: Desk, asked: list[Key]
) -> None:
    desk.heard("ADDED", topic("a"))
    desk.written(topic("a", 9, finalizers=["headrace.dev/finalizer"]))
    asked.clear()
    desk.heard("MODIFIED", topic("a", 5))
    assert asked == []
    [known] = desk.of(TOPICS)
    assert known["metadata"]["resourceVersion"] == "9"


def test_who_waits_for_a_name_is_looked_at_when_its_ruler_goes(desk: Desk) -> None:
    desk.heard("ADDED", topic("a"))
    desk.heard("ADDED", topic("b", spec={"topicName": "a"}))
    desk.take_news(TOPICS)
    desk.heard("DELETED", topic("a"))
    assert desk.take_news(TOPICS) >= {("q", "b")}
    assert [each["metadata"]["name"] for each in desk.of(TOPICS)] == ["b"]


def test_a_list_forgets_what_is_gone_and_looks_at_the_rest(desk: Desk, asked: list[Key]) -> None:
    desk.heard("ADDED", topic("a"))
    desk.heard("ADDED", topic("b"))
    asked.clear()
    desk.listed("Topic", [topic("b")])
    assert [each["metadata"]["name"] for each in desk.of(TOPICS)] == ["b"]
    assert set(asked) == {TOPICS}


def test_topics_are_looked_at_again_once_their_cluster_is_ready(
    desk: Desk, asked: list[Key]
) -> None:
    desk.heard("ADDED", topic("a"))
    desk.heard("ADDED", cluster())
    desk.take_news(TOPICS)
    asked.clear()
    desk.heard("MODIFIED", cluster(2, ready="True"))
    assert set(asked) == {CLUSTER, TOPICS}
    assert desk.take_news(TOPICS) == {("q", "a")}


def test_a_pod_orders_a_pass_for_its_cluster(desk: Desk, asked: list[Key]) -> None:
    labels = {"app.kubernetes.io/instance": "main"}
    desk.heard("MODIFIED", {"kind": "Pod", "metadata": {"namespace": "q", "labels": labels}})
    assert asked == [CLUSTER]


@pytest.mark.parametrize("spec", [{}, {"clusterRef": 5}, {"clusterRef": {"name": None}}])
def test_a_topic_that_names_no_cluster_harms_nobody(desk: Desk, spec: dict[str, Any]) -> None:
    desk.heard("ADDED", {**topic("a"), "spec": spec})
    assert len(desk.of(Key("Topic", "q", ""))) == 1


def test_resources_are_counted_by_state(desk: Desk) -> None:
    desk.heard("ADDED", cluster(ready="True"))
    paused = {"headrace.dev/pause-reconciliation": "true"}
    desk.heard("ADDED", topic("a", annotations=paused))
    desk.heard("ADDED", topic("b"))
    assert desk.states() == {
        ("BrokerCluster", "ready"): 1,
        ("ConsumerGroup", "ready"): 0,
        ("Topic", "paused"): 1,
        ("Topic", "ready"): 0,
        ("Topic", "unknown"): 1,
    }
