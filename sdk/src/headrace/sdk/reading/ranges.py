"""Reads `[start, until)` of one partition to its end: whole batches, one fetch ahead of the reader.

For jobs that know what they want (Spark's tasks, tables of records), beside the consumer, which
never ends. Offsets that don't exist (compaction) are no reason to wait: the broker answers behind
them. What retention took away is told or skipped, as asked for, never passed over in silence.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headrace.protocol import batch as batches
from headrace.protocol import framing, routes
from headrace.protocol.errors import (
    HeadraceError,
    InternalError,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicNotFound,
    from_code,
)
from headrace.protocol.ids import TopicId, TopicPartition
from headrace.protocol.requests import (
    BATCH_MEDIA_TYPE,
    READ_COMMITTED,
    FetchPart,
    FetchRequest,
    FetchResponse,
    FetchResult,
)
from headrace.sdk.connections import Connection
from headrace.sdk.core.positions import RawBatch
from headrace.sdk.offsets import ask, query_for

log = logging.getLogger("headrace.sdk.ranges")
_decoder = msgspec.msgpack.Decoder(FetchResponse)

WAIT_MS = 1_000
"""How long the broker waits where records of the range are not there yet (a failover)."""


class OffsetRange(NamedTuple):
    """Offsets `[start, until)` of a partition of the topic with that id."""

    topic: str
    topic_id: TopicId
    partition: int
    start: int
    until: int


@dataclass(frozen=True)
class RangeSettings:
    """How ranges are read."""

    fetch_bytes: int = 4 << 20
    """Bytes of one answer; a reader holds up to two."""

    stalled_s: float = 120.0
    """Without any progress for so long (failover, network), reading fails. Kafka's Spark source
    waits as long by default."""

    skip_lost: bool = False
    """Whether records that retention removed are passed over with a warning, instead of raised."""


class RangeReader:
    """One pass over one range. Runs on the loop of its connection."""

    def __init__(
        self, connection: Connection, wanted: OffsetRange, settings: RangeSettings
    ) -> None:
        self.position = wanted.start
        self._connection = connection
        self._wanted = wanted
        self._settings = settings
        self._ahead: asyncio.Task[list[RawBatch]] | None = None

    async def next(self) -> list[RawBatch]:
        """The next batches; empty at the end. Their records before `first_offset` and from the
        range's end on are to be left out.

        Raises:
            OffsetOutOfRange: records of the range are gone (and `skip_lost` is off).
            TopicNotFound: the topic is gone, or another one has its name.
            HeadraceError: no progress within `stalled_s`.
        """
        task = self._ahead or asyncio.ensure_future(self._fetch())
        self._ahead = None
        try:
            found = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        if found and self.position < self._wanted.until:
            self._ahead = asyncio.ensure_future(self._fetch())
        return found

    async def close(self) -> None:
        """Gives up the fetch under way."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
            self._ahead = None

    async def _fetch(self) -> list[RawBatch]:
        """The next batches that have records to give; moves `position` behind them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.stalled_s
        attempt = 0
        while self.position < self._wanted.until:
            before = self.position
            try:
                found = await self._ask()
            except OffsetOutOfRange as error:
                await self._lost(error, is_last_try=loop.time() >= deadline)
                found = []
            except HeadraceError as error:
                attempt += 1
                await self._pause(error, attempt, deadline)
                continue
            if found:
                return found
            if self.position > before:
                deadline, attempt = loop.time() + self._settings.stalled_s, 0
            elif loop.time() >= deadline:
                raise self._stalled()
        return []

    async def _ask(self) -> list[RawBatch]:
        topic, topic_id, partition, _, until = self._wanted
        client, view = self._connection.client, self._connection.view
        if view.known(topic) is None:
            await view.topic(topic)
        url = view.url_of(topic, partition)
        if url is None:
            await view.refresh(topic)
            url = view.url_of(topic, partition) or client.bootstrap_url
        size = self._settings.fetch_bytes
        part = FetchPart(topic_id, partition, self.position, size, until=until)
        request = FetchRequest(WAIT_MS, 1, size, READ_COMMITTED, [part])
        try:
            response = await client.send(
                url,
                "POST",
                routes.FETCH,
                body=(framing.head(request),),
                content_type=BATCH_MEDIA_TYPE,
                timeout=client.settings.request_timeout + WAIT_MS / 1000,
            )
        except HeadraceError as error:
            view.went_wrong(url, error)
            raise
        answer, data = framing.split(response.body, _decoder)
        if len(answer.parts) != 1:
            raise InternalError("the broker answered for other partitions than were asked for")
        if answer.throttle_ms:
            await asyncio.sleep(answer.throttle_ms / 1000)
        return self._accept(answer.parts[0], data)

    def _accept(self, result: FetchResult, data: memoryview) -> list[RawBatch]:
        topic, _, partition, _, until = self._wanted
        if result.error is not None:
            message = f"{topic}/{partition}: {result.message or result.error}"
            raise from_code(result.error, message)
        found: list[RawBatch] = []
        for at, header in batches.walk(data):
            if header.next_offset <= self.position:
                continue
            if header.base_offset >= until:
                self.position = until
                break
            piece = data[at : at + header.length]
            if header.record_count and not header.is_control:
                found.append(RawBatch(topic, partition, header, piece, self.position))
            self.position = header.next_offset
        return found

    async def _lost(self, error: OffsetOutOfRange, *, is_last_try: bool) -> None:
        """The position is not in the log: before its start, records are gone; behind its end, a
        new leader may not have told yet how far the log goes."""
        topic, _, partition, _, until = self._wanted
        where = TopicPartition(topic, partition)
        timeout = self._connection.client.settings.request_timeout
        queries = [query_for(where, "earliest"), query_for(where, "latest")]
        first, last = await ask(self._connection.client, queries, timeout=timeout)
        start = first.offset
        if start is None or last.offset is None:
            raise error
        if start <= self.position:
            if not is_last_try:
                await asyncio.sleep(self._connection.client.backoff.max_ms / 1000)
                return
            start = until
        lost_to = min(start, until)
        message = (
            f"{topic}/{partition}: offsets {self.position} to {lost_to - 1} are gone; the log has"
            f" {first.offset} to {last.offset - 1}"
        )
        if not self._settings.skip_lost:
            raise OffsetOutOfRange(
                message, details={"offset": self.position, "log_start_offset": first.offset}
            ) from error
        log.warning("%s; they are skipped", message)
        self.position = lost_to

    async def _pause(self, error: HeadraceError, attempt: int, deadline: float) -> None:
        topic, topic_id = self._wanted.topic, self._wanted.topic_id
        client, view = self._connection.client, self._connection.view
        if isinstance(error, TopicNotFound):
            found = await view.refresh(topic)  # Raises where there is none of that name either.
            if found.topic_id != topic_id:
                raise TopicNotFound(
                    f"topic {topic!r} was deleted and created again: it has id"
                    f" {found.topic_id.hex()}, the records wanted were in {topic_id.hex()}"
                ) from error
        loop = asyncio.get_running_loop()
        at = client.next_try(error, attempt=attempt, now=loop.time(), deadline=deadline)
        if at is None and not isinstance(error, TopicNotFound):
            raise error
        if loop.time() >= deadline:
            raise error
        await asyncio.sleep((at or loop.time() + 0.5) - loop.time())
        try:
            await view.refresh(topic)
        except HeadraceError as failure:
            log.debug("the leaders of %s can't be asked: %s", topic, failure)

    def _stalled(self) -> RequestTimedOut:
        topic, _, partition, _, until = self._wanted
        return RequestTimedOut(
            f"{topic}/{partition}: no records from offset {self.position} on for"
            f" {self._settings.stalled_s:.0f} s, although {until} was promised as the end; is a"
            " replica missing? The same read may work later"
        )
