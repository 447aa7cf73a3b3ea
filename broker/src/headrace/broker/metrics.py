"""What the broker counts, in Prometheus' conventions: base units, `_total`, bounded labels.

Counters of the hot path are plain ints on the partitions; `StateCollector` turns them into samples
when somebody scrapes, so that counting costs the hot path one addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters that are raised where things happen. One registry a broker, never the global one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "headrace_requests",
            "Requests answered (499: the client went away first).",
            ["method", "path", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "headrace_request_duration_seconds",
            "From a request's head to its answer; long polls wait on purpose.",
            ["method", "path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.connections_refused = Counter(
            "headrace_connections_refused",
            "Connections closed at once because connections.max were open.",
            registry=self.registry,
        )
        self.produce_rejected = Counter(
            "headrace_produce_rejected",
            "Batches that were not appended, by error code.",
            ["code"],
            registry=self.registry,
        )
        self.forwarded = Counter(
            "headrace_forwarded",
            "Requests, or parts of them, passed on to other brokers: answered, or failed because"
            " no answer came.",
            ["result"],
            registry=self.registry,
        )
        self.loop_stall = Gauge(
            "headrace_loop_stall_max_seconds",
            "Longest time that the event loop was late in the last minute.",
            registry=self.registry,
        )

    def request_timer(self, method: str, path: str) -> Callable[[int, float], None]:
        """A function that counts one request of this endpoint: `(status, seconds)`."""
        observe = self._seconds.labels(method, path).observe
        by_status: dict[int, Callable[[], None]] = {}

        def measure(status: int, seconds: float) -> None:
            count = by_status.get(status)
            if count is None:
                count = by_status[status] = self._requests.labels(method, path, str(status)).inc
            count()
            observe(seconds)

        return measure


@dataclass(slots=True)
class TopicSample:
    """A topic's sums over its partitions here, since the process started."""

    topic: str
    partitions: int = 0
    offline: int = 0
    size_bytes: int = 0
    bytes_in: int = 0
    records_in: int = 0
    batches_in: int = 0
    duplicates: int = 0
    bytes_out: int = 0


@dataclass(slots=True, kw_only=True)
class BrokerSample:
    """The broker's state in numbers."""

    state: str
    led_partitions: int
    offline_partitions: int
    open_files: int
    inflight_bytes: int
    throttled: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    storage_full: bool
    syncs: int
    recovering_remaining: int
    compactions: int
    compaction_failures: int
    compaction_bytes_read: int
    compaction_bytes_written: int
    compaction_records_removed: int
    compaction_seconds: float
    dirty_ratio_max: float
    is_controller: bool
    live_brokers: int
    leaderless_partitions: int
    suspect_partitions: int
    unreadable_records: int
    moving_partitions: int
    cordoned_brokers: int
    store_went_back: bool
    task_failures: Mapping[str, int]


_TOPIC_COUNTERS = (
    ("bytes_in", "headrace_topic_bytes_in", "Bytes of batches appended."),
    ("records_in", "headrace_topic_records_in", "Records appended."),
    ("batches_in", "headrace_topic_batches_in", "Batches appended."),
    ("duplicates", "headrace_topic_duplicate_batches", "Retries that were there already."),
    ("bytes_out", "headrace_topic_bytes_out", "Bytes of batches sent to readers."),
)
_TOPIC_GAUGES = (
    ("partitions", "headrace_topic_partitions", "Partitions on this broker."),
    ("offline", "headrace_topic_offline_partitions", "Partitions that can't be used here."),
    ("size_bytes", "headrace_topic_log_size_bytes", "Bytes of segments on this broker."),
)
_BROKER_GAUGES = (
    ("is_controller", "headrace_is_controller", "1 on the broker that keeps the cluster in order."),
    ("live_brokers", "headrace_live_brokers", "Brokers that this one takes for live, itself too."),
    (
        "leaderless_partitions",
        "headrace_leaderless_partitions",
        "Partitions of the cluster that nobody alive leads; the controller counts, others say 0.",
    ),
    (
        "suspect_partitions",
        "headrace_suspect_partitions",
        "Partitions whose record in the store is older than what is known, or gone.",
    ),
    (
        "unreadable_records",
        "headrace_unreadable_records",
        "Partitions whose record in the store can't be read: they are frozen.",
    ),
    (
        "moving_partitions",
        "headrace_moving_partitions",
        "Partitions on their way to other replicas or waiting for it; the controller counts.",
    ),
    ("cordoned_brokers", "headrace_cordoned_brokers", "Brokers that get no new replicas."),
    (
        "store_went_back",
        "headrace_store_went_back",
        "1 while the store is older than what this broker has seen: restored, or lost.",
    ),
    ("led_partitions", "headrace_led_partitions", "Partitions led."),
    ("offline_partitions", "headrace_offline_partitions", "Partitions that can't be used here."),
    ("open_files", "headrace_open_log_files", "Log files open."),
    ("inflight_bytes", "headrace_inflight_bytes", "Bytes of bodies and answers in memory."),
    ("disk_free_bytes", "headrace_disk_free_bytes", "Bytes free on the data volume."),
    ("disk_reserve_bytes", "headrace_disk_reserve_bytes", "Below so many free bytes writes stop."),
    ("storage_full", "headrace_storage_full", "1 while writes are refused for the reserve."),
    ("recovering_remaining", "headrace_recovering_partitions", "Partitions still to check."),
    (
        "dirty_ratio_max",
        "headrace_log_dirty_ratio_max",
        "Largest share of a log's closed segments that was never compacted.",
    ),
)
_BROKER_COUNTERS = (
    ("throttled", "headrace_throttled_requests", "Requests refused with 429."),
    ("syncs", "headrace_log_syncs", "fdatasync calls of logs."),
    ("compactions", "headrace_compactions", "Passes of compaction and expiry that ended well."),
    ("compaction_failures", "headrace_compaction_failures", "Passes that couldn't be finished."),
    ("compaction_bytes_read", "headrace_compaction_read_bytes", "Bytes read by passes."),
    ("compaction_bytes_written", "headrace_compaction_written_bytes", "Bytes written by passes."),
    ("compaction_records_removed", "headrace_compaction_removed_records", "Records removed."),
    ("compaction_seconds", "headrace_compaction_seconds", "Time that passes took."),
)


class StateCollector(Collector):
    """Reads the broker's state when scraped."""

    def __init__(
        self,
        broker: Callable[[], BrokerSample],
        topics: Callable[[], Iterator[TopicSample]],
        states: tuple[str, ...],
    ) -> None:
        self._broker, self._topics, self._states = broker, topics, states

    def collect(self) -> Iterator[Metric]:
        """The samples of this moment."""
        broker = self._broker()
        state = GaugeMetricFamily("headrace_state", "1 for the present state.", labels=["state"])
        for name in self._states:
            state.add_metric([name], float(name == broker.state))
        yield state
        for field, name, text in _BROKER_GAUGES:
            yield GaugeMetricFamily(name, text, value=float(getattr(broker, field)))
        for field, name, text in _BROKER_COUNTERS:
            yield CounterMetricFamily(name, text, value=float(getattr(broker, field)))
        failures = CounterMetricFamily(
            "headrace_background_failures",
            "Failures of background tasks; each runs again by itself. Look at the log.",
            labels=["task"],
        )
        for task, count in broker.task_failures.items():
            failures.add_metric([task], float(count))
        yield failures
        topics = list(self._topics())
        for field, name, text in _TOPIC_GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["topic"])
            for topic in topics:
                gauge.add_metric([topic.topic], float(getattr(topic, field)))
            yield gauge
        for field, name, text in _TOPIC_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["topic"])
            for topic in topics:
                counter.add_metric([topic.topic], float(getattr(topic, field)))
            yield counter
