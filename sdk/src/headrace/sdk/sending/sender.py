"""Batches to brokers: which may leave now, grouped into requests, and the requests themselves.

Flow: a record opens a batch in its partition's queue → `_dispatch` (once per turn of the loop)
takes what may leave, one batch a partition, grouped by broker → one request each → `outcomes`.
Natural batching follows from one batch in flight a partition: what piles up leaves together.

Everything runs on one event loop; nothing here awaits while a queue is half changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from headrace.protocol import framing, routes
from headrace.protocol.compression import Buffer as Bytes
from headrace.protocol.errors import Closed, ConnectionFailed, HeadraceError, InternalError
from headrace.protocol.requests import (
    ACKS_NONE,
    BATCH_MEDIA_TYPE,
    ProducePart,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.core.accumulator import Batch, PartitionQueue, too_large
from headrace.sdk.sending.buffer import Buffer
from headrace.sdk.sending.deliveries import wait_done
from headrace.sdk.sending.outcomes import Outcomes, Parcel
from headrace.sdk.sending.schedule import Schedule
from headrace.sdk.sending.topics import Topics, recreated
from headrace.sdk.settings import ProducerSettings
from headrace.sdk.tasks import Tasks

log = logging.getLogger("headrace.sdk.producer")
_response_decoder = msgspec.msgpack.Decoder(ProduceResponse)


class Sender:
    """Requests of one producer, bound to the loop that it is first used on."""

    def __init__(self, client: Client, view: ClusterView, settings: ProducerSettings) -> None:
        self.buffer = Buffer(settings.buffer_bytes)
        self.schedule = Schedule(self._dispatch)
        self._tasks = Tasks()
        self.topics = Topics(
            view,
            settings,
            metadata_max_age=client.settings.metadata_max_age,
            buffer=self.buffer,
            schedule=self.schedule,
            tasks=self._tasks,
        )
        self._outcomes = Outcomes(
            client,
            view,
            delivery_timeout=settings.delivery_timeout,
            buffer=self.buffer,
            schedule=self.schedule,
            topics=self.topics,
        )
        self._client = client
        self._view = view
        self._settings = settings
        self._acks = settings.acks_code
        self._loop = self.buffer.loop
        self._request_bytes = settings.request_bytes
        self._in_flight: dict[str, int] = {}
        self._quiet_until: dict[str, float] = {}
        """Brokers that asked for a delay (byte rates), and until when on the loop's clock."""
        self._flushes = 0

    def open_batch(self, queue: PartitionQueue, size: int) -> Batch:
        """A new open batch of the queue, with room for `size` bytes; its sending is planned."""
        batch = queue.open_batch(
            size, now=self._loop.time(), delivery_timeout=self._settings.delivery_timeout
        )
        self.buffer.unfinished.add(batch)
        self.schedule.add(queue)
        return batch

    # --- what leaves -----------------------------------------------------------------------------

    def _dispatch(self) -> None:
        now = self._loop.time()
        linger_s = 0.0 if self._flushes else self._settings.linger_ms / 1000
        wake_at = float("inf")
        # What is tried again travels apart: it may wait long, and its company would wait with it.
        leaving: dict[tuple[str, bool], list[PartitionQueue]] = {}
        for queue in list(self.schedule.waiting):
            ready_at = queue.ready_at(linger_s=linger_s)
            if ready_at > now:
                wake_at = min(wake_at, ready_at)
                continue
            url = self._view.url_of(queue.topic, queue.partition)
            if url is None:
                self._outcomes.no_leader(queue)
                wake_at = min(wake_at, queue.ready_at(linger_s=linger_s))
            elif (quiet_until := self._quiet_until.get(url, now)) > now:
                wake_at = min(wake_at, quiet_until)
            else:
                leaving.setdefault((url, queue.is_retrying), []).append(queue)
        for (url, _), queues in leaving.items():
            self._send_to(url, queues, now)
        if wake_at < float("inf"):
            self.schedule.at(wake_at)

    def _send_to(self, url: str, queues: list[PartitionQueue], now: float) -> None:
        """As many requests as the queues need and the broker's share of requests allows; the rest
        stays in the schedule until a request has ended."""
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
                self._tasks.spawn(self._request(url, parcels))

    def _take(self, queue: PartitionQueue, now: float) -> Parcel | None:
        """The queue's next batch, sealed; None if it failed instead."""
        self.schedule.discard(queue)
        topic = self.topics.home_of(queue)
        batch = queue.take()
        if topic is None:
            self._outcomes.fail(queue, batch, recreated(queue.topic))
            return None
        if queue is topic.sticky:
            topic.turn()
        if now >= batch.deadline:
            self._outcomes.timed_out(queue, batch, batch.last_error)
            return None
        batch.attempts += 1
        try:
            data = queue.seal(batch, topic.codec)
            if len(data) > topic.view.max_message_bytes:
                raise too_large(queue.topic, len(data), topic.view.max_message_bytes)
        except HeadraceError as error:
            self._outcomes.fail(queue, batch, error)
            return None
        return queue, batch

    # --- requests --------------------------------------------------------------------------------

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
        if error is None:
            for (queue, batch), result in zip(parcels, results, strict=True):
                self._outcomes.answered(url, queue, batch, result)
        else:
            if error.code == "payload_too_large" and len(parcels) > 1:
                self._request_bytes = max(self._request_bytes // 2, 1)
                error = ConnectionFailed(f"{error.message} (sending less at once)")
            self._outcomes.request_failed(url, parcels, error)
        if self.schedule.waiting:
            self.schedule.soon()

    async def _exchange(self, url: str, parcels: list[Parcel]) -> Sequence[ProduceResult]:
        left_s = max(batch.deadline for _, batch in parcels) - self._loop.time()
        timeout_s = max(0.001, min(self._client.settings.request_timeout, left_s))
        parts: list[ProducePart] = []
        datas: list[Bytes] = []
        for queue, batch in parcels:
            assert batch.data is not None
            parts.append(ProducePart(queue.topic_id, queue.partition, len(batch.data)))
            datas.append(batch.data)
        # The broker's wait for replicas ends a little before ours, so that its answer gets here.
        head = framing.head(ProduceRequest(self._acks, int(timeout_s * 900), parts))
        if self._acks == ACKS_NONE:
            for _, batch in parcels:
                self.buffer.delivered(batch, base_offset=-1, append_time_ms=-1)
        response = await self._client.send(
            url,
            "POST",
            routes.PRODUCE,
            body=[head, *datas],
            content_type=BATCH_MEDIA_TYPE,
            timeout=timeout_s,
            is_direct=all(self._view.leads(url, q.topic, q.partition) for q, _ in parcels),
        )
        answer = framing.split(response.body, _response_decoder)[0]
        if answer.throttle_ms > 0:
            self._quiet_until[url] = self._loop.time() + answer.throttle_ms / 1000
        results = answer.parts
        answered = [(result.topic_id, result.partition) for result in results]
        if answered != [(part.topic_id, part.partition) for part in parts]:
            raise InternalError("the broker answered for other partitions than were sent")
        return results

    # --- ends ------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Waits until all that was handed over is delivered or has failed.

        Raises:
            HeadraceError: the first failure since the last flush that nobody else was told of.
        """
        self._flushes += 1
        self.schedule.soon()
        try:
            for batch in list(self.buffer.unfinished):
                if not batch.is_done:
                    await wait_done(batch)
            if self._acks == ACKS_NONE:
                await self._tasks.wait()
        finally:
            self._flushes -= 1
        self.buffer.raise_unseen()

    async def close(self) -> None:
        """Fails what is left and ends all tasks. `flush` comes first, if it shall."""
        self.buffer.is_closed = True
        self.schedule.stop()
        gone = Closed("the producer was closed before the record could be delivered")
        for topic in list(self.topics.by_name):
            self.topics.give_up(topic, gone)
        await self._tasks.cancel()
        for batch in list(self.buffer.unfinished):
            self.buffer.failed(batch, gone)
        self.buffer.wake_waiters()
