"""Replication's numbers for Prometheus, read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.broker.partition.manager import PartitionManager
from headrace.broker.replication.replication import Replication


@dataclass(slots=True)
class Health:
    """Of the partitions on this broker at this moment."""

    followed: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    isolated: int = 0
    lag_records_max: int = 0


def health_of(manager: PartitionManager) -> Health:
    """Counts over all partitions here; what is led is counted by its leader alone."""
    found = Health()
    for partition in manager:
        found.followed += partition.following is not None
        replicas = partition.replicas
        if replicas is None:
            continue
        record, end = replicas.record, partition.log.end_offset
        found.under_replicated += len(record.isr) < len(record.replicas)
        found.under_min_isr += not replicas.has_minimum
        found.isolated += partition.isolated
        for known in replicas.followers.values():
            found.lag_records_max = max(found.lag_records_max, end - known.offset)
    return found


_GAUGES = (
    ("followed", "headrace_followed_partitions", "Partitions copied from other brokers."),
    (
        "under_replicated",
        "headrace_under_replicated_partitions",
        "Partitions led here with fewer in-sync replicas than replicas.",
    ),
    (
        "under_min_isr",
        "headrace_under_min_isr_partitions",
        "Partitions led here with too few in-sync replicas to commit anything.",
    ),
    (
        "isolated",
        "headrace_isolated_partitions",
        "Partitions that refuse writes: neither followers nor the store were heard of.",
    ),
    (
        "lag_records_max",
        "headrace_replica_lag_records_max",
        "The most records that a follower is behind in a partition led here.",
    ),
)
_COUNTERS = (
    ("isr_shrinks", "headrace_isr_shrinks", "Changes that took replicas out of an ISR."),
    ("isr_expands", "headrace_isr_expands", "Changes that took replicas into an ISR."),
    (
        "unknown_outcomes",
        "headrace_isr_unknown_outcomes",
        "Changes of ISRs of which the store didn't say what became of them.",
    ),
    (
        "isr_failures",
        "headrace_isr_failures",
        "Changes of ISRs that a fault here kept from being made; look at the log.",
    ),
    ("fetches", "headrace_replica_fetches", "Requests of followers answered."),
    ("bytes_out", "headrace_replica_bytes_out", "Bytes of batches sent to followers."),
    ("bytes_in", "headrace_replica_bytes_in", "Bytes of batches copied from leaders."),
    ("fetch_failures", "headrace_replica_fetch_failures", "Copying that failed, and is tried on."),
    (
        "serve_failures",
        "headrace_replica_serve_failures",
        "Partitions that followers couldn't be answered for by a fault here; look at the log.",
    ),
    ("truncations", "headrace_replica_truncations", "Logs cut to follow a new leader."),
    (
        "truncations_refused",
        "headrace_replica_truncations_refused",
        "Leaders that contradict committed records; the partition is offline here: look at it.",
    ),
)


class ReplicationCollector(Collector):
    """Samples of one broker's replication."""

    def __init__(self, replication: Replication, manager: PartitionManager) -> None:
        self._replication = replication
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        """The samples of this moment."""
        health = health_of(self._manager)
        for field, name, text in _GAUGES:
            yield GaugeMetricFamily(name, text, value=float(getattr(health, field)))
        stats = self._replication.stats
        for field, name, text in _COUNTERS:
            yield CounterMetricFamily(name, text, value=float(getattr(stats, field)))
        yield CounterMetricFamily(
            "headrace_replicas_replaced",
            "Broken logs that were set aside and copied anew.",
            value=float(self._manager.replaced),
        )
