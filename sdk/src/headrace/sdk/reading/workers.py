"""`Consumer.run`'s inner side: records to workers, a key always to the same one, and how far each
partition is finished when they end in any order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from headrace.protocol.record import Record
from headrace.sdk.core.positions import InOrder, PartitionState

WORKER_QUEUE_RECORDS = 64
"""Records that wait for one worker, at most; then reading pauses."""

Handler = Callable[[Any], Awaitable[object] | object]


class Workers:
    """`run`'s workers: a queue each; a key always goes to the same one."""

    def __init__(
        self,
        handler: Handler,
        count: int,
        finish: Callable[[PartitionState, int, int], None],
    ) -> None:
        self._handler = handler
        self._finish = finish
        self._queues: list[asyncio.Queue[tuple[Any, PartitionState, int, InOrder]]] = [
            asyncio.Queue(WORKER_QUEUE_RECORDS) for _ in range(count)
        ]
        self._progress: dict[tuple[PartitionState, int], InOrder] = {}
        self._turn = 0

    def has_unhandled(self, state: PartitionState) -> bool:
        """Whether records of the partition wait for a worker or are being handled."""
        progress = self._progress.get((state, state.version))
        return progress is not None and not progress.is_over

    async def run(
        self,
        next_records: Callable[[], Awaitable[Iterator[Record]]],
        state_of: Callable[[Record], PartitionState],
    ) -> None:
        """Feeds the workers until one of them, or reading, raises."""
        tasks = [asyncio.create_task(self._work(queue)) for queue in self._queues]
        tasks.append(asyncio.create_task(self._feed(next_records, state_of)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _feed(
        self,
        next_records: Callable[[], Awaitable[Iterator[Record]]],
        state_of: Callable[[Record], PartitionState],
    ) -> None:
        while True:
            for record in await next_records():
                state = state_of(record)
                key = (state, state.version)
                progress = self._progress.get(key)
                if progress is None:
                    progress = self._progress[key] = InOrder(record.offset)
                progress.begin(record.offset)
                await self._queue_for(record).put((record, state, state.version, progress))

    def _queue_for(self, record: Record) -> asyncio.Queue[tuple[Any, PartitionState, int, InOrder]]:
        if record.key is None:
            self._turn += 1
            return self._queues[self._turn % len(self._queues)]
        key = record.key if isinstance(record.key, (bytes, str, int)) else repr(record.key)
        return self._queues[hash((record.partition, key)) % len(self._queues)]

    async def _work(self, queue: asyncio.Queue[tuple[Any, PartitionState, int, InOrder]]) -> None:
        while True:
            record, state, version, progress = await queue.get()
            outcome = self._handler(record)
            if inspect.isawaitable(outcome):
                await outcome
            progress.end(record.offset)
            self._finish(state, version, progress.finished)
