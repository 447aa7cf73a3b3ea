"""Many records at once, for `send_many`: plain values slice by slice, others row by row.

Both let the loop run now and then, so that requests leave while they go on, and give spans: where
each run of the caller's records went, in the caller's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.protocol.errors import HeadraceError
from headrace.sdk.core.accumulator import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES
from headrace.sdk.errors import fresh
from headrace.sdk.sending.deliveries import Span, wait_done
from headrace.sdk.sending.intake import Intake
from headrace.sdk.sending.rows import Row
from headrace.sdk.sending.topics import TopicQueues

YIELD_EVERY_BYTES = 4 << 20
"""`send_many` lets the loop run after so many bytes, so that requests leave while it goes on."""


async def put_values(
    intake: Intake,
    queues: TopicQueues,
    values: Sequence[Any],
    partition: int | None,
    keys: Sequence[Any] | None = None,
) -> list[Span]:
    """Appends values without keys (or with keys that don't choose the partition, because it is
    given), slice by slice: no work per record but a few C loops."""
    buffer, topic = intake.buffer, queues.view.name
    spans: list[Span] = []
    start, count, since_yield = 0, len(values), 0
    while start < count:
        queue = queues.pick(None, partition)
        room = queue.open.room if queue.open is not None else 0
        chunk, size = slice_that_fits(values, start, room, keys)
        if not chunk:
            queue.close_open()
            room = queue.batch_bytes - BATCH_OVERHEAD_BYTES
            chunk, size = slice_that_fits(values, start, room, keys)
        if not chunk:  # The next value is larger than a batch is meant to be, or not bytes.
            key = None if keys is None else keys[start]
            row = intake.rows.row(values[start], key, None, None)
            spans += await put_rows(intake, topic, [row], partition)
            start += 1
            continue
        if size > buffer.room:
            await buffer.wait_for_room(size)
            queues = await intake.queues(topic)
            continue
        batch = queue.open or intake.open_batch(queue, size)
        batch.was_observed = True
        buffer.room -= size
        its_keys = None if keys is None else keys[start : start + len(chunk)]
        index = batch.extend(chunk, buffer.now_ms or buffer.stamp(), size, its_keys)
        spans.append((batch, index, len(chunk)))
        start += len(chunk)
        since_yield += size
        if partition is None and start < count:
            queues.turn()
        if since_yield >= YIELD_EVERY_BYTES:
            since_yield = 0
            await asyncio.sleep(0)
            queues = await intake.queues(topic)
    return spans


async def put_rows(
    intake: Intake, topic: str, rows: Sequence[Row], partition: int | None
) -> list[Span]:
    """Appends rows one by one."""
    buffer = intake.buffer
    spans: list[Span] = []
    queues = await intake.queues(topic)
    since_yield = 0
    for row in rows:
        if row.size > buffer.room:
            await buffer.wait_for_room(row.size)
            queues = await intake.queues(topic)
        batch, index = intake.put(queues, row, partition)
        batch.was_observed = True
        if spans and spans[-1][0] is batch and spans[-1][1] + spans[-1][2] == index:
            spans[-1] = (batch, spans[-1][1], spans[-1][2] + 1)
        else:
            spans.append((batch, index, 1))
        since_yield += row.size
        if since_yield >= YIELD_EVERY_BYTES:
            since_yield = 0
            await asyncio.sleep(0)
            queues = await intake.queues(topic)
    return spans


def slice_that_fits(
    values: Sequence[Any], start: int, room: int, keys: Sequence[Any] | None = None
) -> tuple[Sequence[bytes], int]:
    """The longest run from `start` on (at most a guess) that has only bytes and fits `room`."""
    if room <= 0:
        return (), 0
    first = values[start]
    guess = room // ((len(first) if first.__class__ is bytes else 0) + RECORD_OVERHEAD_BYTES)
    while guess:
        chunk = values[start : start + guess]
        if set(map(type, chunk)) != {bytes}:
            return (), 0
        size = sum(map(len, chunk)) + len(chunk) * RECORD_OVERHEAD_BYTES
        if keys is not None:
            its_keys = keys[start : start + len(chunk)]
            if set(map(type, its_keys)) != {bytes}:
                return (), 0
            size += sum(map(len, its_keys))
        if size <= room:
            return chunk, size
        guess = min(guess - 1, len(chunk) * room // size)
    return (), 0


async def all_done(spans: Sequence[Span]) -> BaseException | None:
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
