"""A fetch of partitions that several brokers lead, answered by whichever broker it reaches.

Two rounds: first everybody is asked what is there now. If that isn't enough for an answer, all are
asked again and wait; the first that has something ends the wait, and the others' parts keep what
the first round said of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from headrace.broker.api.endpoint import Call
from headrace.broker.api.fetch import Fetch, is_done
from headrace.broker.api.fetch import read as read_fetch
from headrace.broker.api.forwarding import GRACE_S, Forwarder
from headrace.broker.api.freshness import Freshness
from headrace.broker.api.inflight import Inflight
from headrace.broker.api.owners import Owners, by_owner, in_order
from headrace.protocol import framing, routes
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.requests import (
    BATCH_MEDIA_TYPE,
    FetchPart,
    FetchRequest,
    FetchResponse,
    FetchResult,
)

SPLIT_BYTES_MAX = 8 << 20
"""Bytes of an answer that is put together in memory; clients that want more go to the leaders."""

_decoder = msgspec.msgpack.Decoder(FetchResponse)
Answer = tuple[FetchResult, Buffer]


@dataclass(slots=True)
class _Part:
    """What one owner is asked, and what it said last."""

    owner: int | None
    parts: list[FetchPart]
    isolation: int
    answers: list[Answer] = field(default_factory=list)
    throttle_ms: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(result.length for result, _ in self.answers)

    @property
    def is_urgent(self) -> bool:
        return any(result.error is not None for result, _ in self.answers) or any(
            is_done(part) for part in self.parts
        )


class FetchAnywhere:
    """POST /v1/fetch."""

    def __init__(
        self,
        local: Fetch,
        owners: Owners,
        forwarder: Forwarder,
        fresh: Freshness,
        inflight: Inflight,
    ) -> None:
        self._local = local
        self._fresh = fresh
        self._owners = owners
        self._forwarder = forwarder
        self._inflight = inflight

    async def handle(self, call: Call) -> web.StreamResponse:
        """POST /v1/fetch."""
        request = read_fetch(call.body)
        if request.rack or not self._forwarder.may_forward(call.request):
            await self._fresh.of_partitions(
                TopicIdPartition(TopicId(part.topic_id), part.partition) for part in request.parts
            )
            return await self._local.handle(call, request)
        groups = by_owner(
            self._owners.leader(TopicIdPartition(TopicId(part.topic_id), part.partition))
            for part in request.parts
        )
        if groups.keys() <= {None}:
            return await self._local.handle(call, request)
        if len(groups) == 1:
            [owner] = groups
            assert owner is not None
            timeout_s = request.max_wait_ms / 1000 + GRACE_S
            return await self._forwarder.pass_on(
                owner, call.request, call.principal, call.body, timeout_s=timeout_s
            )
        return await self._gather(call, request, groups)

    async def _gather(
        self, call: Call, request: FetchRequest, groups: Mapping[int | None, Sequence[int]]
    ) -> web.StreamResponse:
        room_bytes = max(1, min(request.max_bytes, SPLIT_BYTES_MAX) // len(groups))
        parts = [
            _Part(owner, [request.parts[i] for i in indexes], request.isolation)
            for owner, indexes in groups.items()
        ]
        await asyncio.gather(*[self._ask(call, each, room_bytes, wait_ms=0) for each in parts])
        if not _is_enough(parts, request.min_bytes) and request.max_wait_ms > 0:
            await self._wait(call, request, parts, room_bytes)
        found = in_order(groups, [each.answers for each in parts], len(request.parts))
        with ExitStack() as held:
            held.enter_context(self._inflight.hold(sum(len(data) for _, data in found)))
            throttle_ms = max(each.throttle_ms for each in parts)
            head = framing.head(FetchResponse(throttle_ms, [result for result, _ in found]))
            body = b"".join([head, *[data for _, data in found]])
            return web.Response(body=body, content_type=BATCH_MEDIA_TYPE)

    async def _wait(
        self, call: Call, request: FetchRequest, parts: list[_Part], room_bytes: int
    ) -> None:
        """Until one of them has something; who is silent till then isn't waited for."""
        asking = [
            asyncio.ensure_future(self._ask(call, each, room_bytes, wait_ms=request.max_wait_ms))
            for each in parts
        ]
        try:
            waiting = set(asking)
            while waiting and not _is_enough(parts, request.min_bytes):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, call: Call, part: _Part, room_bytes: int, *, wait_ms: int) -> None:
        """Puts the owner's answers into `part`; a failure is an answer to each of its parts."""
        try:
            if part.owner is None:
                results, data = await self._local.read_parts(
                    part.parts, call, max_bytes=room_bytes, max_wait_ms=wait_ms
                )
                part.answers = _with_bytes(results, data)
            else:
                part.throttle_ms, part.answers = await self._ask_over_there(
                    part.owner, call, part, room_bytes, wait_ms
                )
        except HeadraceError as error:
            part.answers = [
                (FetchResult(each.topic_id, each.partition, error.code, error.message), b"")
                for each in part.parts
            ]

    async def _ask_over_there(
        self, owner: int, call: Call, part: _Part, room_bytes: int, wait_ms: int
    ) -> tuple[int, list[Answer]]:
        request = FetchRequest(wait_ms, 1, room_bytes, part.isolation, part.parts)
        raw = await self._forwarder.ask(
            owner,
            "POST",
            routes.FETCH,
            [framing.head(request)],
            request=call.request,
            principal=call.principal,
            binary=True,
            timeout_s=wait_ms / 1000 + GRACE_S,
        )
        answer, data = framing.split(raw, _decoder)
        found: list[Answer] = []
        position = 0
        for result in answer.parts:
            found.append((result, data[position : position + result.length]))
            position += result.length
        return answer.throttle_ms, found


def _is_enough(parts: Sequence[_Part], min_bytes: int) -> bool:
    size_bytes = sum(each.size_bytes for each in parts)
    return size_bytes >= min_bytes or any(each.is_urgent for each in parts)


def _with_bytes(results: Sequence[FetchResult], data: Sequence[Buffer]) -> list[Answer]:
    """`data` has one piece for each result with a length."""
    pieces = iter(data)
    return [(result, next(pieces) if result.length else b"") for result in results]
