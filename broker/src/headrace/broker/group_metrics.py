"""Groups in Prometheus' form. Each group is told by its coordinator alone, so sums over brokers are
right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.lag import GroupLag


class GroupCollector(Collector):
    """Samples when somebody scrapes."""

    def __init__(self, coordinator: GroupCoordinator, lag: GroupLag) -> None:
        self._coordinator = coordinator
        self._lag = lag

    def collect(self) -> Iterator[Metric]:
        """Lag by group and topic, members by group."""
        lag = GaugeMetricFamily(
            "headrace_group_lag_records",
            "Records between what the group has committed and the ends of its partitions.",
            labels=["group", "topic"],
        )
        unknown = GaugeMetricFamily(
            "headrace_group_lag_unknown_partitions",
            "Committed partitions whose end isn't known here; they aren't in the lag.",
            labels=["group", "topic"],
        )
        for sample in self._lag.samples():
            lag.add_metric([sample.group, sample.topic], sample.lag)
            unknown.add_metric([sample.group, sample.topic], sample.unknown)
        members = GaugeMetricFamily(
            "headrace_group_members", "Members of the group.", labels=["group"]
        )
        groups: Counter[str] = Counter()
        for name, group, _ in self._coordinator.groups():
            members.add_metric([name], len(group.members))
            groups["with_members" if group.members else "empty"] += 1
        count = GaugeMetricFamily(
            "headrace_groups", "Groups coordinated by this broker.", labels=["state"]
        )
        for state, number in sorted(groups.items()):
            count.add_metric([state], number)
        yield from (lag, unknown, members, count)
