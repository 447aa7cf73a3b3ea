"""The same clients without async: `Producer`, `Consumer` and `Admin` for plain code and threads.

    from headrace.sdk.sync import Producer
    with Producer("http://127.0.0.1:9420") as producer:
        producer.send("orders", b"value")

One source: every call runs the async client's method on one background loop, a thread per process
(a test compares all signatures). The thread is keyed by the process id, so that a program that
forks (multiprocessing, Spark's workers) gets a new one in the child; clients made before the fork
belong to the parent and say so. Calls may come from several threads; a `Consumer` is for one at a
time.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar

from headrace.protocol import cluster_models, models, reassignment_models
from headrace.protocol.ids import TopicPartition
from headrace.protocol.record import Record, RecordMetadata
from headrace.sdk import admin as _admin
from headrace.sdk import consumer as _consumer
from headrace.sdk import producer as _producer
from headrace.sdk.consumer import Partition
from headrace.sdk.core.positions import RawBatch
from headrace.sdk.errors import Closed
from headrace.sdk.group_reset import PlannedReset, Shift
from headrace.sdk.offsets import Where
from headrace.sdk.placement_admin import Plan
from headrace.sdk.reading.workers import Handler

__all__ = ["Admin", "Consumer", "Handle", "Producer"]

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C")


class _LoopThread:
    """An event loop on a daemon thread of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-sdk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` to its end, from another thread. Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "headrace.sdk.sync was called from within its own loop (a serializer, an async"
                " handler); use the async classes there"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the loop at the program's exit."""
        if self.pid == os.getpid() and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=5)
            if not self._thread.is_alive():
                self.loop.close()


_lock = threading.Lock()
_current: _LoopThread | None = None
_parents: list[_LoopThread] = []
"""Loops that came along through a fork. They are kept for ever and never closed: closing one here
would take the parent's sockets out of the epoll set that both processes share."""


def _loop_thread() -> _LoopThread:
    global _current
    with _lock:
        if _current is None:
            _current = _LoopThread()
            atexit.register(_current.stop)
        return _current


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end on this process's background loop, where all clients of this module
    live."""
    return _loop_thread().call(work)


def _after_fork() -> None:
    global _current, _lock
    _lock = threading.Lock()  # The parent's may have been held by a thread that isn't here.
    if _current is not None:
        _parents.append(_current)
        _current = None


os.register_at_fork(after_in_child=_after_fork)


class _Facade(Generic[C]):
    """One async client and the loop thread that it lives on."""

    _async: C

    def __init__(self, make: Callable[[], C]) -> None:
        self._thread = _loop_thread()
        self._async = self._thread.call(_made(make))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread.pid != os.getpid():
            work.close()
            raise Closed(
                "this client was made before the process forked and belongs to the parent; make a"
                " new one in the child"
            )
        return self._thread.call(work)

    def __enter__(self) -> Self:
        return self


async def _made(make: Callable[[], C]) -> C:
    return make()


class Handle:
    """One enqueued record: `result()` waits for it."""

    __slots__ = ("_owner", "_pending")

    def __init__(self, owner: Producer, pending: _producer.Handle) -> None:
        self._owner = owner
        self._pending = pending

    def done(self) -> bool:
        """Whether the record is delivered or has failed."""
        return self._pending.done()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Waits, up to `timeout` seconds, for where the record is.

        Raises:
            TimeoutError: it is still on its way.
            HeadraceError: it was not delivered.
        """
        if self._pending.done():
            return self._pending.result()
        return self._owner._call(_within(self._pending, timeout))


async def _within(pending: _producer.Handle, timeout: float | None) -> RecordMetadata:
    async with asyncio.timeout(timeout):
        return await pending


class Producer(_Facade[_producer.Producer]):
    """`headrace.sdk.Producer` without async; same arguments, same errors."""

    def __init__(self, bootstrap: str | Sequence[str], **options: Any) -> None:
        super().__init__(lambda: _producer.Producer(bootstrap, **options))

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Mapping[str, Any] | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Sends one record and waits for its acknowledgement; see `headrace.sdk.Producer.send`."""
        return self._call(
            self._async.send(
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
        )

    def enqueue(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Mapping[str, Any] | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Handle:
        """Hands one record over and waits only while the buffer is full. For many records
        `send_many` is far cheaper: every call here crosses to the loop's thread and back."""

        async def put() -> _producer.Handle:
            await self._async.ready()
            return self._async.enqueue(
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )

        return Handle(self, self._call(put()))

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[Mapping[str, Any] | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        partition: int | None = None,
    ) -> Sequence[RecordMetadata]:
        """Sends many records and waits for all; see `headrace.sdk.Producer.send_many`."""
        return self._call(
            self._async.send_many(
                topic,
                values,
                keys=keys,
                headers=headers,
                timestamps_ms=timestamps_ms,
                partition=partition,
            )
        )

    def ready(self) -> None:
        """Returns when there is room for more records."""
        self._call(self._async.ready())

    def flush(self) -> None:
        """Waits until the fate of all records is known."""
        self._call(self._async.flush())

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions."""
        return self._call(self._async.partitions_for(topic))

    def close(self) -> None:
        """Flushes and gives up all connections."""
        self._call(self._async.close())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._call(self._async.__aexit__(kind))


_CALLBACKS = {"on_assigned", "on_revoked", "on_lost"}


class Consumer(_Facade[_consumer.Consumer]):
    """`headrace.sdk.Consumer` without async; same arguments, same errors.

    with Consumer("http://127.0.0.1:9420", "orders", group="billing") as consumer:
        for record in consumer:
            print(record.value)
    """

    def __init__(self, bootstrap: str | Sequence[str], *topics: str, **options: Any) -> None:
        for name in _CALLBACKS & options.keys():
            options[name] = self._in_thread(options[name])
        super().__init__(lambda: _consumer.Consumer(bootstrap, *topics, **options))

    def _in_thread(self, callback: Callable[..., object] | None) -> _consumer.Callback | None:
        """The callback with this consumer, in a thread of its own, so that it may call it."""
        if callback is None:
            return None
        chosen = callback

        async def call(_: _consumer.Consumer, partitions: Sequence[TopicPartition]) -> None:
            outcome = await asyncio.to_thread(chosen, self, partitions)
            if asyncio.iscoroutine(outcome):
                await outcome

        return call

    def __enter__(self) -> Self:
        self._call(self._async.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._call(self._async.__aexit__(kind))

    def __iter__(self) -> Iterator[Record]:
        """The records, as they come, for ever. A thread crosses to the loop once a batch."""
        while True:
            yield from self.next_records()

    def next_records(self) -> Iterator[Record]:
        """Waits for records and gives an iterator over some of them, in one partition."""
        return self._call(self._async.next_records())

    def fetch(self, max_records: int = 500, timeout: float | None = None) -> list[Record]:
        """Up to `max_records` records; waits up to `timeout` seconds for the first."""
        return self._call(self._async.fetch(max_records, timeout))

    def fetch_batches(
        self, max_bytes: int = 1 << 20, timeout: float | None = None
    ) -> list[RawBatch]:
        """As `fetch`, but whole batches, not decoded."""
        return self._call(self._async.fetch_batches(max_bytes, timeout))

    def run(self, handler: Handler, concurrency: int = 8) -> None:
        """Calls `handler(record)` for every record until it raises; plain handlers run in up to
        `concurrency` threads, records of one key in order."""

        async def in_thread(record: Record) -> None:
            outcome = await asyncio.to_thread(handler, record)
            if asyncio.iscoroutine(outcome):
                await outcome

        self._call(self._async.run(in_thread, concurrency))

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions being read."""
        return self._async.assignment

    @property
    def problems(self) -> dict[TopicPartition, Exception]:
        """Partitions that give nothing at the moment, and why."""
        return self._async.problems

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._async.paused

    def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Reads these topics, or those of the pattern, instead of those before."""
        self._call(self._async.subscribe(*topics, pattern=pattern))

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Reads exactly these partitions from now on."""
        self._call(self._async.assign(partitions))

    def seek(self, partition: Partition, to: Where) -> None:
        """Goes on at an offset, at `"earliest"`, `"latest"` or a datetime."""
        self._call(self._async.seek(partition, to))

    def seek_to_earliest(self, *partitions: Partition) -> None:
        """Goes to the first record there is."""
        self._call(self._async.seek_to_earliest(*partitions))

    def seek_to_latest(self, *partitions: Partition) -> None:
        """Goes behind the last record."""
        self._call(self._async.seek_to_latest(*partitions))

    def seek_to_time(self, time: datetime, *partitions: Partition) -> None:
        """Goes to the first record at or after `time`."""
        self._call(self._async.seek_to_time(time, *partitions))

    def position(self, partition: Partition) -> int | None:
        """The offset of the next record that will be handed out."""
        return self._call(self._async.position(partition))

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each assigned partition's position is behind its end."""
        return self._call(self._async.lag())

    def pause(self, *partitions: Partition) -> None:
        """Hands out nothing of the given partitions (none given: of all) until `resume`."""
        self._call(self._async.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        """Undoes `pause`."""
        self._call(self._async.resume(*partitions))

    def commit(self, offsets: Mapping[Partition, int] | None = None, *, metadata: str = "") -> None:
        """Commits the given offsets, or all that was handed out so far."""
        self._call(self._async.commit(offsets, metadata=metadata))

    def committed(self, *partitions: Partition) -> dict[TopicPartition, int | None]:
        """The group's committed offsets."""
        return self._call(self._async.committed(*partitions))

    def close(self) -> None:
        """Commits what is finished and gives up all connections."""
        self._call(self._async.close())


class Admin(_Facade[_admin.Admin]):
    """`headrace.sdk.Admin` without async; same arguments, same errors."""

    def __init__(self, bootstrap: str | Sequence[str], **options: Any) -> None:
        super().__init__(lambda: _admin.Admin(bootstrap, **options))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up all connections."""
        self._call(self._async.close())

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        config: Mapping[str, models.ConfigValue] | None = None,
    ) -> models.TopicInfo:
        """Makes a topic. What is left out takes the cluster's default."""
        return self._call(
            self._async.create_topic(name, partitions=partitions, replicas=replicas, config=config)
        )

    def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, models.ConfigValue | None] | None = None,
        partitions: int | None = None,
        replicas: int | None = None,
    ) -> models.TopicInfo:
        """Changes settings, adds partitions, or changes the number of replicas."""
        return self._call(
            self._async.alter_topic(name, config=config, partitions=partitions, replicas=replicas)
        )

    def delete_topic(self, name: str) -> models.TopicDeleted:
        """Deletes a topic with all its records."""
        return self._call(self._async.delete_topic(name))

    def list_topics(self, *, internal: bool = False) -> models.TopicList:
        """All topics by name."""
        return self._call(self._async.list_topics(internal=internal))

    def describe_topic(self, name: str) -> models.TopicInfo:
        """A topic with its settings and partitions."""
        return self._call(self._async.describe_topic(name))

    def describe_cluster(self) -> models.ClusterInfo:
        """The cluster and its brokers' addresses."""
        return self._call(self._async.describe_cluster())

    def brokers(self) -> list[models.BrokerInfo]:
        """All registered brokers."""
        return self._call(self._async.brokers())

    def describe_broker(self, broker_id: int) -> models.BrokerDetail:
        """One broker from within."""
        return self._call(self._async.describe_broker(broker_id))

    def offsets(
        self, places: Mapping[tuple[str, int], Where]
    ) -> dict[TopicPartition, models.OffsetAnswer]:
        """Offsets for places: `"earliest"`, `"latest"` or a datetime."""
        return self._call(self._async.offsets(places))

    def query_offsets(self, queries: Sequence[models.OffsetQuery]) -> list[models.OffsetAnswer]:
        """As `offsets`, for every kind of question that the API has."""
        return self._call(self._async.query_offsets(queries))

    def delete_records(
        self, before: Mapping[tuple[str, int], int]
    ) -> list[models.DeleteRecordsResult]:
        """Removes the records before an offset (-1: all there are now)."""
        return self._call(self._async.delete_records(before))

    def list_groups(self) -> models.GroupList:
        """All groups by name."""
        return self._call(self._async.list_groups())

    def describe_group(self, group: str) -> models.GroupInfo:
        """A group's members, committed offsets and lag."""
        return self._call(self._async.describe_group(group))

    def delete_group(self, group: str, *, force: bool = False) -> None:
        """Forgets a group with its committed offsets."""
        self._call(self._async.delete_group(group, force=force))

    def group_offsets(self, group: str, *, topic: str | None = None) -> models.GroupInfo:
        """A group's committed offsets without lag."""
        return self._call(self._async.group_offsets(group, topic=topic))

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        metadata: str = "",
        force: bool = False,
    ) -> list[models.CommitResult]:
        """Commits offsets in a group's name."""
        return self._call(
            self._async.alter_group_offsets(group, offsets, metadata=metadata, force=force)
        )

    def plan_group_reset(
        self,
        group: str,
        to: Where | Shift,
        *,
        topics: Iterable[str] = (),
        partitions: Iterable[int] | None = None,
    ) -> list[PlannedReset]:
        """What `reset_group_offsets` would do."""
        return self._call(
            self._async.plan_group_reset(group, to, topics=topics, partitions=partitions)
        )

    def reset_group_offsets(
        self, group: str, plan: Sequence[PlannedReset], *, force: bool = False
    ) -> list[models.CommitResult]:
        """Commits a plan; refused while the group has live members (unless `force`)."""
        return self._call(self._async.reset_group_offsets(group, plan, force=force))

    def cluster_config(self) -> dict[str, models.ConfigEntry]:
        """The cluster-wide settings in force."""
        return self._call(self._async.cluster_config())

    def alter_cluster_config(
        self, config: Mapping[str, models.ConfigValue | None]
    ) -> dict[str, models.ConfigEntry]:
        """Changes cluster-wide settings while everything runs."""
        return self._call(self._async.alter_cluster_config(config))

    def cluster_health(
        self, *, problem: str | None = None, topic: str | None = None, limit: int = 1_000
    ) -> cluster_models.ClusterHealth:
        """What each broker carries, and partitions with problems."""
        return self._call(self._async.cluster_health(problem=problem, topic=topic, limit=limit))

    def restart_check(
        self, broker_id: int, *, phase: cluster_models.RestartPhase = "before"
    ) -> cluster_models.RestartCheck:
        """Whether a broker may be stopped now, or is whole again after its start."""
        return self._call(self._async.restart_check(broker_id, phase=phase))

    def elect_leader(
        self, topic: str, partition: int, broker_id: int, *, unclean: bool
    ) -> cluster_models.ElectedLeader:
        """Makes a replica lead with what it has; the rest is lost."""
        return self._call(self._async.elect_leader(topic, partition, broker_id, unclean=unclean))

    def recover(
        self, *, execute: bool = False, accept_missing: bool = False
    ) -> cluster_models.RecoverAnswer:
        """What there is to put right in a store that went back in time or was lost."""
        return self._call(self._async.recover(execute=execute, accept_missing=accept_missing))

    def create_topics(
        self, topics: Iterable[models.TopicCreate]
    ) -> list[cluster_models.TopicOutcome]:
        """Makes many topics; an outcome for each."""
        return self._call(self._async.create_topics(topics))

    def alter_topics(
        self, topics: Iterable[cluster_models.NamedTopicAlter]
    ) -> list[cluster_models.TopicOutcome]:
        """Changes many topics; an outcome for each."""
        return self._call(self._async.alter_topics(topics))

    def describe_topics(self, names: Iterable[str]) -> dict[str, cluster_models.TopicState]:
        """Those of these topics that there are."""
        return self._call(self._async.describe_topics(names))

    def reassign(
        self,
        plan: Plan | None = None,
        *,
        mode: Literal["even", "leaders"] = "even",
        brokers: Collection[int] | None = None,
        throttle: int | None = None,
        max_concurrent_moves: int | None = None,
        dry_run: bool = False,
    ) -> reassignment_models.ReassignmentPlan:
        """Moves replicas in the background."""
        return self._call(
            self._async.reassign(
                plan,
                mode=mode,
                brokers=brokers,
                throttle=throttle,
                max_concurrent_moves=max_concurrent_moves,
                dry_run=dry_run,
            )
        )

    def reassignments(self) -> reassignment_models.ReassignmentProgress:
        """How far the present reassignment is."""
        return self._call(self._async.reassignments())

    def cancel_reassignment(self, topics: Iterable[str] | None = None) -> list[str]:
        """Calls the reassignment off, of these topics or of all."""
        return self._call(self._async.cancel_reassignment(topics))

    def cordon(self, broker_id: int) -> reassignment_models.BrokerPlacement:
        """The broker gets no new replicas."""
        return self._call(self._async.cordon(broker_id))

    def uncordon(self, broker_id: int) -> reassignment_models.BrokerPlacement:
        """The broker gets replicas again."""
        return self._call(self._async.uncordon(broker_id))

    def placement(self, broker_id: int) -> reassignment_models.BrokerPlacement:
        """Whether the broker is cordoned, and how many replicas it has."""
        return self._call(self._async.placement(broker_id))

    def drain(
        self,
        broker_id: int,
        *,
        ignore_racks: bool = False,
        throttle: int | None = None,
        max_concurrent_moves: int | None = None,
        dry_run: bool = False,
    ) -> reassignment_models.ReassignmentPlan:
        """Cordons the broker and moves all its replicas to others, in the background."""
        return self._call(
            self._async.drain(
                broker_id,
                ignore_racks=ignore_racks,
                throttle=throttle,
                max_concurrent_moves=max_concurrent_moves,
                dry_run=dry_run,
            )
        )
