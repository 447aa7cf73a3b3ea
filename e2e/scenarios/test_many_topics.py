"""A thousand topics at once, and peace afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from kubelet.emulator import Emulator
from suite import install
from suite.cluster import Cluster
from suite.waiting import until

COUNT = 1_000
READY_S = 120.0
MEMORY_BYTES = 250 << 20
WATCHED_S = 20.0
CORE_SHARE = 0.05
WRITES = frozenset({"create", "update", "patch", "delete"})


def operator_process(emulator: Emulator) -> psutil.Process:
    """The operator's process on this machine."""
    (pod,) = [
        run
        for node in emulator.control.nodes.all
        for run in node.runs.values()
        if run.pod["metadata"]["namespace"] == install.NAMESPACE
    ]
    (pid,) = pod.process_ids
    return psutil.Process(pid)


def ready_topics(cluster: Cluster) -> int:
    return sum(
        any(c["type"] == "Ready" and c["status"] == "True" for c in each["status"]["conditions"])
        for each in cluster.kube.list("Topic", cluster.namespace)
        if (each.get("status") or {}).get("conditions")
    )


@pytest.mark.soak
def test_a_thousand_topics_are_ready_in_time_and_then_nothing_is_written(
    cluster: Cluster, emulator: Emulator, record_property: Callable[[str, object], None]
) -> None:
    cluster.create(replicas=3)
    cluster.until_ready()
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        names = [f"topic-{number}" for number in range(COUNT)]
        list(pool.map(lambda name: cluster.topic(name, partitions=1, replicas=3), names))
    applied_s = time.monotonic() - began
    until("all are Ready", lambda: ready_topics(cluster) == COUNT, timeout_s=600)
    ready_s = time.monotonic() - began
    until("the cluster is Ready", lambda: cluster.is_ready())

    process = operator_process(emulator)
    seen, cpu = len(emulator.api.seen), sum(process.cpu_times()[:2])
    time.sleep(WATCHED_S)
    written = [
        each
        for each in list(emulator.api.seen)[seen:]
        if install.OPERATOR in each.user and each.verb in WRITES and each.resource != "leases"
    ]
    share = (sum(process.cpu_times()[:2]) - cpu) / WATCHED_S
    memory = process.memory_info().rss
    figures = (
        f"{COUNT} topics applied in {applied_s:.0f} s, Ready after {ready_s:.0f} s;"
        f" operator {memory >> 20} MB, {share:.1%} of a core at rest"
    )
    record_property("figures", figures)
    print(figures)
    assert written == []
    assert memory < MEMORY_BYTES, figures
    assert share < CORE_SHARE, figures
    assert ready_s < READY_S, figures
