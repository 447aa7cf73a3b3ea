"""Grafana dashboards: one for the cluster, its topics, its groups, and the operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 24
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_OF_CLUSTER = 'namespace=~"$namespace",cluster=~"$cluster"'


@dataclass(frozen=True, slots=True)
class Query:
    """A line of a panel: PromQL and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture. `unit` is one of Grafana's."""

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: str = "short"
    stat: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels. `variables`: names with the query that lists their values."""

    uid: str
    title: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]

    def as_json(self) -> dict[str, object]:
        """What Grafana reads."""
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["headrace"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [_SOURCE_VARIABLE, *map(_variable, self.variables)]},
            "panels": [_panel(number, panel) for number, panel in enumerate(self.panels)],
        }


_SOURCE_VARIABLE: dict[str, object] = {
    "name": "source",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
}


def _variable(variable: tuple[str, str]) -> dict[str, object]:
    name, query = variable
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _panel(number: int, panel: Panel) -> dict[str, object]:
    place = divmod(number * _WIDTH, _COLUMNS)
    return {
        "id": number + 1,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": place[1], "y": place[0] * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for at, query in enumerate(panel.queries)
        ],
    }


def _line(expression: str, legend: str) -> tuple[Query, ...]:
    return (Query(expression, legend),)


def _rate(metric: str, by: str, where: str = _OF_CLUSTER) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def _sum(metric: str, by: str, where: str = _OF_CLUSTER) -> str:
    return f"sum by ({by}) ({metric}{{{where}}})"


def _max(metric: str, by: str, where: str = _OF_CLUSTER) -> str:
    return f"max by ({by}) ({metric}{{{where}}})"


_CLUSTER_VARIABLES = (
    ("namespace", "label_values(headrace_state, namespace)"),
    ("cluster", 'label_values(headrace_state{namespace=~"$namespace"}, cluster)'),
)
_PRODUCE = _OF_CLUSTER + ',path="/v1/produce"'
_FETCH = _OF_CLUSTER + ',path="/v1/fetch"'


def _quantile(share: float, where: str) -> str:
    inner = _rate("headrace_request_duration_seconds_bucket", "le, pod", where)
    return f"histogram_quantile({share}, {inner})"


CLUSTER = Dashboard(
    "headrace-cluster",
    "Headrace: cluster",
    _CLUSTER_VARIABLES,
    (
        Panel(
            "Partitions in trouble",
            "All zero in a healthy cluster.",
            (
                Query(_max("headrace_leaderless_partitions", "cluster"), "no leader"),
                Query(_sum("headrace_under_min_isr_partitions", "cluster"), "under min ISR"),
                Query(_sum("headrace_under_replicated_partitions", "cluster"), "under-replicated"),
                Query(_sum("headrace_offline_partitions", "cluster"), "logs that can't be used"),
            ),
            stat=True,
        ),
        Panel(
            "Brokers",
            "Alive as they see each other; controllers are one.",
            (
                Query(_max("headrace_live_brokers", "cluster"), "alive"),
                Query(_sum("headrace_is_controller", "cluster"), "controllers"),
                Query(_sum("headrace_recovering_partitions", "cluster"), "logs being checked"),
            ),
            stat=True,
        ),
        Panel(
            "Bytes in from producers",
            "Batches as they were sent, compressed.",
            _line(_rate("headrace_topic_bytes_in_total", "pod"), "{{pod}}"),
            "Bps",
        ),
        Panel(
            "Bytes out to readers",
            "Batches as they are stored.",
            _line(_rate("headrace_topic_bytes_out_total", "pod"), "{{pod}}"),
            "Bps",
        ),
        Panel(
            "Bytes copied from leaders",
            "Replication.",
            _line(_rate("headrace_replica_bytes_in_total", "pod"), "{{pod}}"),
            "Bps",
        ),
        Panel(
            "Furthest follower",
            "Records that the slowest follower of a leader is behind.",
            _line(_max("headrace_replica_lag_records_max", "pod"), "{{pod}}"),
        ),
        Panel(
            "Produce, 99th percentile",
            "From a request's head to its answer, replication included.",
            _line(_quantile(0.99, _PRODUCE), "{{pod}}"),
            "s",
        ),
        Panel(
            "Fetch, 99th percentile",
            "Long polls wait on purpose: up to their longest wait is no trouble.",
            _line(_quantile(0.99, _FETCH), "{{pod}}"),
            "s",
        ),
        Panel(
            "Requests by status",
            "429 is back-pressure, 5xx a broker's own trouble.",
            _line(_rate("headrace_requests_total", "status"), "{{status}}"),
            "reqps",
        ),
        Panel(
            "Batches refused",
            "By error code (docs/errors.md).",
            _line(_rate("headrace_produce_rejected_total", "code"), "{{code}}"),
            "cps",
        ),
        Panel(
            "In-sync replicas: changes",
            "A broker that comes and goes shows here.",
            (
                Query(_rate("headrace_isr_shrinks_total", "pod"), "{{pod}} shrinks"),
                Query(_rate("headrace_isr_expands_total", "pod"), "{{pod}} expands"),
            ),
            "cps",
        ),
        Panel(
            "Leaders",
            "Even, once preferred leaders have returned.",
            _line(_sum("headrace_led_partitions", "pod"), "{{pod}}"),
        ),
        Panel(
            "Free disk",
            "Writes stop at the reserve.",
            (
                Query(_max("headrace_disk_free_bytes", "pod"), "{{pod}}"),
                Query(_max("headrace_disk_reserve_bytes", "cluster"), "reserve"),
            ),
            "bytes",
        ),
        Panel(
            "Longest stall",
            "How late the event loop was at worst in the last minute.",
            _line(_max("headrace_loop_stall_max_seconds", "pod"), "{{pod}}"),
            "s",
        ),
        Panel(
            "CPU",
            "A broker uses one core.",
            _line(_rate("process_cpu_seconds_total", "pod"), "{{pod}}"),
            "percentunit",
        ),
        Panel(
            "Memory",
            "Resident.",
            _line(_max("process_resident_memory_bytes", "pod"), "{{pod}}"),
            "bytes",
        ),
        Panel(
            "Compaction: bytes read and written",
            "What it reads and what is left of it.",
            (
                Query(_rate("headrace_compaction_read_bytes_total", "cluster"), "read"),
                Query(_rate("headrace_compaction_written_bytes_total", "cluster"), "written"),
            ),
            "Bps",
        ),
        Panel(
            "Background failures",
            "By task; the log has the causes.",
            _line(_rate("headrace_background_failures_total", "pod, task"), "{{pod}} {{task}}"),
            "cps",
        ),
    ),
)

_OF_TOPIC = _OF_CLUSTER + ',topic=~"$topic"'

TOPICS = Dashboard(
    "headrace-topics",
    "Headrace: topics",
    (
        *_CLUSTER_VARIABLES,
        ("topic", f"label_values(headrace_topic_partitions{{{_OF_CLUSTER}}}, topic)"),
    ),
    (
        Panel(
            "Records in",
            "Appended by leaders.",
            _line(_rate("headrace_topic_records_in_total", "topic", _OF_TOPIC), "{{topic}}"),
            "cps",
        ),
        Panel(
            "Bytes in",
            "Appended by leaders.",
            _line(_rate("headrace_topic_bytes_in_total", "topic", _OF_TOPIC), "{{topic}}"),
            "Bps",
        ),
        Panel(
            "Bytes out",
            "To readers.",
            _line(_rate("headrace_topic_bytes_out_total", "topic", _OF_TOPIC), "{{topic}}"),
            "Bps",
        ),
        Panel(
            "Records a batch",
            "Few: producers that send one by one; batches cost, records don't.",
            _line(
                f"{_rate('headrace_topic_records_in_total', 'topic', _OF_TOPIC)} / "
                f"{_rate('headrace_topic_batches_in_total', 'topic', _OF_TOPIC)}",
                "{{topic}}",
            ),
        ),
        Panel(
            "Size on disk",
            "All replicas.",
            _line(_sum("headrace_topic_log_size_bytes", "topic", _OF_TOPIC), "{{topic}}"),
            "bytes",
        ),
        Panel(
            "Retries that were there already",
            "What idempotence saved.",
            _line(_rate("headrace_topic_duplicate_batches_total", "topic", _OF_TOPIC), "{{topic}}"),
            "cps",
        ),
        Panel(
            "Replicas",
            "And those that can't be used.",
            (
                Query(_sum("headrace_topic_partitions", "topic", _OF_TOPIC), "{{topic}}"),
                Query(
                    _sum("headrace_topic_offline_partitions", "topic", _OF_TOPIC),
                    "{{topic}} offline",
                ),
            ),
        ),
    ),
)

_OF_GROUP = _OF_CLUSTER + ',group=~"$group"'

GROUPS = Dashboard(
    "headrace-groups",
    "Headrace: consumer groups",
    (
        *_CLUSTER_VARIABLES,
        ("group", f"label_values(headrace_group_members{{{_OF_CLUSTER}}}, group)"),
    ),
    (
        Panel(
            "Lag",
            "Records between what is committed and the ends.",
            _line(_max("headrace_group_lag_records", "group", _OF_GROUP), "{{group}}"),
        ),
        Panel(
            "Members",
            "Each change moves partitions.",
            _line(_max("headrace_group_members", "group", _OF_GROUP), "{{group}}"),
        ),
        Panel(
            "Groups by state",
            "Of the whole cluster.",
            _line(_sum("headrace_groups", "state"), "{{state}}"),
        ),
        Panel(
            "Partitions whose end isn't known",
            "They are missing in the lag: their leaders don't answer the coordinator.",
            _line(_sum("headrace_group_lag_unknown_partitions", "group", _OF_GROUP), "{{group}}"),
        ),
    ),
)

_OPERATOR = 'namespace=~"$namespace"'

OPERATOR = Dashboard(
    "headrace-operator",
    "Headrace: operator",
    (("namespace", "label_values(headrace_operator_leads, namespace)"),),
    (
        Panel(
            "Resources",
            "By kind and state.",
            _line("sum by (kind, state) (headrace_operator_resources)", "{{kind}} {{state}}"),
        ),
        Panel(
            "Who works",
            "One of them.",
            _line(_max("headrace_operator_leads", "pod", _OPERATOR), "{{pod}}"),
        ),
        Panel(
            "Passes",
            "Over resources, by result.",
            _line(
                "sum by (kind, result) (rate(headrace_operator_reconciliations_total"
                "[$__rate_interval]))",
                "{{kind}} {{result}}",
            ),
            "cps",
        ),
        Panel(
            "How long passes take",
            "99th percentile.",
            _line(
                "histogram_quantile(0.99, sum by (le, kind) (rate("
                "headrace_operator_reconciliation_duration_seconds_bucket[$__rate_interval])))",
                "{{kind}}",
            ),
            "s",
        ),
        Panel(
            "Failures",
            "By error; the log has the causes.",
            _line(
                "sum by (kind, error) (rate(headrace_operator_failures_total[$__rate_interval]))",
                "{{kind}} {{error}}",
            ),
            "cps",
        ),
        Panel(
            "Requests to the Kubernetes API",
            "None for what is at rest, beside the Lease.",
            _line(
                "sum by (verb, kind, code) (rate(headrace_operator_kubernetes_requests_total"
                "[$__rate_interval]))",
                "{{verb}} {{kind}} {{code}}",
            ),
            "reqps",
        ),
        Panel(
            "Longest pass under way",
            "Its age.",
            _line(
                "max by (kind, name) (time() - headrace_operator_reconciliation_start_time_seconds)",
                "{{kind}} {{name}}",
            ),
            "s",
        ),
    ),
)

ALL: Sequence[Dashboard] = (CLUSTER, TOPICS, GROUPS, OPERATOR)
"""All of them; their uid is their file's name."""
