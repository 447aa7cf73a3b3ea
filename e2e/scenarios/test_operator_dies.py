"""The operator is killed between any two calls, and another life finishes what one began.

`Reaper` kills it at each of its writes in turn: the call is carried out or not, its answer never
comes, the process is gone. What must be the same at the end is the cluster.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from apiserver.faults import Fault
from kubelet.emulator import Emulator
from suite import install
from suite.cluster import Cluster
from suite.kube import Kube
from suite.waiting import until

USER = f"system:serviceaccount:{install.NAMESPACE}:{install.OPERATOR}"
WRITES = "[cpud]*"
"""create, patch, update, delete."""

NOT_LEASES = "[!l]*"


class Reaper:
    """Kills the operator at its writes. `passed`: writes that get through between two deaths."""

    def __init__(self, emulator: Emulator, kube: Kube) -> None:
        self._emulator = emulator
        self._kube = kube
        self.deaths = 0

    def kill_until(
        self, done: Callable[[], bool], *, passed: int = 0, timeout_s: float = 400.0
    ) -> None:
        """Until `done`; every second death comes before its call is carried out."""
        deadline = time.monotonic() + timeout_s
        while not _answers(done):
            assert time.monotonic() < deadline, f"not done after {self.deaths} deaths"
            # A life that is ended before its first write leaves all as it was, so not every time.
            applied = passed == 0 or self.deaths % 2 == 0
            fault = self._emulator.api.faults.add(
                Fault(verb=WRITES, resource=NOT_LEASES, user=USER, skip=passed, action="hang",
                      applied=applied)
            )  # fmt: skip
            while fault.met <= passed and not _answers(done) and time.monotonic() < deadline:
                time.sleep(0.02)
            if fault.met > passed:
                time.sleep(0.05)
                self.kill()
            self._emulator.api.faults.active.remove(fault)

    def kill(self) -> None:
        """Now."""
        for pod in install.pods(self._kube):
            self._emulator.signal_pod(install.NAMESPACE, pod, signal.SIGKILL, no_back_off=True)
            self.deaths += 1


def _answers(done: Callable[[], bool]) -> bool:
    try:
        return done()
    except Exception:
        return False


@pytest.fixture
def reaper(emulator: Emulator, kube: Kube) -> Iterator[Reaper]:
    yield Reaper(emulator, kube)
    emulator.api.faults.clear()
    until("the operator is up", lambda: install.is_up(kube))


def is_whole(cluster: Cluster, brokers: int) -> bool:
    return cluster.is_ready() and cluster.brokers() == list(range(brokers))


def test_a_cluster_is_created_by_an_operator_that_dies_at_every_fourth_write(
    cluster: Cluster, reaper: Reaper
) -> None:
    cluster.create(replicas=1)
    reaper.kill_until(lambda: is_whole(cluster, 1), passed=3)
    assert reaper.deaths > 1
    assert sorted(cluster.claims()) == ["data-main-0"]


@pytest.mark.soak
def test_a_cluster_is_created_by_an_operator_that_dies_at_every_write(
    cluster: Cluster, reaper: Reaper
) -> None:
    cluster.create(replicas=3)
    reaper.kill_until(lambda: is_whole(cluster, 3))
    assert reaper.deaths > 10


@pytest.mark.soak
@pytest.mark.parametrize("passed", [0, 1, 2])
def test_a_cluster_is_scaled_by_an_operator_that_dies(
    cluster: Cluster, reaper: Reaper, passed: int
) -> None:
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=6, replicas=3)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    cluster.send("orders", *(str(number) for number in range(50)))
    cluster.scale(4)
    reaper.kill_until(lambda: is_whole(cluster, 4) and 3 in cluster.carrying(), passed=passed)
    cluster.scale(3)
    reaper.kill_until(lambda: is_whole(cluster, 3) and len(cluster.pods()) == 3, passed=passed)
    assert cluster.carrying() == {0, 1, 2}
    kept = [value for partition in range(6) for value in cluster.read("orders", partition)]
    assert sorted(kept, key=int) == [str(number) for number in range(50)]


@pytest.mark.soak
@pytest.mark.parametrize("passed", [0, 1])
def test_a_cluster_is_rolled_by_an_operator_that_dies(
    cluster: Cluster, reaper: Reaper, passed: int
) -> None:
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=3, replicas=3)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    clients = cluster.load("orders", partitions=3)
    before = {pod["metadata"]["uid"] for pod in cluster.pods().values()}
    cluster.change({"config": {"io.threads": 3}})

    def is_rolled() -> bool:
        now = {pod["metadata"]["uid"] for pod in cluster.pods().values()}
        return not before & now and is_whole(cluster, 3)

    reaper.kill_until(is_rolled, passed=passed)
    clients.go_on()
    clients.stop()
