"""Records enqueued to a topic that is still being looked up: they wait here, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.protocol.errors import Closed, HeadraceError
from headrace.protocol.names import check_name
from headrace.sdk.core.accumulator import Batch
from headrace.sdk.sending.buffer import Buffer
from headrace.sdk.sending.deliveries import Handle, wait_done
from headrace.sdk.sending.rows import Row
from headrace.sdk.sending.topics import TopicQueues


class _Lookup:
    """One topic's records. `batch` only stands in for them meanwhile."""

    __slots__ = ("batch", "rows", "task")

    task: asyncio.Task[None]

    def __init__(self, topic: str, loop: asyncio.AbstractEventLoop) -> None:
        self.batch = Batch(topic, -1, room=0, opened_at=loop.time(), deadline=float("inf"))
        self.rows: list[tuple[Handle, Row, int | None]] = []


class Unrouted:
    """The topics being looked up; `load` does so, `put` is where their records go then."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        load: Callable[[str], Awaitable[TopicQueues]],
        put: Callable[[TopicQueues, Row, int | None], tuple[Batch, int]],
    ) -> None:
        self._buffer = buffer
        self._load = load
        self._put = put
        self._lookups: dict[str, _Lookup] = {}

    def add(self, topic: str, row: Row, partition: int | None) -> Handle:
        """Takes one record; its handle moves on with it."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            check_name(topic, kind="topic")
            lookup = _Lookup(topic, self._buffer.loop)
            lookup.task = self._buffer.loop.create_task(self._route(lookup))
            self._lookups[topic] = lookup
        if row.stamp is None:
            row.stamp = self._buffer.now_ms or self._buffer.stamp()
        self._buffer.room -= row.size
        handle = Handle(lookup.batch, len(lookup.rows))
        lookup.rows.append((handle, row, partition))
        return handle

    async def wait(self, topic: str) -> None:
        """Returns when no records of the topic are here."""
        if topic in self._lookups:
            await wait_done(self._lookups[topic].batch)

    async def wait_all(self) -> None:
        """Returns when the records that are here now have gone on."""
        for lookup in list(self._lookups.values()):
            if not lookup.batch.is_done:
                await wait_done(lookup.batch)

    async def _route(self, lookup: _Lookup) -> None:
        """Looks the topic up and moves what was enqueued meanwhile to its partitions' queues."""
        topic = lookup.batch.topic
        error: HeadraceError
        try:
            queues = await self._load(topic)
        except HeadraceError as failure:
            error = failure
        except asyncio.CancelledError:
            error = Closed("the producer was closed before the record could be delivered")
        else:
            del self._lookups[topic]
            self._move(lookup, queues)
            return
        del self._lookups[topic]
        self._fail(lookup, error)

    def _move(self, lookup: _Lookup, queues: TopicQueues) -> None:
        for handle, row, partition in lookup.rows:
            self._buffer.room += row.size
            try:
                placed, handle.index = self._put(queues, row, partition)
                placed.was_observed |= lookup.batch.was_observed
                handle.batch = placed
            except HeadraceError as failure:
                handle.batch = _failed_batch(lookup.batch.topic, failure)
                if not lookup.batch.was_observed:
                    self._buffer.note_unseen(failure, 1)
        lookup.batch.deliver(-1, -1)  # Only wakes who waits; the handles have moved on.

    def _fail(self, lookup: _Lookup, error: HeadraceError) -> None:
        self._buffer.room += sum(row.size for _, row, _ in lookup.rows)
        lookup.batch.fail(error)
        if not lookup.batch.was_observed:
            self._buffer.note_unseen(error, len(lookup.rows))

    async def close(self) -> None:
        """Gives the lookups up; their records fail."""
        tasks = [lookup.task for lookup in self._lookups.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gone = Closed("the producer was closed before the record could be delivered")
        while self._lookups:  # Their tasks never came to begin.
            self._fail(self._lookups.popitem()[1], gone)


def _failed_batch(topic: str, error: HeadraceError) -> Batch:
    batch = Batch(topic, -1, room=0, opened_at=0.0, deadline=0.0)
    batch.fail(error)
    return batch
