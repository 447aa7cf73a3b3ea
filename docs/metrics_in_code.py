"""Finds every metric that the code makes, by reading it: docs/generate.py writes the page of them.

A metric is made by a call such as `Gauge("headrace_x", "What it is.", ["label"])`, or stands in a
table of `(field, "headrace_x", "What it is.")` that is called `..._GAUGES` or `..._COUNTERS`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KINDS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
}


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A metric; counters with the `_total` that Prometheus sees."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


def metrics_in(root: Path) -> list[Found]:
    """All below a folder, by name."""
    return sorted({each for file in root.rglob("*.py") for each in _in_file(file)})


def _in_file(file: Path) -> Iterator[Found]:
    text = file.read_text()
    if "headrace_" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield from _of_table(node.targets[0].id, node.value)


def _of_call(call: ast.Call) -> Iterator[Found]:
    kind = _KINDS.get(getattr(call.func, "id", ""))
    if kind is None or len(call.args) < 2:
        return
    name, text = (_constant(each) for each in call.args[:2])
    if not name or not name.startswith("headrace_"):
        return
    lists = [*call.args[2:], *(each.value for each in call.keywords if each.arg == "labels")]
    labels = next((each for each in lists if isinstance(each, ast.List)), None)
    yield _found(
        name, kind, text or "", tuple(_constant(e) or "" for e in labels.elts) if labels else ()
    )


def _of_table(table: str, value: ast.expr) -> Iterator[Found]:
    kind = "counter" if table.endswith("_COUNTERS") else "gauge"
    if not table.endswith(("_COUNTERS", "_GAUGES")) or not isinstance(value, ast.Tuple):
        return
    labels = ("topic",) if "TOPIC" in table else ()
    for row in value.elts:
        if isinstance(row, ast.Tuple) and len(row.elts) == 3:
            _, name, text = (_constant(each) for each in row.elts)
            yield _found(name or "", kind, text or "", labels)


def _found(name: str, kind: str, text: str, labels: tuple[str, ...]) -> Found:
    return Found(name + "_total" * (kind == "counter"), kind, text, labels)


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
