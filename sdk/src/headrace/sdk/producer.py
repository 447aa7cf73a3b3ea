"""The async producer: checks and serializes records, finds their partition, hands them to `sender`.

`send` awaits each record, `send_many` a list, `enqueue` returns at once. All three feed the same
queues, so their order within a partition is the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from headrace.protocol.compression import Codec
from headrace.protocol.errors import (
    BufferFull,
    Closed,
    HeadraceError,
    PartitionNotFound,
)
from headrace.protocol.ids import TopicPartition
from headrace.protocol.names import check_name
from headrace.protocol.record import RecordMetadata
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.core.accumulator import (
    RECORD_OVERHEAD_BYTES,
    Batch,
    PartitionQueue,
    check_single,
    headers_size,
)
from headrace.sdk.deliveries import Deliveries, Handle, wait_done
from headrace.sdk.errors import fresh
from headrace.sdk.rows import Row, bytes_of, check_stamp, column_of, headers_of, slice_that_fits
from headrace.sdk.sender import Sender, TopicQueues
from headrace.sdk.serializers import Serializer, serialize_with
from headrace.sdk.settings import (
    Acks,
    ConnectionSettings,
    Credentials,
    ProducerSettings,
    Route,
    bootstrap_urls,
)
from headrace.sdk.transport import Transport

__all__ = ["Handle", "Producer"]

_DEFAULT = ProducerSettings()
_CONNECTION = ConnectionSettings()

YIELD_EVERY_BYTES = 4 << 20
"""`send_many` lets the loop run after so many bytes, so that requests leave while it goes on."""


class Producer:
    """Sends records. Use it as a context manager, on one event loop:

        async with Producer("http://127.0.0.1:9420") as producer:
            meta = await producer.send("orders", b"value", key=b"key")
            metas = await producer.send_many("orders", [b"a", b"b"])
            handle = producer.enqueue("orders", b"fire now")
            await producer.flush()

    Keyword arguments are the fields of `ProducerSettings` and `ConnectionSettings`, where each is
    explained. Retriable errors are retried until `delivery_timeout`; with `idempotence` that makes
    no duplicates and keeps each partition's order.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: Acks = _DEFAULT.acks,
        linger_ms: int = _DEFAULT.linger_ms,
        batch_bytes: int = _DEFAULT.batch_bytes,
        compression: Literal["none", "lz4", "zstd"] | None = _DEFAULT.compression,
        idempotence: bool = _DEFAULT.idempotence,
        delivery_timeout: float = _DEFAULT.delivery_timeout,
        buffer_bytes: int = _DEFAULT.buffer_bytes,
        request_bytes: int = _DEFAULT.request_bytes,
        requests_in_flight: int = _DEFAULT.requests_in_flight,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        client_id: str = _CONNECTION.client_id,
        credentials: Credentials | None = None,
        tls: Any = None,
        route: Route = _CONNECTION.route,
        request_timeout: float = _CONNECTION.request_timeout,
        connect_timeout: float = _CONNECTION.connect_timeout,
        metadata_max_age: float = _CONNECTION.metadata_max_age,
        retry_backoff_ms: int = _CONNECTION.retry_backoff_ms,
        retry_backoff_max_ms: int = _CONNECTION.retry_backoff_max_ms,
        transport: Transport | None = None,
    ) -> None:
        self._settings = ProducerSettings(
            acks=acks,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            compression=compression,
            idempotence=idempotence,
            delivery_timeout=delivery_timeout,
            buffer_bytes=buffer_bytes,
            request_bytes=request_bytes,
            requests_in_flight=requests_in_flight,
        )
        self._connection = ConnectionSettings(
            client_id=client_id,
            credentials=credentials,
            tls=tls,
            route=route,
            request_timeout=request_timeout,
            connect_timeout=connect_timeout,
            metadata_max_age=metadata_max_age,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        )
        self._bootstrap = bootstrap_urls(bootstrap)
        self._transport = transport
        self._dump_key = serialize_with(key_serializer, name="key_serializer")
        self._dump_value = serialize_with(value_serializer, name="value_serializer")
        self._is_plain = self._dump_value is None
        self._client: Client | None = None
        self._view: ClusterView | None = None
        self._sender: Sender | None = None
        self._topics: dict[str, TopicQueues] = {}
        self._unrouted: dict[str, _Unrouted] = {}
        self._is_closed = False
        self._wanted_bytes = 0

    # --- sending ---------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Mapping[str, Any] | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Sends one record and waits until it is acknowledged as `acks` says.

        Waits while the buffer is full. Cancelling the call doesn't take the record back.

        Raises:
            TopicNotFound, PartitionNotFound: there is no such place; nothing is created.
            RecordTooLarge, InvalidTimestamp: the record can't be sent.
            TypeError: not bytes, and no serializer given.
            DeliveryTimeout: not acknowledged in time; it may or may not be there.
        """
        sender = self._started()
        row = self._row(value, key, headers, timestamp_ms)
        if row.size > sender.room:
            await sender.wait_for_room(row.size)
        queues = await self._queues(topic)
        batch, index = self._put(queues, row, partition)
        batch.was_observed = True
        await wait_done(batch)
        if batch.error is not None:
            raise fresh(batch.error) from batch.error.__cause__
        return batch.metadata_of(index)

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
        """Takes one record without waiting; await the handle, or `flush`, to know its fate.

        A plain function: call it on the producer's loop, and let the loop run now and then (`await
        producer.ready()`). An unknown topic shows at the handle, as `send`'s errors do.

        Raises:
            BufferFull: too much is unacknowledged; `await producer.ready()` waits for room.
            RecordTooLarge, InvalidTimestamp, TypeError: the record can't be sent.
        """
        queues = self._topics.get(topic)
        if (
            queues is None
            or value.__class__ is not bytes
            or key is not None
            or headers is not None
            or timestamp_ms is not None
            or partition is not None
            or not self._is_plain
        ):
            return self._enqueue_any(topic, value, key, headers, timestamp_ms, partition)
        # From here to the end is the hot path: no call that can be spared.
        sender = self._sender
        size = len(value) + RECORD_OVERHEAD_BYTES
        if sender is None or size > sender.room or sender.is_closed:
            return self._enqueue_any(topic, value, key, headers, timestamp_ms, partition)
        queue = queues.sticky
        batch = queue.open
        if batch is None or batch.room < size:
            if size > queue.batch_bytes:
                self._check_large(queues, Row(value, None, None, None, size))
            batch = sender.open_batch(queue, size)
        sender.room -= size
        return Handle(batch, batch.append(value, None, None, sender.now_ms or sender.stamp(), size))

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[Mapping[str, Any] | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        partition: int | None = None,
    ) -> Sequence[RecordMetadata]:
        """Sends many records and waits for all of them; the fastest way in.

        `keys`, `headers` and `timestamps_ms` are as long as `values`. The answer is in their order
        and costs nothing until it is looked at.

        Raises:
            HeadraceError: as `send`; the first failure, after the fate of all is known. Others of
                the records may have been delivered.
        """
        sender = self._started()
        queues = await self._queues(topic)
        listed = values if isinstance(values, (list, tuple)) else list(values)
        if keys is None and headers is None and timestamps_ms is None and self._is_plain:
            spans = await self._put_plain(sender, queues, listed, partition)
        else:
            rows = self._rows(listed, keys, headers, timestamps_ms)
            spans = await self._put_rows(sender, topic, rows, partition)
        failed = await _all_done(spans)
        if failed is not None:
            raise failed
        return Deliveries(spans)

    async def ready(self) -> None:
        """Returns when `enqueue` has room again (for an eighth of the buffer, and for the record
        that it refused last), having let the loop send what is full."""
        sender = self._started()
        if sender.has_full_batch():
            await asyncio.sleep(0)
        wanted, self._wanted_bytes = self._wanted_bytes, 0
        await sender.wait_for_room(max(wanted, self._settings.buffer_bytes // 8))

    async def flush(self) -> None:
        """Sends everything now, whatever `linger_ms` says, and waits until its fate is known.

        Raises:
            HeadraceError: the first failure of an enqueued record whose handle nobody has awaited
                or asked for its result.
        """
        sender = self._started()
        for unrouted in list(self._unrouted.values()):
            if not unrouted.batch.is_done:
                await wait_done(unrouted.batch)
        await sender.flush()

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions.

        Raises:
            TopicNotFound: there is no such topic.
        """
        queues = await self._queues(topic)
        return [TopicPartition(topic, queue.partition) for queue in queues.queues]

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Producer:
        self._started()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            try:
                await self.close()
            except HeadraceError:
                if kind is None:
                    raise
        else:  # Cancelled or interrupted: don't wait for the brokers.
            await self._shut()

    async def close(self) -> None:
        """Flushes and gives up all connections; harmless when closed already.

        Raises:
            HeadraceError: as `flush`; it is closed all the same.
        """
        if self._sender is None or self._is_closed:
            self._is_closed = True
            return
        try:
            await self.flush()
        finally:
            await self._shut()

    async def _shut(self) -> None:
        self._is_closed = True
        for unrouted in list(self._unrouted.values()):
            unrouted.task.cancel()
        await asyncio.gather(
            *[unrouted.task for unrouted in self._unrouted.values()], return_exceptions=True
        )
        if self._sender is not None:
            await self._sender.close()
        if self._view is not None:
            await self._view.close()
        if self._client is not None:
            await self._client.close()

    def _started(self) -> Sender:
        if self._is_closed:
            raise Closed("the producer is closed")
        if self._sender is None:
            self._client = Client(self._bootstrap, self._connection, self._transport)
            self._view = ClusterView(self._client)
            self._sender = Sender(self._client, self._view, self._settings)
            self._topics = self._sender.topics
        return self._sender

    # --- one record ------------------------------------------------------------------------------

    async def _queues(self, topic: str) -> TopicQueues:
        sender = self._started()
        found = self._topics.get(topic)
        if found is None:
            check_name(topic, kind="topic")
            if topic in self._unrouted:
                await wait_done(self._unrouted[topic].batch)  # These came first.
            return await sender.load(topic)
        sender.refresh_if_old(found)
        return found

    def _row(self, value: Any, key: Any, headers: Mapping[str, Any] | None, stamp: Any) -> Row:
        value = bytes_of(value, self._dump_value, "value")
        key = bytes_of(key, self._dump_key, "key")
        checked = headers_of(headers) if headers else None
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        if checked:
            size += headers_size(checked)
        if stamp is not None:
            check_stamp(stamp)
        return Row(value, key, checked, stamp, size)

    def _put(self, queues: TopicQueues, row: Row, partition: int | None) -> tuple[Batch, int]:
        """Appends a record whose room has been checked."""
        sender = self._started()
        queue = _pick(queues, row.key, partition)
        size = row.size
        batch = queue.open
        if batch is None or batch.room < size:
            if size > queue.batch_bytes:
                self._check_large(queues, row)
            batch = sender.open_batch(queue, size)
        stamp = row.stamp
        if stamp is None:
            stamp = sender.now_ms or sender.stamp()
        sender.room -= size
        return batch, batch.append(row.value, row.key, row.headers, stamp, size)

    def _check_large(self, queues: TopicQueues, row: Row) -> None:
        sender = self._started()
        check_single(
            queues.view.name,
            row.value,
            row.key,
            row.headers,
            bytes_max=queues.view.max_message_bytes,
            compressed=sender.codec_of(queues.view) is not Codec.NONE,
        )

    def _enqueue_any(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Mapping[str, Any] | None,
        stamp: int | None,
        partition: int | None,
    ) -> Handle:
        sender = self._started()
        row = self._row(value, key, headers, stamp)
        buffer_bytes = self._settings.buffer_bytes
        if row.size > sender.room and sender.room < buffer_bytes:
            self._wanted_bytes = row.size
            raise BufferFull(
                f"{buffer_bytes - sender.room:,} bytes are not acknowledged yet, buffer_bytes is"
                f" {buffer_bytes:,}; `await producer.ready()` waits for room",
                details={"size_bytes": row.size},
            )
        queues = self._topics.get(topic)
        if queues is None:
            return self._enqueue_unrouted(sender, topic, row, partition)
        return Handle(*self._put(queues, row, partition))

    # --- records of a topic not looked up yet ----------------------------------------------------

    def _enqueue_unrouted(
        self, sender: Sender, topic: str, row: Row, partition: int | None
    ) -> Handle:
        unrouted = self._unrouted.get(topic)
        if unrouted is None:
            check_name(topic, kind="topic")
            unrouted = _Unrouted(topic, sender.loop)
            unrouted.task = sender.loop.create_task(self._route(unrouted))
            self._unrouted[topic] = unrouted
        if row.stamp is None:
            row.stamp = sender.now_ms or sender.stamp()
        sender.room -= row.size
        handle = Handle(unrouted.batch, len(unrouted.rows))
        unrouted.rows.append((handle, row, partition))
        return handle

    async def _route(self, unrouted: _Unrouted) -> None:
        """Looks the topic up and moves what was enqueued meanwhile to its partitions' queues."""
        sender = self._started()
        error: HeadraceError | None = None
        queues: TopicQueues | None = None
        try:
            queues = await sender.load(unrouted.batch.topic)
        except HeadraceError as failure:
            error = failure
        except asyncio.CancelledError:
            error = Closed("the producer was closed before the record could be delivered")
        del self._unrouted[unrouted.batch.topic]
        failed = 0
        for handle, row, partition in unrouted.rows:
            sender.room += row.size
            try:
                if queues is None:
                    continue
                placed, handle.index = self._put(queues, row, partition)
                placed.was_observed |= unrouted.batch.was_observed
                handle.batch = placed
            except HeadraceError as failure:
                failed += 1
                handle.batch = _failed_batch(unrouted.batch.topic, failure)
                if not unrouted.batch.was_observed:
                    sender.note_unseen(failure, 1)
        if error is not None:
            unrouted.batch.fail(error)
            if not unrouted.batch.was_observed:
                sender.note_unseen(error, len(unrouted.rows))
        else:
            unrouted.batch.deliver(-1, -1)  # Only wakes who waits; the handles have moved on.

    # --- many records ----------------------------------------------------------------------------

    async def _put_plain(
        self, sender: Sender, queues: TopicQueues, values: Sequence[Any], partition: int | None
    ) -> list[tuple[Batch, int, int]]:
        """Appends values without keys, slice by slice: no work per record but two C loops."""
        spans: list[tuple[Batch, int, int]] = []
        start, count, since_yield = 0, len(values), 0
        while start < count:
            queue = _pick(queues, None, partition)
            room = queue.open.room if queue.open is not None else 0
            chunk, size = slice_that_fits(values, start, room)
            if not chunk:
                queue.close_open()
                chunk, size = slice_that_fits(values, start, queue.batch_bytes - 128)
            if not chunk:  # The next value is larger than a batch is meant to be, or not bytes.
                row = self._row(values[start], None, None, None)
                spans += await self._put_rows(sender, queues.view.name, [row], partition)
                start += 1
                continue
            if size > sender.room:
                await sender.wait_for_room(size)
                queues = await self._queues(queues.view.name)
                continue
            batch = queue.open or sender.open_batch(queue, size)
            batch.was_observed = True
            sender.room -= size
            index = batch.extend(chunk, sender.now_ms or sender.stamp(), size)
            spans.append((batch, index, len(chunk)))
            start += len(chunk)
            since_yield += size
            if partition is None and start < count:
                queues.turn()
            if since_yield >= YIELD_EVERY_BYTES:
                since_yield = 0
                await asyncio.sleep(0)
                queues = await self._queues(queues.view.name)
        return spans

    def _rows(
        self,
        values: Sequence[Any],
        keys: Iterable[Any] | None,
        headers: Iterable[Mapping[str, Any] | None] | None,
        stamps: Iterable[int | None] | None,
    ) -> list[Row]:
        count = len(values)
        columns = [column_of(column, count) for column in (keys, headers, stamps)]
        return [self._row(*cells) for cells in zip(values, *columns, strict=True)]

    async def _put_rows(
        self, sender: Sender, topic: str, rows: list[Row], partition: int | None
    ) -> list[tuple[Batch, int, int]]:
        spans: list[tuple[Batch, int, int]] = []
        queues = await self._queues(topic)
        since_yield = 0
        for row in rows:
            if row.size > sender.room:
                await sender.wait_for_room(row.size)
                queues = await self._queues(topic)
            batch, index = self._put(queues, row, partition)
            batch.was_observed = True
            if spans and spans[-1][0] is batch and spans[-1][1] + spans[-1][2] == index:
                spans[-1] = (batch, spans[-1][1], spans[-1][2] + 1)
            else:
                spans.append((batch, index, 1))
            since_yield += row.size
            if since_yield >= YIELD_EVERY_BYTES:
                since_yield = 0
                await asyncio.sleep(0)
                queues = await self._queues(topic)
        return spans


class _Unrouted:
    """Records of a topic that is being looked up. `batch` only stands in for them meanwhile."""

    __slots__ = ("batch", "rows", "task")

    task: asyncio.Task[None]

    def __init__(self, topic: str, loop: asyncio.AbstractEventLoop) -> None:
        self.batch = Batch(topic, -1, room=0, opened_at=loop.time(), deadline=float("inf"))
        self.rows: list[tuple[Handle, Row, int | None]] = []


def _failed_batch(topic: str, error: HeadraceError) -> Batch:
    batch = Batch(topic, -1, room=0, opened_at=0.0, deadline=0.0)
    batch.fail(error)
    return batch


def _pick(queues: TopicQueues, key: bytes | None, partition: int | None) -> PartitionQueue:
    if partition is None:
        return queues.sticky if key is None else queues.queues[queues.by_key[key]]
    if not isinstance(partition, int) or not 0 <= partition < len(queues.queues):
        raise PartitionNotFound(
            f"topic {queues.view.name!r} has partitions 0 to {len(queues.queues) - 1},"
            f" not {partition!r}"
        )
    return queues.queues[partition]


async def _all_done(spans: list[tuple[Batch, int, int]]) -> BaseException | None:
    """Waits for all; the first failure with a note of how many records it hit."""
    first: HeadraceError | None = None
    failed = 0
    for batch, _, count in spans:
        if not batch.is_done:
            await wait_done(batch)
        if batch.error is not None:
            first = first or batch.error
            failed += count
    if first is None:
        return None
    error = fresh(first)
    total = sum(count for _, _, count in spans)
    error.add_note(f"{failed} of the call's {total} records were not delivered")
    return error
