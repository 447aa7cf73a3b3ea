"""Questions about offsets, asked until they are answered; shared by consumer and admin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from headrace.protocol import limits, routes
from headrace.protocol.errors import HeadraceError, InvalidRequest
from headrace.protocol.ids import TopicPartition
from headrace.protocol.models import OffsetAnswer, OffsetQuery, OffsetsAnswer, OffsetsRequest
from headrace.sdk.client import Client

Where = int | Literal["earliest", "latest"] | datetime
"""A place in a partition: an offset, an end, or the first record at or after a time."""


async def ask(
    client: Client, queries: Sequence[OffsetQuery], *, timeout: float, repeat: bool = True
) -> list[OffsetAnswer]:
    """The answers in the order of the questions. Those that fail with a retriable error are asked
    again (if `repeat`) until `timeout` seconds are over; what still fails keeps its `error`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    answers: list[OffsetAnswer | None] = [None] * len(queries)
    open_ones = list(range(len(queries)))
    attempt = 0
    while open_ones:
        attempt += 1
        failed: list[int] = []
        error: HeadraceError | None = None
        for start in range(0, len(open_ones), limits.PARTITIONS_PER_REQUEST_MAX):
            indexes = open_ones[start : start + limits.PARTITIONS_PER_REQUEST_MAX]
            request = OffsetsRequest([queries[index] for index in indexes])
            left_s = max(deadline - loop.time(), 0.001)
            found = await client.call(
                "POST", routes.OFFSETS, OffsetsAnswer, body=request, timeout=left_s
            )
            for index, answer in zip(indexes, found.answers, strict=True):
                answers[index] = answer
                if answer.error is not None and answer.error.retriable:
                    failed.append(index)
                    error = answer.error.to_error()
        if error is None or not repeat:
            break
        at = client.next_try(error, attempt=attempt, now=loop.time(), deadline=deadline)
        if at is None:
            break
        open_ones = failed
        await asyncio.sleep(at - loop.time())
    return [answer for answer in answers if answer is not None]


def query_for(where: TopicPartition, place: Where) -> OffsetQuery:
    """The question for a place that is not a plain offset."""
    if isinstance(place, datetime):
        return OffsetQuery(*where, "timestamp", timestamp_ms=round(place.timestamp() * 1000))
    if place == "earliest":
        return OffsetQuery(*where, "earliest")
    if place == "latest":
        return OffsetQuery(*where, "latest")
    raise TypeError(f"a place is an offset, 'earliest', 'latest' or a datetime, got {place!r}")


async def places_of(
    client: Client, partitions: Sequence[TopicPartition], to: Where, *, timeout: float
) -> dict[TopicPartition, int]:
    """The offset of a place in each of the partitions; the end where no record is that late.

    Raises:
        InvalidRequest: a number that is no offset.
        HeadraceError: a partition can't be asked within `timeout` seconds.
    """
    if isinstance(to, int):
        return dict.fromkeys(partitions, checked_offset(to))
    queries = [query_for(where, to) for where in partitions]
    answers = await ask(client, queries, timeout=timeout)
    found: dict[TopicPartition, int] = {}
    late: list[TopicPartition] = []
    for where, answer in zip(partitions, answers, strict=True):
        if answer.error is not None:
            raise answer.error.to_error()
        if answer.offset is None:
            late.append(where)
        else:
            found[where] = answer.offset
    return found | (await places_of(client, late, "latest", timeout=timeout) if late else {})


def checked_offset(offset: int) -> int:
    """The offset, if it can be one.

    Raises:
        InvalidRequest: it is negative, or no whole number.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise InvalidRequest(f"an offset is a whole number of at least 0, got {offset!r}")
    return offset
