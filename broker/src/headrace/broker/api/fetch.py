"""The way out: the log's bytes of many partitions, at once or as soon as there are some.

The broker copies whole batches and looks inside none. Up to 256 KiB go out as one response, more
in pieces of 64 KiB (docs/performance.md: sendfile is slower for small and equal for large).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from headrace.broker.api.auth import Policy, Principal
from headrace.broker.api.endpoint import Call
from headrace.broker.api.inflight import Inflight
from headrace.broker.clock import Clock
from headrace.broker.lifecycle import Lifecycle
from headrace.broker.log.slices import LogSlice
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.quotas import Quotas
from headrace.broker.partition.waiters import ReadWaiter
from headrace.broker.settings import Settings
from headrace.protocol import framing, limits
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import HeadraceError, InvalidRequest
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.requests import (
    BATCH_MEDIA_TYPE,
    CLIENT_HEADER,
    FetchPart,
    FetchRequest,
    FetchResponse,
    FetchResult,
)

log = logging.getLogger(__name__)

WHOLE_BYTES = 256 << 10
"""Answers up to this go out in one write."""

PIECE_BYTES = 64 << 10
"""Larger ones go out in pieces of it, and between two the loop gets its turn: live records beside
a cold reader at full speed came 1.6 times as fast at p99 as with pieces of 256 KiB."""

_decoder = msgspec.msgpack.Decoder(FetchRequest)


@dataclass(slots=True)
class Gathered:
    """What is there to answer with. `urgent`: don't wait for more. `throttle_s`: what the topics'
    rates ask the reader to wait before it comes again."""

    results: list[FetchResult] = field(default_factory=list)
    slices: list[LogSlice] = field(default_factory=list)
    partitions: list[Partition] = field(default_factory=list)
    size_bytes: int = 0
    urgent: bool = False
    throttle_s: float = 0.0

    def close(self) -> None:
        """Lets go of the files."""
        for each in self.slices:
            each.close()


@dataclass(frozen=True, slots=True)
class _Reader:
    """Who reads, and where it is ("": it doesn't matter)."""

    principal: Principal
    rack: str


class Fetch:
    """Serves POST /v1/fetch, and the JSON fetch through `read_one`."""

    def __init__(
        self,
        manager: PartitionManager,
        *,
        policy: Policy,
        clock: Clock,
        settings: Settings,
        inflight: Inflight,
        lifecycle: Lifecycle,
        quotas: Quotas,
    ) -> None:
        self._manager = manager
        self._policy = policy
        self._clock = clock
        self._settings = settings
        self._inflight = inflight
        self._lifecycle = lifecycle
        self._quotas = quotas
        self._waiting: set[ReadWaiter] = set()

    async def handle(self, call: Call, request: FetchRequest) -> web.StreamResponse:
        """A whole request whose partitions are this broker's own, as far as it knows."""
        rate = self._quotas.client(call.request.headers.get(CLIENT_HEADER)).fetch
        self._quotas.require(rate, whose="this client")
        with ExitStack() as open_files:
            found = await self.gather(
                request.parts,
                principal=call.principal,
                min_bytes=request.min_bytes,
                max_bytes=min(request.max_bytes, self._settings.fetch_bytes_max),
                max_wait_ms=request.max_wait_ms,
                rack=request.rack,
            )
            open_files.callback(found.close)
            open_files.enter_context(self._inflight.hold(found.size_bytes))
            wait_s = max(found.throttle_s, self._quotas.charge(rate, found.size_bytes))
            return await _send(call.request, found, throttle_ms=int(wait_s * 1000))

    async def read_parts(
        self, parts: Sequence[FetchPart], call: Call, *, max_bytes: int, max_wait_ms: int
    ) -> tuple[list[FetchResult], list[Buffer]]:
        """Some parts of a request with their bytes in memory: for an answer that is made of
        several brokers' answers."""
        found = await self.gather(
            parts, principal=call.principal, min_bytes=1, max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
        )  # fmt: skip
        try:
            with self._inflight.hold(found.size_bytes):
                return found.results, await _read_all(found)
        finally:
            found.close()

    def wake_all(self) -> None:
        """Ends all waiting polls with what there is: the broker is going down."""
        for waiter in self._waiting:
            waiter.wake()

    async def gather(
        self,
        parts: Sequence[FetchPart],
        *,
        principal: Principal,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        rack: str = "",
    ) -> Gathered:
        """What the parts have to say, once it is `min_bytes`, urgent, or time."""
        found = await self._wait_for(
            parts, _Reader(principal, rack), min_bytes=min_bytes, max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
        )  # fmt: skip
        for partition, each in zip(found.partitions, found.slices, strict=True):
            partition.stats.bytes_out += each.length
            delay_s = self._quotas.charge(partition.rates.fetch, each.length)
            found.throttle_s = max(found.throttle_s, delay_s)
        return found

    async def _wait_for(
        self,
        parts: Sequence[FetchPart],
        reader: _Reader,
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
    ) -> Gathered:
        wait_s = min(max_wait_ms, self._settings.fetch_wait_ms_max) / 1000
        deadline = self._clock.monotonic() + wait_s
        found = await self._look(parts, max_bytes, reader)
        if found.urgent or found.size_bytes >= min_bytes or wait_s <= 0:
            return found
        waiter = ReadWaiter()
        partitions = self._subscribe(parts, waiter)
        try:
            while True:
                waiter.looking()
                found.close()
                found = await self._look(parts, max_bytes, reader)
                left_s = deadline - self._clock.monotonic()
                enough = found.urgent or found.size_bytes >= min_bytes
                if enough or left_s <= 0 or not self._lifecycle.serving:
                    return found
                if not await waiter.wait(left_s):
                    return found
        finally:
            self._waiting.discard(waiter)
            for partition in partitions:
                partition.unsubscribe(waiter)

    def _subscribe(self, parts: Sequence[FetchPart], waiter: ReadWaiter) -> list[Partition]:
        found = []
        self._waiting.add(waiter)
        for part in parts:
            where = TopicIdPartition(TopicId(part.topic_id), part.partition)
            partition = self._manager.get(where)
            if partition is not None:
                partition.subscribe(waiter)
                found.append(partition)
        return found

    async def _look(self, parts: Sequence[FetchPart], max_bytes: int, reader: _Reader) -> Gathered:
        found = Gathered()
        try:
            for part in parts:
                await self._look_at(part, max_bytes - found.size_bytes, found, reader)
        except BaseException:
            found.close()
            raise
        return found

    async def _look_at(
        self, part: FetchPart, room_bytes: int, found: Gathered, reader: _Reader
    ) -> None:
        where = TopicIdPartition(TopicId(part.topic_id), part.partition)
        result = FetchResult(where.topic_id, where.partition)
        found.results.append(result)
        try:
            partition = self._manager.find(where)
            self._policy.authorize(reader.principal, "read", f"topic:{partition.topic}")
            self._quotas.require(partition.rates.fetch, whose=f"topic {partition.topic!r}")
            is_followed = bool(reader.rack) and partition.following is not None
            if is_followed:
                self._manager.require_served_by_follower(partition, part.offset, part.leader_epoch)
            else:
                partition.require_usable(part.leader_epoch)
                partition.check_readable(part.offset)
            if reader.rack and not is_followed:
                result.preferred_replica = self._manager.replica_in_rack(
                    partition, reader.rack, part.offset
                )
            slice_ = None
            is_elsewhere = result.preferred_replica >= 0
            is_behind = is_followed and part.offset >= partition.high_watermark
            if room_bytes > 0 and not (is_done(part) or is_elsewhere or is_behind):
                slice_ = await _locate(partition, part, min(part.max_bytes, room_bytes))
        except HeadraceError as error:
            result.error, result.message = error.code, error.message
            found.urgent = True
            return
        log = partition.log
        result.high_watermark = result.last_stable_offset = partition.high_watermark
        result.log_start_offset = log.start_offset
        result.leader_epoch = partition.leader_epoch
        if slice_ is not None:
            result.length = slice_.length
            found.size_bytes += slice_.length
            found.slices.append(slice_)
            found.partitions.append(partition)
        found.urgent = found.urgent or is_done(part) or is_elsewhere


def is_done(part: FetchPart) -> bool:
    """Whether the reader is at the end that it named."""
    return 0 <= part.until <= part.offset


async def _locate(partition: Partition, part: FetchPart, max_bytes: int) -> LogSlice | None:
    found = await _locate_at(partition, part.offset, max_bytes)
    if found is None or not 0 <= part.until < found.next_offset:
        return found
    if found.base_offset < part.until:
        await _cut_at(partition, found, part.until)
    if found.base_offset < part.until and found.length > 0:
        return found
    found.close()  # compaction left nothing below `until`: an empty batch says so
    return partition.log.skip(part.offset, part.until)


async def _locate_at(
    partition: Partition, offset: int, max_bytes: int, *, with_expired: bool = False
) -> LogSlice | None:
    try:
        return partition.locate(offset, max_bytes=max_bytes, with_expired=with_expired)
    except BlockingIOError:
        return await partition.locate_cold(offset, max_bytes=max_bytes, with_expired=with_expired)


async def _cut_at(partition: Partition, found: LogSlice, until: int) -> None:
    """Takes the batches that begin at or after `until` out of the slice."""
    last = await _locate_at(partition, until, 1, with_expired=True)
    if last is None:
        return
    with last:
        if last.base_offset < until:
            found.cut(last)
        else:
            found.cut_before(last)


async def _send(request: web.Request, found: Gathered, *, throttle_ms: int) -> web.StreamResponse:
    if found.size_bytes <= WHOLE_BYTES:
        data = await _read_all(found)
        head = framing.head(FetchResponse(throttle_ms, found.results))
        return web.Response(body=b"".join([head, *data]), content_type=BATCH_MEDIA_TYPE)
    head = framing.head(FetchResponse(throttle_ms, found.results))
    response = web.StreamResponse()
    response.content_type = BATCH_MEDIA_TYPE
    response.content_length = len(head) + found.size_bytes
    await response.prepare(request)
    try:
        await response.write(head)
        for partition, each in zip(found.partitions, found.slices, strict=True):
            with partition.reading():
                async for piece in each.pieces(PIECE_BYTES):
                    await response.write(piece)
                    await asyncio.sleep(0)  # a fast reader's socket never makes `write` wait
        await response.write_eof()
    except ConnectionError:
        log.debug("a reader went away before its answer was sent")
    except HeadraceError as error:
        # The status is out already: cutting the connection is the one way left to say "not so".
        log.warning("an answer was cut off: %s", error)
        request.protocol.force_close()
    return response


async def _read_all(found: Gathered) -> list[Buffer]:
    """The bytes of all slices; a partition whose bytes can't be read gets an error instead."""
    data: list[Buffer] = []
    results = [result for result in found.results if result.length]
    for result, partition, each in zip(results, found.partitions, found.slices, strict=True):
        try:
            with partition.reading():
                data.append(await _whole(each))
        except HeadraceError as error:
            result.error, result.message, result.length = error.code, error.message, 0
    return data


async def _whole(each: LogSlice) -> Buffer:
    data = each.read_nowait()
    return await each.read() if data is None else data


def read(body: Buffer) -> FetchRequest:
    """A fetch request that makes sense.

    Raises:
        InvalidRequest: it doesn't.
    """
    request, rest = framing.split(body, _decoder)
    _check(request, len(rest))
    return request


def _check(request: FetchRequest, rest_bytes: int) -> None:
    if rest_bytes:
        raise InvalidRequest(f"{rest_bytes} bytes follow the head; a fetch has none")
    if len(request.parts) > limits.PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(request.parts)} parts; a request has at most {limits.PARTITIONS_PER_REQUEST_MAX}"
        )
    if request.isolation not in (0, 1):
        raise InvalidRequest(f"isolation is 0 or 1, not {request.isolation}")
    if request.max_wait_ms < 0 or request.min_bytes < 0 or request.max_bytes < 1:
        raise InvalidRequest("max_wait_ms and min_bytes are 0 or more, max_bytes 1 or more")
    for part in request.parts:
        if part.max_bytes < 1 or part.until < -1 or not 0 <= part.offset <= limits.OFFSET_MAX:
            raise InvalidRequest(
                "a part has max_bytes of 1 or more, an offset from 0 to 2^63-2^32 and an until of"
                " -1 or more"
            )
