"""Lag, from a progress as Spark gives it; no session needed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

pytest.importorskip("pyspark", reason="Spark isn't installed")

from pyspark.sql.streaming.listener import StreamingQueryProgress

from pyspark_headrace import LagExporter, lag

ID = "0d6f4b2e-8f6b-4c0e-9d57-5a4fb1a3a111"


def progress_of(done: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """What a query says after a micro-batch."""
    source = {"description": "x", "startOffset": {}, "endOffset": done, "latestOffset": seen}
    other = {"description": "rate", "startOffset": 1, "endOffset": 2, "latestOffset": None}
    sizes = {"numInputRows": 7, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    return {
        "id": ID, "runId": ID, "name": "q", "timestamp": "t", "batchId": 1, "batchDuration": 250,
        "durationMs": {}, "stateOperators": [], "sink": {"description": "s", "numOutputRows": 1},
        "sources": [{**source, **sizes}, {**other, **sizes}], **sizes,
    }  # fmt: skip


DONE = {"t": {"id": "x", "0": 5, "1": 9}}
SEEN = {"t": {"id": "x", "0": 8, "1": 9, "2": 4}}
LAG = {("t", 0): 3, ("t", 1): 0, ("t", 2): 4}


def test_lag_is_what_was_seen_and_not_done() -> None:
    progress = progress_of(DONE, SEEN)
    assert lag(progress) == LAG
    assert lag(json.dumps(progress)) == LAG
    assert lag(progress_of({"t": {"0": 1}}, {"t": {"0": 5}})) == {}


def test_the_exporter_follows_a_query_from_start_to_end() -> None:
    registry = CollectorRegistry()
    exporter = LagExporter(registry)

    def shown(partition: str) -> float | None:
        labels = {"query": "q", "topic": "t", "partition": partition}
        return registry.get_sample_value("headrace_spark_lag_records", labels)

    def told(done: dict[str, Any], seen: dict[str, Any]) -> Any:
        progress = StreamingQueryProgress.fromJson(progress_of(done, seen))
        return SimpleNamespace(progress=progress)

    exporter.onQueryStarted(SimpleNamespace(id=ID, name="q"))  # type: ignore[arg-type]
    exporter.onQueryProgress(told(DONE, SEEN))
    assert (shown("0"), shown("2")) == (3.0, 4.0)
    assert registry.get_sample_value("headrace_spark_batch_seconds", {"query": "q"}) == 0.25
    exporter.onQueryProgress(told(DONE, DONE))
    assert (shown("0"), shown("2")) == (0.0, None)
    exporter.onQueryTerminated(SimpleNamespace(id=ID))  # type: ignore[arg-type]
    exporter.onQueryTerminated(SimpleNamespace(id=ID))  # type: ignore[arg-type]
    assert shown("0") is None
    assert registry.get_sample_value("headrace_spark_batch_rows", {"query": "q"}) is None
