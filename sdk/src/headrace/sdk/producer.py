"""The async producer: what programs call. The way of a record behind it is in `sending`.

`send` awaits each record, `send_many` a list, `enqueue` returns at once. All three feed the same
queues, so their order within a partition is the order of the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

from headrace.protocol.errors import Closed, HeadraceError
from headrace.protocol.ids import TopicPartition
from headrace.protocol.record import RecordMetadata
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.core.accumulator import RECORD_OVERHEAD_BYTES
from headrace.sdk.errors import fresh
from headrace.sdk.sending.buffer import Buffer
from headrace.sdk.sending.bulk import all_done, put_rows, put_values
from headrace.sdk.sending.deliveries import Deliveries, Handle, wait_done
from headrace.sdk.sending.intake import Intake, check_large
from headrace.sdk.sending.rows import Row, Rows, column_of
from headrace.sdk.sending.sender import Sender
from headrace.sdk.sending.topics import TopicQueues
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
        self._rows = Rows(
            dump_key=serialize_with(key_serializer, name="key_serializer"),
            dump_value=serialize_with(value_serializer, name="value_serializer"),
        )
        self._is_plain = self._rows.is_plain
        self._intake: Intake | None = None
        self._buffer: Buffer | None = None
        self._topics: dict[str, TopicQueues] = {}
        self._cleanup = AsyncExitStack()
        self._is_closed = False

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
        intake = self._started()
        row = self._rows.row(value, key, headers, timestamp_ms)
        if row.size > intake.buffer.room:
            await intake.buffer.wait_for_room(row.size)
        queues = await intake.queues(topic)
        batch, index = intake.put(queues, row, partition)
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
        buffer = self._buffer
        # From here to the end is the hot path: no call that can be spared.
        if (
            queues is None
            or buffer is None
            or value.__class__ is not bytes
            or key is not None
            or headers is not None
            or timestamp_ms is not None
            or partition is not None
            or not self._is_plain
            or (size := len(value) + RECORD_OVERHEAD_BYTES) > buffer.room
            or buffer.is_closed
        ):
            return self._started().enqueue(
                topic, value, key=key, headers=headers, stamp=timestamp_ms, partition=partition
            )
        queue = queues.sticky
        batch = queue.open
        if batch is None or batch.room < size:
            if size > queue.batch_bytes:
                check_large(queues, Row(value, None, None, None, size))
            batch = self._started().open_batch(queue, size)
        buffer.room -= size
        return Handle(batch, batch.append(value, None, None, buffer.now_ms or buffer.stamp(), size))

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
        intake = self._started()
        queues = await intake.queues(topic)
        listed = values if isinstance(values, (list, tuple)) else list(values)
        is_short = headers is None and timestamps_ms is None and self._is_plain
        if is_short and (keys is None or (partition is not None and self._rows.has_plain_keys)):
            its_keys = None if keys is None else column_of(keys, len(listed))
            spans = await put_values(intake, queues, listed, partition, its_keys)
        else:
            rows = self._rows.all(listed, keys=keys, headers=headers, stamps=timestamps_ms)
            spans = await put_rows(intake, topic, rows, partition)
        failed = await all_done(spans)
        if failed is not None:
            raise failed
        return Deliveries(spans)

    async def ready(self) -> None:
        """Returns when `enqueue` has room again (for an eighth of the buffer, and for the record
        that it refused last), having let the loop send what is full."""
        await self._started().ready()

    async def flush(self) -> None:
        """Sends everything now, whatever `linger_ms` says, and waits until its fate is known.

        Raises:
            HeadraceError: the first failure of an enqueued record whose handle nobody has awaited
                or asked for its result.
        """
        await self._started().flush()

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions.

        Raises:
            TopicNotFound: there is no such topic.
        """
        queues = await self._started().queues(topic)
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
        if self._intake is None or self._is_closed:
            self._is_closed = True
            return
        try:
            await self.flush()
        finally:
            await self._shut()

    async def _shut(self) -> None:
        self._is_closed = True
        await self._cleanup.aclose()

    def _started(self) -> Intake:
        if self._is_closed:
            raise Closed("the producer is closed")
        if self._intake is None:
            client = Client(self._bootstrap, self._connection, self._transport)
            view = ClusterView(client)
            sender = Sender(client, view, self._settings)
            self._intake = Intake(sender, self._rows)
            self._buffer = sender.buffer
            self._topics = sender.topics.by_name
            for part in (client, view, self._intake):  # Closed the other way round.
                self._cleanup.push_async_callback(part.close)
        return self._intake
