"""Records in JSON: for curl, people, any language. Long ones are decoded off the loop."""

from __future__ import annotations

import asyncio
import itertools
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from headrace.broker.api import json_records
from headrace.broker.api.anywhere import Addressed, ProduceAnywhere
from headrace.broker.api.endpoint import Call, json_answer
from headrace.broker.api.fetch import Fetch
from headrace.broker.api.freshness import Freshness
from headrace.broker.api.inflight import Inflight
from headrace.broker.api.json_records import Placed
from headrace.broker.api.produce import TIMEOUT_MS_MAX, Outcome
from headrace.broker.clock import Clock
from headrace.broker.core.topic_config import TopicConfig
from headrace.broker.partition.manager import PartitionManager
from headrace.protocol import limits
from headrace.protocol.compression import CODEC_NAMES, Codec
from headrace.protocol.errors import HeadraceError, InvalidRequest, from_code
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.models import (
    ErrorBody,
    JsonFetchAnswer,
    JsonProduce,
    JsonProduceAnswer,
    JsonProduced,
    JsonRecord,
    Name,
    Partition,
)
from headrace.protocol.requests import ACKS_NAMES, FetchPart, FetchResult

INLINE_BYTES = 64 * 1024
"""JSON and batches up to this are handled on the loop, larger ones by a thread."""


class ProduceQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How sure the answer must be, and how long to wait for that."""

    acks: str = "all"
    timeout_ms: Annotated[int, Meta(ge=0, le=TIMEOUT_MS_MAX)] = 30_000


class FetchQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Where to read, how much, and how long to wait if nothing is there yet."""

    offset: str = "earliest"
    max_bytes: Annotated[int, Meta(ge=1, le=limits.BATCH_BYTES_MAX)] = 1 << 20
    max_records: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    min_bytes: Annotated[int, Meta(ge=0, le=limits.BATCH_BYTES_MAX)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class PartitionPath(msgspec.Struct, forbid_unknown_fields=True):
    """A partition by its topic's name."""

    topic: Name
    partition: Partition


class Records:
    """JSON in front of the same produce and fetch that batches take."""

    def __init__(
        self,
        manager: PartitionManager,
        produce: ProduceAnywhere,
        fetch: Fetch,
        *,
        fresh: Freshness,
        clock: Clock,
        inflight: Inflight,
    ) -> None:
        self._fresh = fresh
        self._manager = manager
        self._produce = produce
        self._fetch = fetch
        self._clock = clock
        self._inflight = inflight
        self._turns = itertools.count()

    async def produce(self, call: Call) -> web.StreamResponse:
        """POST /v1/topics/{topic}/records."""
        acks = ACKS_NAMES.get(call.query.acks)
        if acks is None:
            raise InvalidRequest(f"acks is all, 1 or 0, not {call.query.acks!r}")
        body: JsonProduce = call.body
        topic = self._manager.writable_topic(call.path.topic)
        config = self._manager.config(topic)
        self._produce.require_rate(call)
        placed = await self._encode(body.records, topic.partition_count, config, call)
        parts = [
            Addressed(TopicIdPartition(topic.topic_id, each.partition), memoryview(each.batch))
            for each in placed
        ]
        outcomes = await self._produce.write(
            call, parts, acks=acks, timeout_ms=call.query.timeout_ms
        )
        return _produced(len(body.records), placed, outcomes)

    async def _encode(
        self, records: list[JsonRecord], partition_count: int, config: TopicConfig, call: Call
    ) -> list[Placed]:
        def encode() -> list[Placed]:
            return json_records.to_batches(
                records,
                partition_count=partition_count,
                now_ms=now_ms,
                sticky=turn % partition_count,
                codec=codec,
                batch_bytes_max=config.max_message_bytes,
            )

        now_ms, turn = self._clock.now_ms(), next(self._turns)
        codec = CODEC_NAMES.get(config.compression_type, Codec.NONE)
        if (call.request.content_length or 0) <= INLINE_BYTES:
            return encode()
        return await asyncio.to_thread(encode)

    async def fetch(self, call: Call) -> web.StreamResponse:
        """GET /v1/topics/{topic}/partitions/{partition}/records."""
        query: FetchQuery = call.query
        topic = self._manager.topic(call.path.topic)
        where = TopicIdPartition(topic.topic_id, call.path.partition)
        await self._fresh.of_partitions([where])
        partition = self._manager.find(where)
        partition.require_usable()
        offset = _start(query.offset, partition.log.start_offset, partition.high_watermark)
        found = await self._fetch.gather(
            [FetchPart(topic.topic_id, call.path.partition, offset, query.max_bytes)],
            principal=call.principal,
            min_bytes=query.min_bytes,
            max_bytes=query.max_bytes,
            max_wait_ms=query.wait_ms,
        )
        try:
            result = found.results[0]
            if result.error is not None:
                partition.check_readable(offset)
                raise from_code(result.error, result.message or "")
            # Held until the answer is made: the records in all their forms are what takes memory.
            with self._inflight.hold(found.size_bytes):
                with partition.reading():
                    data = b"".join([await each.read() for each in found.slices])
                return await _answer(call, data, offset, result)
        finally:
            found.close()


async def _answer(call: Call, data: bytes, offset: int, result: FetchResult) -> web.StreamResponse:
    query: FetchQuery = call.query
    decode = json_records.from_batches
    if len(data) <= INLINE_BYTES:
        records, next_offset = decode(data, offset=offset, records_max=query.max_records)
    else:
        records, next_offset = await asyncio.to_thread(
            decode, data, offset=offset, records_max=query.max_records
        )
    return json_answer(
        JsonFetchAnswer(
            call.path.topic,
            call.path.partition,
            records,
            next_offset,
            result.high_watermark,
            result.log_start_offset,
        )
    )


def _start(text: str, earliest: int, latest: int) -> int:
    named = {"earliest": earliest, "latest": latest}
    if text in named:
        return named[text]
    if not (text.isascii() and text.isdigit()) or int(text) > limits.OFFSET_MAX:
        raise InvalidRequest(f"offset is a number, earliest or latest, not {text[:40]!r}")
    return int(text)


def _produced(count: int, placed: list[Placed], outcomes: list[Outcome]) -> web.Response:
    answers: list[JsonProduced | None] = [None] * count
    failed: HeadraceError | None = None
    written = 0
    for each, outcome in zip(placed, outcomes, strict=True):
        if outcome.error is None:
            written += 1
        else:
            failed = outcome.error
        for rank, index in enumerate(each.indexes):
            answers[index] = _one(each, rank, outcome)
    if failed is not None and not written:
        raise failed
    body = JsonProduceAnswer([answer for answer in answers if answer is not None])
    return json_answer(body, status=200 if failed is None else 207)


def _one(placed: Placed, rank: int, outcome: Outcome) -> JsonProduced:
    if outcome.error is not None:
        return JsonProduced(placed.partition, error=ErrorBody.of(outcome.error))
    offset = outcome.result.base_offset + rank
    return JsonProduced(placed.partition, offset, placed.timestamps[rank])
