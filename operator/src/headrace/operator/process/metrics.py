"""The operator's numbers for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from headrace.operator.process.work_queue import Key, Observer

States = Callable[[], Mapping[tuple[str, str], int]]
"""Number of resources by kind and state: ready, not_ready, unknown, paused."""


class Metrics(Observer):
    """All metrics of one process. `states` is asked when somebody reads them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.states: States = dict
        self._passes = Counter(
            "headrace_operator_reconciliations", "Passes over resources.",
            ["kind", "result"], registry=self.registry,
        )  # fmt: skip
        self._failures = Counter(
            "headrace_operator_failures", "Passes that failed, by error.",
            ["kind", "error"], registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "headrace_operator_reconciliation_duration_seconds", "How long passes take.",
            ["kind"], registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        )  # fmt: skip
        self._running = Gauge(
            "headrace_operator_reconciliation_start_time_seconds",
            "When the pass that runs now began; one that is long ago hangs.",
            ["kind", "namespace", "name"], registry=self.registry,
        )  # fmt: skip
        self._last = Gauge(
            "headrace_operator_last_success_time_seconds", "When a pass last ended well.",
            ["kind"], registry=self.registry,
        )  # fmt: skip
        self._requests = Counter(
            "headrace_operator_kubernetes_requests",
            "Requests to the Kubernetes API; code 0: no answer.",
            ["verb", "kind", "code"], registry=self.registry,
        )  # fmt: skip
        self._watches = Counter(
            "headrace_operator_watch_restarts", "Times that watches ended and were begun anew.",
            registry=self.registry,
        )  # fmt: skip
        self._leads = Gauge(
            "headrace_operator_leads", "1 while this process is the one that works.",
            registry=self.registry,
        )  # fmt: skip
        self.registry.register(_Resources(self))

    def began(self, key: Key) -> None:
        """A pass begins."""
        self._running.labels(*key).set(time.time())

    def ended(self, key: Key, *, error: BaseException | None, seconds: float) -> None:
        """A pass is over."""
        self._running.remove(*key)
        self._seconds.labels(key.kind).observe(seconds)
        self._passes.labels(key.kind, "failed" if error else "ok").inc()
        if error is not None:
            cause = error.__cause__ or error
            self._failures.labels(key.kind, type(cause).__name__).inc()
        else:
            self._last.labels(key.kind).set(time.time())

    def requested(self, verb: str, kind: str, status: int) -> None:
        """A request to the Kubernetes API is over."""
        self._requests.labels(verb, kind, str(status)).inc()

    def watches_ended(self) -> None:
        """Watches are begun anew."""
        self._watches.inc()

    def leads(self, value: bool) -> None:
        """Whether this process works."""
        self._leads.set(value)


class _Resources:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """The resources by state."""
        family = GaugeMetricFamily(
            "headrace_operator_resources", "Resources by state.", labels=["kind", "state"]
        )
        for (kind, state), count in sorted(self._metrics.states().items()):
            family.add_metric([kind, state], count)
        yield family
