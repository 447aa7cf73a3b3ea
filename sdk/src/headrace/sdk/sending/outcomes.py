"""What becomes of a batch that was sent: delivered, tried again, or failed for good.

The broker answers for each partition, or the whole request fails. What may pass is tried again
until the batch's deadline, with the very same bytes; what may be in the log already is remembered,
so that nothing is sent under a new id which could be there under the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.protocol.errors import (
    DeliveryTimeout,
    HeadraceError,
    PartitionOffline,
    from_code,
)
from headrace.protocol.requests import ProduceResult
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.core.accumulator import Batch, PartitionQueue
from headrace.sdk.core.retries import was_surely_not_done
from headrace.sdk.sending.buffer import Buffer
from headrace.sdk.sending.schedule import Schedule
from headrace.sdk.sending.topics import Topics, new_producer_id, recreated

log = logging.getLogger("headrace.sdk.producer")

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
"""A batch that is in flight, and the queue it came from."""


class Outcomes:
    """Deals with the ends of requests; one producer's."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        *,
        delivery_timeout: float,
        buffer: Buffer,
        schedule: Schedule,
        topics: Topics,
    ) -> None:
        self._client = client
        self._view = view
        self._delivery_timeout = delivery_timeout
        self._buffer = buffer
        self._schedule = schedule
        self._topics = topics

    def answered(
        self, url: str, queue: PartitionQueue, batch: Batch, result: ProduceResult
    ) -> None:
        """The broker has answered for this partition."""
        if result.error is None:
            self._view.went_right(url, queue.topic, queue.partition)
            queue.settle()
            self._buffer.delivered(
                batch, base_offset=result.base_offset, append_time_ms=result.append_time_ms
            )
            self._go_on(queue)
            return
        where = f"{queue.topic}/{queue.partition}"
        error = from_code(result.error, f"{where}: {result.message or result.error}")
        if error.code == "out_of_order_sequence" and not batch.may_be_written:
            # The broker has forgotten the producer (a day of silence), or lost an earlier batch.
            # This one never got anywhere, so it can be sent under a new id without a duplicate.
            queue.seal_again(new_producer_id(), self._buffer.loop.time())
            batch.may_be_written = True  # Once is enough: a second refusal is raised.
            self._schedule.add(queue)
            return
        batch.may_be_written |= error.code in _UNKNOWN_FATE_CODES
        self._retry_or_fail(queue, batch, error)
        if error.code in _STALE_CODES:
            self._topics.refresh_soon(queue.topic)
        elif error.code == "topic_not_found":
            self._topics.give_up(queue.topic, error)

    def request_failed(self, url: str, parcels: Sequence[Parcel], error: HeadraceError) -> None:
        """There was no answer for any of the parcels."""
        now = self._buffer.loop.time()
        has_detour = self._view.went_wrong(url, error)
        for queue, batch in parcels:
            batch.may_be_written |= not was_surely_not_done(error)
            is_wanted = not batch.is_done and now < batch.deadline
            if has_detour and is_wanted and self._topics.home_of(queue):
                queue.put_back(now)
                self._schedule.add(queue)
            else:
                self._retry_or_fail(queue, batch, error)
            if error.code in _STALE_CODES:
                self._topics.refresh_soon(queue.topic)

    def no_leader(self, queue: PartitionQueue) -> None:
        """The queue's next batch can't leave: nobody leads the partition."""
        self._schedule.discard(queue)
        batch = queue.take()
        batch.attempts += 1
        offline = PartitionOffline(f"nobody leads {queue.topic}/{queue.partition} at the moment")
        self._retry_or_fail(queue, batch, offline)
        self._topics.refresh_soon(queue.topic)

    def _retry_or_fail(self, queue: PartitionQueue, batch: Batch, error: HeadraceError) -> None:
        if batch.is_done:  # acks=0: nobody waits, nothing is tried again.
            log.warning("records sent with acks=0 may be lost: %s", error)
            self.fail(queue, batch, error)
            return
        if self._topics.home_of(queue) is None:
            self.fail(queue, batch, recreated(queue.topic))
            return
        now = self._buffer.loop.time()
        at = self._client.next_try(error, attempt=batch.attempts, now=now, deadline=batch.deadline)
        if at is not None:
            log.debug("%s/%d: trying again: %s", queue.topic, queue.partition, error)
            batch.last_error = error
            queue.put_back(at)
            self._schedule.add(queue)
        elif error.retriable:
            self.timed_out(queue, batch, error)
        else:
            self.fail(queue, batch, error)

    def timed_out(self, queue: PartitionQueue, batch: Batch, error: HeadraceError | None) -> None:
        """The time of the batch in flight is over; `error` is its last try's."""
        tries = f"{batch.attempts} tries; the last ended with: {error}" if error else "no try"
        late = DeliveryTimeout(
            f"{batch.topic}/{batch.partition}: not delivered within {self._delivery_timeout:g} s,"
            f" {tries}",
            details={"attempts": batch.attempts},
        )
        late.__cause__ = error
        self.fail(queue, batch, late)

    def fail(self, queue: PartitionQueue, batch: Batch, error: HeadraceError) -> None:
        """The batch in flight has failed for good. Its sequence numbers may or may not be used, so
        the partition goes on under a new producer id."""
        queue.settle()
        if batch.base_sequence >= 0:
            queue.new_identity(new_producer_id())
        self._buffer.failed(batch, error)
        self._go_on(queue)

    def _go_on(self, queue: PartitionQueue) -> None:
        if queue.has_records:
            self._schedule.add(queue)
