"""Rows to the cluster from an executor: the seam where staged transactions come in.

A sink opens a `Delivery` for each task, gives it record batches, and ends it with a `Written`, that
travels to the driver; there all of a write's messages are committed or aborted together. `Direct`
sends at once: at least once, with producers that are idempotent by themselves, so that only a
repeated task or micro-batch repeats records. What a transaction needs to know of a task (owner,
sequence, task, attempt) is in `Identity` already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from headrace.sdk import sync
from headrace.sdk.connections import TokenFile
from headrace.sdk.core.partitioning import KeyPartitions
from headrace.spark.core.options import WriteOptions
from headrace.spark.core.rows import Target, by_key, chosen, group_rows

KEYS_REMEMBERED = 50_000
"""Keys of a task whose partition is remembered: hashing one costs as much as all else of a row."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: `owner` and `seq` name the write (a stream: query id and batch id; a batch: the
    options, or nothing), the others the task's try."""

    owner: str | None
    seq: int | None
    task: int
    attempt: int


@dataclass
class Written(WriterCommitMessage):
    """What a task has sent."""

    identity: Identity
    records: int
    size_bytes: int


class Delivery(Protocol):
    """One task's way to the cluster."""

    def send(self, batch: pa.RecordBatch) -> None:
        """Hands over rows."""

    def finish(self) -> Written:
        """All rows are safe (for `Direct`: acknowledged).

        Raises:
            HeadraceError: some are not.
        """

    def give_up(self) -> None:
        """The task has failed; what is left of it doesn't matter."""


def identity(options: WriteOptions) -> Identity:
    """The identity of the task that runs this. Spark hands a stream's query and batch to its tasks
    as local properties only (a test watches that it still does)."""
    context = TaskContext.get()
    if context is None:
        return Identity(options.owner, options.seq, 0, 0)
    owner, seq = options.owner, options.seq
    if owner is None:
        owner = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        seq = None if batch is None else int(batch)
    return Identity(owner, seq, context.partitionId(), context.attemptNumber())


class Direct:
    """Sends rows as they come. One call to the cluster is under way while the next rows are made
    ready; never two, so that the rows of a partition stay in their order."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._producer = _producer(options)
        self._identity = identity(options)
        self._worker = ThreadPoolExecutor(1, "headrace-sink")
        self._under_way: Future[None] | None = None
        self._by_key: dict[str, KeyPartitions] = {}
        self._records = 0
        self._size_bytes = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """See `Delivery.send`."""
        columns = {
            name: _listed(name, batch.column(index))
            for index, name in enumerate(batch.schema.names)
            if name in ("key", "value", "headers", "topic", "partition", "timestamp")
        }
        self._records += batch.num_rows
        self._size_bytes += batch.nbytes
        targets = group_rows(
            self._options.topic or columns["topic"] or [],
            columns.get("partition"),
            batch.num_rows,
        )
        self._wait()
        self._under_way = self._worker.submit(self._send_all, targets, columns)

    def _send_all(
        self, targets: dict[Target, list[int] | None], columns: dict[str, Sequence[Any] | None]
    ) -> None:
        for (topic, partition), indexes in targets.items():
            keys = columns.get("key")
            if partition is not None or keys is None or columns.get("headers") is not None:
                self._send_some(topic, partition, indexes, columns)
                continue
            # Sorted by partition here, rows need no more work one by one.
            rows = range(len(keys)) if indexes is None else indexes
            for number, those in by_key(keys, rows, self._partitions(topic)).items():
                self._send_some(topic, number, those, columns)

    def _partitions(self, topic: str) -> KeyPartitions:
        """Key → partition, by what the producer knows of the topic."""
        found = self._by_key.get(topic)
        if found is None:
            count = len(self._producer.partitions_for(topic))
            found = self._by_key[topic] = KeyPartitions(count, KEYS_REMEMBERED)
        return found

    def _send_some(
        self,
        topic: str,
        partition: int | None,
        indexes: list[int] | None,
        columns: dict[str, Sequence[Any] | None],
    ) -> None:
        self._producer.send_many(
            topic,
            chosen(columns["value"], indexes) or (),
            keys=chosen(columns.get("key"), indexes),
            headers=chosen(columns.get("headers"), indexes),
            timestamps_ms=chosen(columns.get("timestamp"), indexes),
            partition=partition,
        )

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def finish(self) -> Written:
        """See `Delivery.finish`."""
        self._wait()
        self._worker.shutdown()
        return Written(self._identity, self._records, self._size_bytes)

    def give_up(self) -> None:
        """See `Delivery.give_up`. The producer goes too: what it still holds isn't wanted."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        _forget(self._options, self._producer)


def _listed(name: str, column: pa.Array) -> Sequence[Any] | None:
    """A column as the producer takes it; None if it holds nothing."""
    if column.null_count == len(column) and name != "value":
        return None if name != "topic" else [None] * len(column)
    if name in ("key", "value"):
        column = column.cast(pa.binary())
    if name == "timestamp":
        milliseconds = pa.timestamp("ms", tz=column.type.tz)
        column = column.cast(milliseconds, safe=False).cast(pa.int64())
    if name == "headers":
        return [
            None if row is None else {each["key"]: each["value"] for each in row}
            for row in column.to_pylist()
        ]
    listed: Sequence[Any] = column.to_pylist()
    return listed


_lock = threading.Lock()
_producers: dict[WriteOptions, sync.Producer] = {}
_parents: list[dict[WriteOptions, sync.Producer]] = []
"""Producers that came along through a fork belong to the parent; kept so that they are not
collected here."""


def _producer(options: WriteOptions) -> sync.Producer:
    """The process's producer for these options: the next task finds its connections open."""
    with _lock:
        found = _producers.get(options)
        if found is None:
            connect = options.connect
            found = _producers[options] = sync.Producer(
                connect.bootstrap,
                acks=options.acks,
                linger_ms=options.linger_ms,
                batch_bytes=options.batch_bytes,
                compression=options.compression,
                delivery_timeout=options.delivery_timeout_ms / 1000,
                client_id=connect.client_id,
                credentials=None if connect.token_path is None else TokenFile(connect.token_path),
                route=connect.route,
                request_timeout=connect.request_timeout_ms / 1000,
                connect_timeout=connect.connect_timeout_ms / 1000,
            )
        return found


def _forget(options: WriteOptions, producer: sync.Producer) -> None:
    with _lock:
        if _producers.get(options) is producer:
            del _producers[options]
    threading.Thread(target=_close, args=(producer,), daemon=True).start()


def _close(producer: sync.Producer) -> None:
    try:
        producer.close()
    except Exception:
        return  # What it could not deliver has failed the task already.


def _after_fork() -> None:
    global _lock, _producers
    _lock = threading.Lock()
    _parents.append(_producers)
    _producers = {}


os.register_at_fork(after_in_child=_after_fork)
