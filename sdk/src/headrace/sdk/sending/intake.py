"""Where a record goes in: the topic's queues are found, its room is checked, its batch opened.

`send`, `send_many` and `enqueue` all end in `put` (or, without keys, in its fast forms beside it),
so the order within a partition is the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.protocol.compression import Codec
from headrace.protocol.errors import BufferFull
from headrace.protocol.names import check_name
from headrace.sdk.core.accumulator import Batch, check_single
from headrace.sdk.sending.buffer import Buffer
from headrace.sdk.sending.deliveries import Handle
from headrace.sdk.sending.rows import Row, Rows
from headrace.sdk.sending.sender import Sender
from headrace.sdk.sending.topics import TopicQueues
from headrace.sdk.sending.unrouted import Unrouted


class Intake:
    """The way in, of one producer that has begun to send; one loop."""

    def __init__(self, sender: Sender, rows: Rows) -> None:
        self.rows = rows
        self.sender = sender
        self.buffer = sender.buffer
        self.open_batch = sender.open_batch
        self._topics = sender.topics
        self._unrouted = Unrouted(self.buffer, load=self._topics.load, put=self.put)
        self._refused_bytes = 0

    async def queues(self, topic: str) -> TopicQueues:
        """The topic's queues, behind all that was enqueued to it before.

        Raises:
            TopicNotFound: there is no such topic.
        """
        self.buffer.check_open()
        found = self._topics.by_name.get(topic)
        if found is None:
            check_name(topic, kind="topic")
            await self._unrouted.wait(topic)  # These came first.
            return await self._topics.load(topic)
        self._topics.refresh_if_old(found)
        return found

    def put(self, queues: TopicQueues, row: Row, partition: int | None) -> tuple[Batch, int]:
        """Appends a record whose room has been checked; its batch, and its index there."""
        buffer = self.buffer
        if buffer.is_closed:
            buffer.check_open()
        queue = queues.pick(row.key, partition)
        size = row.size
        batch = queue.open
        if batch is None or batch.room < size:
            if size > queue.batch_bytes:
                check_large(queues, row)
            batch = self.open_batch(queue, size)
        stamp = row.stamp
        if stamp is None:
            stamp = buffer.now_ms or buffer.stamp()
        buffer.room -= size
        return batch, batch.append(row.value, row.key, row.headers, stamp, size)

    def enqueue(
        self,
        topic: str,
        value: Any,
        *,
        key: Any,
        headers: Mapping[str, Any] | None,
        stamp: int | None,
        partition: int | None,
    ) -> Handle:
        """Takes one record of any kind, without waiting.

        Raises:
            BufferFull: too much is unacknowledged.
        """
        row = self.rows.row(value, key, headers, stamp)
        buffer = self.buffer
        if row.size > buffer.room and buffer.room < buffer.bytes_max:
            self._refused_bytes = row.size
            raise buffer_full(buffer, row.size)
        queues = self._topics.by_name.get(topic)
        if queues is None:
            return self._unrouted.add(topic, row, partition)
        return Handle(*self.put(queues, row, partition))

    async def ready(self) -> None:
        """Returns when there is room for an eighth of the buffer and for what was refused last."""
        if self.sender.schedule.has_full_batch():
            await asyncio.sleep(0)
        refused, self._refused_bytes = self._refused_bytes, 0
        await self.buffer.wait_for_room(max(refused, self.buffer.bytes_max // 8))

    async def flush(self) -> None:
        """Sends everything and waits for it.

        Raises:
            HeadraceError: the first failure that nobody was told of.
        """
        await self._unrouted.wait_all()
        await self.sender.flush()

    async def close(self) -> None:
        """Fails what is left, and takes nothing more."""
        self.buffer.is_closed = True
        await self._unrouted.close()
        await self.sender.close()


def buffer_full(buffer: Buffer, size_bytes: int) -> BufferFull:
    """The error for a record that finds no room."""
    return BufferFull(
        f"{buffer.bytes_max - buffer.room:,} bytes are not acknowledged yet, buffer_bytes is"
        f" {buffer.bytes_max:,}; `await producer.ready()` waits for room",
        details={"size_bytes": size_bytes},
    )


def check_large(queues: TopicQueues, row: Row) -> None:
    """Refuses a record that can't be in any batch of its topic.

    Raises:
        RecordTooLarge: see `check_single`.
    """
    check_single(
        queues.view.name,
        row.value,
        row.key,
        row.headers,
        bytes_max=queues.view.max_message_bytes,
        compressed=queues.codec is not Codec.NONE,
    )
