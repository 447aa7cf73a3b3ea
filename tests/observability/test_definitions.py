"""Alerts and dashboards name metrics and labels that exist, in PromQL that parses."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from observability import alerts, dashboards
from observability.alert import Alert

ROOT = Path(__file__).parents[2]
FOUND = runpy.run_path(str(ROOT / "docs" / "metrics_in_code.py"))["metrics_in"]
METRICS = {
    each.name: each for folder in ("broker", "operator") for each in FOUND(ROOT / folder / "src")
}
FROM_SCRAPING = {"namespace", "cluster", "pod"}
OF_EVERY_PROCESS = {
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
}


def base(name: str) -> str:
    return re.sub(r"_(bucket|count|sum)$", "", name)


def known(metric: str) -> bool:
    return base(metric) in METRICS or metric in OF_EVERY_PROCESS


@pytest.mark.parametrize("alert", alerts.ALERTS, ids=lambda alert: alert.name)
def test_an_alert_names_what_exists(alert: Alert) -> None:
    promql_parser.parse(alert.expression)
    named = [alert.metric]
    if isinstance(alert.bound, str):
        named.append(alert.bound.partition(" * ")[2])
    for metric in named:
        assert known(metric), metric
        labels = set(METRICS[metric].labels) if metric in METRICS else set()
        asked = {*alert.by, *(alert.where or {})}
        assert asked - FROM_SCRAPING <= labels, f"{metric} has no label {asked - labels}"
    assert bool(alert.over) == (alert.metric.endswith("_total") or alert.over == "changes")
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary)) <= set(alert.by)


def test_names_of_alerts_are_different() -> None:
    names = [alert.name for alert in alerts.ALERTS]
    assert len(names) == len(set(names))


def queries(value: Any) -> list[str]:
    """All PromQL of a dashboard's JSON."""
    if isinstance(value, dict):
        own = [value["expr"]] if "expr" in value else []
        return own + [query for each in value.values() for query in queries(each)]
    if isinstance(value, list):
        return [query for each in value for query in queries(each)]
    return []


@pytest.mark.parametrize("dashboard", dashboards.ALL, ids=lambda each: each.uid)
def test_a_dashboard_shows_what_exists(dashboard: dashboards.Dashboard) -> None:
    text = json.dumps(dashboard.as_json())
    for metric in re.findall(r"\bheadrace_\w+", text):
        assert known(metric), metric
    for query in queries(dashboard.as_json()):
        promql_parser.parse(query.replace("$__rate_interval", "5m"))
    for _, listing in dashboard.variables:
        metric, where, label = re.fullmatch(
            r"label_values\((\w+)({.*})?, (\w+)\)", listing
        ).groups()  # type: ignore[union-attr]
        assert known(metric)
        labels = {*re.findall(r"(\w+)=~", where or ""), label} - FROM_SCRAPING
        assert labels <= set(METRICS[metric].labels)


def test_every_metric_of_brokers_that_tells_of_trouble_is_watched() -> None:
    """A new one of these kinds needs an alert, or a place in this list with a reason."""
    trouble = re.compile("offline|leaderless|suspect|refused|failures|full|isolated|under_")
    deliberate = {
        "headrace_topic_offline_partitions",  # by topic; the alert is by broker
        "headrace_replica_fetch_failures_total",  # these show as under-replicated if they last
        "headrace_replica_serve_failures_total",
        "headrace_isr_failures_total",
    }
    watched = {alert.metric for alert in alerts.ALERTS}
    missing = {name for name in METRICS if trouble.search(name)} - watched - deliberate
    assert missing == set()


def test_every_alert_has_a_test_that_makes_it_fire() -> None:
    here = Path(__file__).parent
    texts = "".join(file.read_text() for file in here.glob("test_*fire.py"))
    missing = {alert.name for alert in alerts.ALERTS if f'"{alert.name}"' not in texts}
    # Real brokers didn't let themselves be brought to it; the counter is tested with the rule.
    assert missing == {"HeadraceTruncationRefused"}
