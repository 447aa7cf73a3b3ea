"""How far a query is behind: from its progress, for people, and for Prometheus by a listener.

Spark shows no metrics of Python sources, but each progress holds the offsets done and those seen
last. Nothing here asks the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

Partition = tuple[str, int]


def lag(progress: StreamingQueryProgress | Mapping[str, Any] | str) -> dict[Partition, int]:
    """Records that a query had not read by the end of a micro-batch, by topic and partition, over
    all of its Headrace sources. `progress` is `query.lastProgress` or its JSON; of the sources of
    other formats nothing is told.

        sum(lag(query.lastProgress).values())
    """
    if isinstance(progress, StreamingQueryProgress):
        progress = progress.json
    found = json.loads(progress) if isinstance(progress, str) else progress
    behind: dict[Partition, int] = {}
    for source in found.get("sources", ()):
        done, seen = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for where, offset in seen.items():
            if where in done:
                behind[where] = behind.get(where, 0) + max(offset - done[where], 0)
            else:
                behind[where] = behind.get(where, 0) + offset
    return behind


def _offsets(stored: Any) -> dict[Partition, int]:
    """Offsets of a Headrace source: recognised by the topic's id."""
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except ValueError:
            return {}
    if not isinstance(stored, Mapping):
        return {}
    return {
        (topic, int(number)): offset
        for topic, inner in stored.items()
        if isinstance(inner, Mapping) and "id" in inner
        for number, offset in inner.items()
        if number.isdecimal()
    }


class LagExporter(StreamingQueryListener):
    """Keeps `headrace_spark_lag_records{query, topic, partition}` and a few figures of each
    micro-batch up to date, on the driver:

        prometheus_client.start_http_server(9425)
        spark.streams.addListener(LagExporter())

    `query` is the query's name, or its id. A query's figures go when it ends.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._lag = Gauge(
            "headrace_spark_lag_records",
            "Records not yet read at the end of the last micro-batch",
            ["query", "topic", "partition"],
            registry=registry,
        )
        self._rows = Gauge(
            "headrace_spark_batch_rows",
            "Rows of the last micro-batch",
            ["query"],
            registry=registry,
        )
        self._seconds = Gauge(
            "headrace_spark_batch_seconds",
            "Duration of the last micro-batch",
            ["query"],
            registry=registry,
        )
        self._names: dict[str, str] = {}
        self._shown: dict[str, set[Partition]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query begins."""
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch is done, or nothing has come for a while."""
        progress = event.progress
        query = self._names.setdefault(str(progress.id), progress.name or str(progress.id))
        behind = lag(progress)
        for topic, partition in self._shown.get(query, set()) - behind.keys():
            self._lag.remove(query, topic, str(partition))
        for (topic, partition), count in behind.items():
            self._lag.labels(query, topic, str(partition)).set(count)
        self._shown[query] = set(behind)
        self._rows.labels(query).set(progress.numInputRows)
        self._seconds.labels(query).set(progress.batchDuration / 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to read: the figures stay."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query ends; its figures go."""
        query = self._names.pop(str(event.id), str(event.id))
        for topic, partition in self._shown.pop(query, set()):
            self._lag.remove(query, topic, str(partition))
        for gauge in (self._rows, self._seconds):
            gauge.remove(query)
