"""Brokers and machines die."""

from __future__ import annotations

import signal
import time

import pytest

from kubelet.emulator import Emulator
from suite.cluster import Cluster
from suite.waiting import until


@pytest.fixture
def busy(cluster: Cluster) -> Cluster:
    """Three brokers with a topic on all of them."""
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=6, replicas=3)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    return cluster


def led_by(cluster: Cluster, broker: int) -> list[int]:
    found = cluster.describe("orders")["partitions"]
    return [each["partition"] for each in found if each["leader"] == broker]


def leaderless(cluster: Cluster) -> list[int]:
    found = cluster.describe("orders")["partitions"]
    return [each["partition"] for each in found if each["leader"] is None]


@pytest.mark.soak
def test_a_container_is_killed_and_its_leaders_are_back_within_five_seconds(
    busy: Cluster, emulator: Emulator
) -> None:
    clients = busy.load("orders", partitions=6)
    began = time.monotonic()
    emulator.signal_pod(busy.namespace, "main-1", signal.SIGKILL)
    until("nobody waits for a leader", lambda: not led_by(busy, 1) and not leaderless(busy))
    assert time.monotonic() - began < 5.0
    clients.go_on()
    until("it runs again in the same pod", lambda: busy.brokers() == [0, 1, 2])
    clients.stop()


@pytest.mark.soak
def test_a_pod_is_deleted_and_comes_back_with_its_data(busy: Cluster, world: object) -> None:
    clients = busy.load("orders", partitions=6)
    volume = busy.claims()["data-main-2"]["metadata"]["uid"]
    before = busy.uid_of(2)
    busy.kube.delete("Pod", busy.namespace, "main-2")
    until("another pod runs in its place", lambda: busy.uid_of(2) != before, timeout_s=180)
    until("all brokers run", lambda: busy.brokers() == [0, 1, 2], timeout_s=180)
    clients.go_on()
    clients.stop()
    assert busy.claims()["data-main-2"]["metadata"]["uid"] == volume
    busy.until_ready()


@pytest.mark.soak
def test_a_node_is_lost_and_the_others_go_on_until_it_is_back(
    busy: Cluster, emulator: Emulator
) -> None:
    clients = busy.load("orders", partitions=6)
    node_of = {name: pod["spec"]["nodeName"] for name, pod in busy.pods().items()}
    theirs = (busy.kube.get("Pod", busy.namespace, "load") or {})["spec"]["nodeName"]
    broker = next(number for number in range(3) if node_of[f"main-{number}"] != theirs)
    node = node_of[f"main-{broker}"]
    emulator.lose_node(node)
    until("nobody waits for a leader", lambda: not led_by(busy, broker) and not leaderless(busy))
    clients.go_on()
    until("the cluster says so", lambda: not busy.is_ready())
    emulator.bring_back_node(node)
    until("all brokers run", lambda: busy.brokers() == [0, 1, 2], timeout_s=180)
    busy.until_ready()
    clients.go_on()
    clients.stop()


@pytest.mark.soak
def test_a_lost_disk_is_replaced_when_a_person_says_so(busy: Cluster) -> None:
    clients = busy.load("orders", partitions=6)
    volume = busy.claims()["data-main-1"]["metadata"]["uid"]
    pod = {"metadata": {"annotations": {"headrace.dev/delete-pod-and-pvc": "true"}}}
    busy.kube.patch("Pod", busy.namespace, "main-1", pod)
    until("there is another volume",
          lambda: busy.claims()["data-main-1"]["metadata"]["uid"] != volume,
          timeout_s=180)  # fmt: skip
    busy.until_ready(timeout_s=360)
    until("all replicas are in sync", lambda: all(
        sorted(each["isr"]) == [0, 1, 2] for each in busy.describe("orders")["partitions"]
    ), timeout_s=240)  # fmt: skip
    clients.go_on()
    clients.stop()
