"""The producer's inner side: queues per partition, requests to brokers, what becomes of batches.

Flow: `append` puts a record into its partition's queue → `dispatch` (once per turn of the loop)
takes what may leave, one batch a partition, grouped by broker → one request each → `_settle`.
Natural batching follows from one batch in flight a partition: what piles up leaves together.

Everything runs on one event loop; nothing here awaits while a queue is half changed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from headrace.protocol import framing, routes
from headrace.protocol.compression import CODEC_NAMES, Buffer, Codec
from headrace.protocol.errors import (
    Closed,
    ConnectionFailed,
    DeliveryTimeout,
    HeadraceError,
    InternalError,
    PartitionOffline,
    TopicNotFound,
    from_code,
)
from headrace.protocol.requests import (
    ACKS_NONE,
    BATCH_MEDIA_TYPE,
    ProducePart,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView, TopicView
from headrace.sdk.core.accumulator import (
    BATCH_OVERHEAD_BYTES,
    Batch,
    PartitionQueue,
    too_large,
)
from headrace.sdk.core.partitioning import KeyPartitions, next_sticky
from headrace.sdk.core.retries import was_surely_not_done
from headrace.sdk.deliveries import wait_done
from headrace.sdk.settings import ProducerSettings

log = logging.getLogger("headrace.sdk.producer")
_response_decoder = msgspec.msgpack.Decoder(ProduceResponse)

_STALE_CODES = frozenset(
    {
        "not_leader",
        "fenced_epoch",
        "unknown_epoch",
        "partition_offline",
        "broker_unavailable",
        "connection_failed",
        "request_timed_out",
        "partition_not_found",
    }
)
"""Errors after which the leaders are looked up again."""

_UNKNOWN_FATE_CODES = frozenset(
    {"not_enough_replicas_after_append", "request_timed_out", "internal"}
)
"""Errors of a partition after which its batch may be in the log."""

Parcel = tuple[PartitionQueue, Batch]


class TopicQueues:
    """One topic's queues, and which of them records without a key go to."""

    __slots__ = ("batch_bytes", "by_key", "queues", "sticky", "view")

    def __init__(self, view: TopicView, settings: ProducerSettings) -> None:
        self.view = view
        self.queues: list[PartitionQueue] = []
        self.batch_bytes = settings.batch_bytes
        self.adopt(view, settings)
        self.sticky = self.queues[secrets.randbelow(len(self.queues))]
        if view.leaders[self.sticky.partition] is None:
            self.turn()

    def adopt(self, view: TopicView, settings: ProducerSettings) -> None:
        """Takes over newer metadata of the same topic: leaders, limits, added partitions."""
        self.view = view
        self.batch_bytes = min(settings.batch_bytes, view.max_message_bytes)
        for partition in range(len(self.queues), len(view.leaders)):
            self.queues.append(
                PartitionQueue(
                    view.name,
                    view.topic_id,
                    partition,
                    batch_bytes=self.batch_bytes,
                    producer_id=new_producer_id() if settings.idempotence else -1,
                )
            )
            self.by_key = KeyPartitions(len(view.leaders), settings.partition_cache)
        for queue in self.queues:
            queue.batch_bytes = self.batch_bytes

    def turn(self) -> None:
        """Sends records without a key to the next partition from now on."""
        self.sticky = self.queues[next_sticky(self.sticky.partition, self.view.leaders)]


def new_producer_id() -> int:
    """A random id of 63 bits: no broker has to be asked, and two are never the same."""
    return secrets.randbits(63)


class Sender:
    """Queues and requests of one producer, bound to the loop that it is first used on."""

    def __init__(self, client: Client, view: ClusterView, settings: ProducerSettings) -> None:
        self.topics: dict[str, TopicQueues] = {}
        self.room = settings.buffer_bytes
        self.now_ms = 0
        self.is_closed = False
        self.loop = asyncio.get_running_loop()
        self._client = client
        self._view = view
        self._settings = settings
        self._acks = settings.acks_code
        self._linger_s = settings.linger_ms / 1000
        self._request_bytes = settings.request_bytes
        self._waiting: dict[PartitionQueue, None] = {}
        self._unfinished: set[Batch] = set()
        self._in_flight: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: set[str] = set()
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._flushes = 0
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._unseen_error: HeadraceError | None = None
        self._unseen_count = 0

    # --- records in ------------------------------------------------------------------------------

    def stamp(self) -> int:
        """The time for records without one, ms; read from the clock once per turn of the loop."""
        self.now_ms = int(time.time() * 1000)
        self.loop.call_soon(self._forget_stamp)
        return self.now_ms

    def _forget_stamp(self) -> None:
        self.now_ms = 0

    def open_batch(self, queue: PartitionQueue, size: int) -> Batch:
        """A new open batch of the queue, with room for `size` bytes; its sending is planned."""
        batch = queue.open_batch(
            size, now=self.loop.time(), delivery_timeout=self._settings.delivery_timeout
        )
        self._unfinished.add(batch)
        self._waiting[queue] = None
        self.dispatch_soon()
        return batch

    async def load(self, topic: str) -> TopicQueues:
        """The queues of a topic, from the cache or after asking the cluster.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return self._adopt(await self._view.topic(topic))

    def _adopt(self, view: TopicView) -> TopicQueues:
        found = self.topics.get(view.name)
        if found is not None and found.view.topic_id != view.topic_id:
            self._give_up_topic(view.name, _recreated(view.name))
            found = None
        if found is None:
            found = self.topics[view.name] = TopicQueues(view, self._settings)
        elif found.view is not view:
            found.adopt(view, self._settings)
        return found

    async def wait_for_room(self, size: int) -> None:
        """Returns once `size` bytes (or the whole buffer, if that is less) are free, in turn."""
        size = min(size, self._settings.buffer_bytes)
        while self.room < size:
            self.check_open()
            waiter = self.loop.create_future()
            self._room_waiters.append(waiter)
            await waiter

    def check_open(self) -> None:
        """Raises Closed after `close`."""
        if self.is_closed:
            raise Closed("the producer is closed")

    def has_full_batch(self) -> bool:
        """Whether a full batch waits for the loop's next turn to be sent."""
        return self._is_scheduled and any(queue.closed for queue in self._waiting)

    # --- batches out -----------------------------------------------------------------------------

    def dispatch_soon(self) -> None:
        """Plans `dispatch` for the loop's next turn, once."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.loop.time()
        linger_s = 0.0 if self._flushes else self._linger_s
        wake_at = float("inf")
        # What is tried again travels apart: it may wait long, and its company would wait with it.
        leaving: dict[tuple[str, bool], list[PartitionQueue]] = {}
        for queue in list(self._waiting):
            ready_at = queue.ready_at(linger_s=linger_s)
            if ready_at > now:
                wake_at = min(wake_at, ready_at)
                continue
            url = self._view.url_of(queue.topic, queue.partition)
            if url is None:
                self._no_leader(queue, now)
                wake_at = min(wake_at, queue.ready_at(linger_s=linger_s))
            else:
                leaving.setdefault((url, queue.is_retrying), []).append(queue)
        for (url, _), queues in leaving.items():
            self._send_to(url, queues, now)
        if wake_at < float("inf"):
            self._timer = self.loop.call_at(wake_at, self.dispatch_soon)

    def _no_leader(self, queue: PartitionQueue, now: float) -> None:
        del self._waiting[queue]
        batch = queue.take()
        batch.attempts += 1
        offline = PartitionOffline(f"nobody leads {queue.topic}/{queue.partition} at the moment")
        self._retry_or_fail(queue, batch, offline, now)
        self._refresh_soon(queue.topic)

    def _send_to(self, url: str, queues: list[PartitionQueue], now: float) -> None:
        """As many requests as the queues need and the broker's share of requests allows; the rest
        stays in `_waiting` until a request has ended."""
        index = 0
        in_flight_max = self._settings.requests_in_flight
        while index < len(queues) and self._in_flight.get(url, 0) < in_flight_max:
            parcels: list[Parcel] = []
            size = 0
            while index < len(queues) and (not parcels or size < self._request_bytes):
                parcel = self._take(queues[index], now)
                index += 1
                if parcel is not None:
                    parcels.append(parcel)
                    size += len(parcel[1].data or b"")
            if parcels:
                self._in_flight[url] = self._in_flight.get(url, 0) + 1
                self._spawn(self._request(url, parcels))

    def _take(self, queue: PartitionQueue, now: float) -> Parcel | None:
        """The queue's next batch, sealed; None if it failed instead."""
        del self._waiting[queue]
        topic = self._home_of(queue)
        batch = queue.take()
        if topic is None:
            self._fail(queue, batch, _recreated(queue.topic))
            return None
        if queue is topic.sticky:
            topic.turn()
        if now >= batch.deadline:
            self._fail(
                queue, batch, _timed_out(batch, self._settings.delivery_timeout, batch.last_error)
            )
            return None
        batch.attempts += 1
        try:
            data = queue.seal(batch, self.codec_of(topic.view))
            if len(data) > topic.view.max_message_bytes:
                raise too_large(queue.topic, len(data), topic.view.max_message_bytes)
        except HeadraceError as error:
            self._fail(queue, batch, error)
            return None
        return queue, batch

    def codec_of(self, view: TopicView) -> Codec:
        """The codec for a topic: the producer's, else the topic's."""
        chosen = self._settings.compression
        return view.codec if chosen is None else CODEC_NAMES[chosen]

    def _home_of(self, queue: PartitionQueue) -> TopicQueues | None:
        """The topic that the queue belongs to; None once the topic was given up."""
        topic = self.topics.get(queue.topic)
        return topic if topic and topic.view.topic_id == queue.topic_id else None

    async def _request(self, url: str, parcels: list[Parcel]) -> None:
        error: HeadraceError | None = None
        results: Sequence[ProduceResult] = ()
        try:
            results = await self._exchange(url, parcels)
        except HeadraceError as failure:
            error = failure
        except asyncio.CancelledError:
            error = Closed("the producer was closed while the records were on their way")
        except Exception as failure:
            log.exception("sending to %s failed in an unforeseen way", url)
            error = InternalError(f"sending failed in an unforeseen way: {failure!r}")
        self._in_flight[url] -= 1
        if error is not None:
            self._request_failed(url, parcels, error)
        else:
            for (queue, batch), result in zip(parcels, results, strict=True):
                self._settle(queue, batch, result)
        if self._waiting:
            self.dispatch_soon()

    async def _exchange(self, url: str, parcels: list[Parcel]) -> Sequence[ProduceResult]:
        left_s = max(batch.deadline for _, batch in parcels) - self.loop.time()
        timeout_s = max(0.001, min(self._client.settings.request_timeout, left_s))
        parts: list[ProducePart] = []
        datas: list[Buffer] = []
        for queue, batch in parcels:
            assert batch.data is not None
            parts.append(ProducePart(queue.topic_id, queue.partition, len(batch.data)))
            datas.append(batch.data)
        # The broker's wait for replicas ends a little before ours, so that its answer gets here.
        head = framing.head(ProduceRequest(self._acks, int(timeout_s * 900), parts))
        if self._acks == ACKS_NONE:
            for _, batch in parcels:
                self._done(batch, base_offset=-1, append_time_ms=-1)
        response = await self._client.send(
            url,
            "POST",
            routes.PRODUCE,
            body=[head, *datas],
            content_type=BATCH_MEDIA_TYPE,
            timeout=timeout_s,
        )
        results = framing.split(response.body, _response_decoder)[0].parts
        answered = [(result.topic_id, result.partition) for result in results]
        if answered != [(part.topic_id, part.partition) for part in parts]:
            raise InternalError("the broker answered for other partitions than were sent")
        return results

    # --- outcomes --------------------------------------------------------------------------------

    def _request_failed(self, url: str, parcels: list[Parcel], error: HeadraceError) -> None:
        now = self.loop.time()
        if error.code == "payload_too_large" and len(parcels) > 1:
            self._request_bytes = max(self._request_bytes // 2, 1)
            error = ConnectionFailed(f"{error.message} (sending less at once)")
        has_detour = self._view.went_wrong(url, error)
        for queue, batch in parcels:
            batch.may_be_written |= not was_surely_not_done(error)
            if has_detour and not batch.is_done and now < batch.deadline and self._home_of(queue):
                queue.put_back(now)
                self._waiting[queue] = None
            else:
                self._retry_or_fail(queue, batch, error, now)
            if error.code in _STALE_CODES:
                self._refresh_soon(queue.topic)

    def _settle(self, queue: PartitionQueue, batch: Batch, result: ProduceResult) -> None:
        if result.error is None:
            queue.settle()
            self._done(batch, base_offset=result.base_offset, append_time_ms=result.append_time_ms)
            if queue.has_records:
                self._waiting[queue] = None
            return
        where = f"{queue.topic}/{queue.partition}"
        error = from_code(result.error, f"{where}: {result.message or result.error}")
        if error.code == "out_of_order_sequence" and not batch.may_be_written:
            # The broker has forgotten the producer (a day of silence), or lost an earlier batch.
            # This one never got anywhere, so it can be sent under a new id without a duplicate.
            queue.seal_again(new_producer_id(), self.loop.time())
            batch.may_be_written = True  # Once is enough: a second refusal is raised.
            self._waiting[queue] = None
            return
        batch.may_be_written |= error.code in _UNKNOWN_FATE_CODES
        self._retry_or_fail(queue, batch, error, self.loop.time())
        if error.code in _STALE_CODES:
            self._refresh_soon(queue.topic)
        elif error.code == "topic_not_found":
            self._give_up_topic(queue.topic, error)

    def _retry_or_fail(
        self, queue: PartitionQueue, batch: Batch, error: HeadraceError, now: float
    ) -> None:
        if batch.is_done:  # acks=0: nobody waits, nothing is tried again.
            log.warning("records sent with acks=0 may be lost: %s", error)
            self._fail(queue, batch, error)
            return
        if self._home_of(queue) is None:
            self._fail(queue, batch, _recreated(queue.topic))
            return
        at = self._client.next_try(error, attempt=batch.attempts, now=now, deadline=batch.deadline)
        if at is not None:
            log.debug("%s/%d: trying again: %s", queue.topic, queue.partition, error)
            batch.last_error = error
            queue.put_back(at)
            self._waiting[queue] = None
            self.dispatch_soon()
        elif error.retriable:
            timeout = self._settings.delivery_timeout
            self._fail(queue, batch, _timed_out(batch, timeout, error))
        else:
            self._fail(queue, batch, error)

    def _fail(self, queue: PartitionQueue, batch: Batch, error: HeadraceError) -> None:
        """The batch in flight has failed for good. Its sequence numbers may or may not be used, so
        the partition goes on under a new producer id."""
        queue.settle()
        if batch.base_sequence >= 0:
            queue.new_identity(new_producer_id())
        self._failed(batch, error)
        if queue.has_records:
            self._waiting[queue] = None
            self.dispatch_soon()

    def _failed(self, batch: Batch, error: HeadraceError) -> None:
        if batch.is_done:
            return
        batch.fail(error)
        if not batch.was_observed:
            log.error("%d records of %s were not delivered: %s", batch.count, batch.topic, error)
            self.note_unseen(error, batch.count)
        self._release(batch)

    def note_unseen(self, error: HeadraceError, count: int) -> None:
        """Keeps a failure that nobody waits for, for `flush` to raise."""
        self._unseen_error = self._unseen_error or error
        self._unseen_count += count

    def _done(self, batch: Batch, *, base_offset: int, append_time_ms: int) -> None:
        if not batch.is_done:
            batch.deliver(base_offset, append_time_ms)
            self._release(batch)

    def _release(self, batch: Batch) -> None:
        self._unfinished.discard(batch)
        self.room += batch.size_bytes
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Lets all who wait for room look again; they do so in the order in which they came."""
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _give_up_topic(self, topic: str, error: HeadraceError) -> None:
        """The topic is gone: what waits for it fails, and the next record asks the cluster anew."""
        queues = self.topics.pop(topic, None)
        if queues is not None:
            self._view.forget(topic, queues.view.topic_id)
        for queue in queues.queues if queues else ():
            self._waiting.pop(queue, None)
            for batch in queue.drop_all():
                self._failed(batch, error)

    # --- metadata, flush, close ------------------------------------------------------------------

    def _refresh_soon(self, topic: str) -> None:
        if topic not in self._refreshing and not self.is_closed:
            self._refreshing.add(topic)
            self._spawn(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            self._adopt(await self._view.refresh(topic))
        except TopicNotFound as error:
            self._give_up_topic(topic, error)
        except HeadraceError as error:
            log.debug("the leaders of %s could not be looked up: %s", topic, error)
        finally:
            self._refreshing.discard(topic)
            self.dispatch_soon()

    def refresh_if_old(self, topic: TopicQueues) -> None:
        """Looks the topic's partitions up again in the background once their age demands it."""
        age_s = self.loop.time() - topic.view.loaded_at
        if age_s > self._client.settings.metadata_max_age:
            self._refresh_soon(topic.view.name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Waits until all that was handed over is delivered or has failed.

        Raises:
            HeadraceError: the first failure since the last flush that nobody else was told of.
        """
        self._flushes += 1
        self.dispatch_soon()
        try:
            for batch in list(self._unfinished):
                if not batch.is_done:
                    await wait_done(batch)
            if self._acks == ACKS_NONE and self._tasks:
                await asyncio.wait(list(self._tasks))
        finally:
            self._flushes -= 1
        self.raise_unseen()

    def raise_unseen(self) -> None:
        """Raises, once, the first failure that nobody was told of."""
        error, self._unseen_error = self._unseen_error, None
        count, self._unseen_count = self._unseen_count, 0
        if error is not None:
            error.add_note(f"{count} enqueued records that nobody awaited were not delivered")
            raise error

    async def close(self) -> None:
        """Fails what is left and ends all tasks. `flush` comes first, if it shall."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        gone = Closed("the producer was closed before the record could be delivered")
        for topic in list(self.topics):
            self._give_up_topic(topic, gone)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for batch in list(self._unfinished):
            self._failed(batch, gone)
        self._wake_waiters()


def _recreated(topic: str) -> TopicNotFound:
    return TopicNotFound(
        f"topic {topic!r} was deleted or created again while records waited for it; they are not"
        " sent to a new topic of that name"
    )


def _timed_out(batch: Batch, timeout_s: float, error: HeadraceError | None) -> DeliveryTimeout:
    tries = f"{batch.attempts} tries; the last ended with: {error}" if error else "no try"
    late = DeliveryTimeout(
        f"{batch.topic}/{batch.partition}: not delivered within {timeout_s:g} s, {tries}",
        details={"attempts": batch.attempts},
    )
    late.__cause__ = error
    return late


def record_limit_bytes(topic: TopicQueues) -> int:
    """The largest estimate that certainly fits a batch of the topic."""
    return topic.batch_bytes - BATCH_OVERHEAD_BYTES
