"""Requests for partitions of several brokers, served by whichever broker they reach.

One owner: the request is passed on as it is. Several: each gets its part at the same time and the
answers are put together in the order of the request. A part whose broker fails has its own error;
the others are unharmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from headrace.broker.api.endpoint import Call, json_answer
from headrace.broker.api.forwarding import GRACE_S, HOP_TIMEOUT_S, Forwarder
from headrace.broker.api.freshness import Freshness
from headrace.broker.api.offsets import Offsets
from headrace.broker.api.owners import Owners, by_owner, in_order
from headrace.broker.api.produce import Outcome, Produce, binary_answer
from headrace.broker.api.produce import read as read_produce
from headrace.protocol import framing, routes
from headrace.protocol.errors import HeadraceError, from_code
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.models import (
    DeleteRecordsAnswer,
    DeleteRecordsPart,
    DeleteRecordsRequest,
    DeleteRecordsResult,
    ErrorBody,
    OffsetAnswer,
    OffsetQuery,
    OffsetsAnswer,
    OffsetsRequest,
)
from headrace.protocol.requests import (
    ACKS_ALL,
    ProducePart,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)

_produced = msgspec.msgpack.Decoder(ProduceResponse)
_offsets = msgspec.json.Decoder(OffsetsAnswer)
_deleted = msgspec.json.Decoder(DeleteRecordsAnswer)
_json = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Addressed:
    """A batch and where it goes."""

    where: TopicIdPartition
    batch: memoryview


class ProduceAnywhere:
    """POST /v1/produce, and what the JSON path writes."""

    def __init__(
        self, local: Produce, owners: Owners, forwarder: Forwarder, fresh: Freshness
    ) -> None:
        self._local = local
        self._fresh = fresh
        self._owners = owners
        self._forwarder = forwarder

    async def handle(self, call: Call) -> web.StreamResponse:
        """POST /v1/produce."""
        request, data = read_produce(call.body)
        if not self._forwarder.may_forward(call.request):
            await self._fresh.of_partitions(
                TopicIdPartition(TopicId(part.topic_id), part.partition) for part in request.parts
            )
            return await self._local.handle(call, request, data)
        parts = _cut(request, data)
        groups = by_owner(self._owners.leader(each.where) for each in parts)
        if groups.keys() <= {None}:
            return await self._local.handle(call, request, data)
        if len(groups) == 1:
            [owner] = groups
            assert owner is not None
            timeout_s = request.timeout_ms / 1000 + GRACE_S
            return await self._forwarder.pass_on(
                owner, call.request, call.principal, call.body, timeout_s=timeout_s
            )
        outcomes = await self.write(call, parts, acks=request.acks, timeout_ms=request.timeout_ms)
        return binary_answer(outcomes, max(each.throttle_s for each in outcomes))

    def require_rate(self, call: Call) -> None:
        """Refuses a client that is over its rate here, before work is put into its request.

        Raises:
            Throttled.
        """
        self._local.admit(call)

    async def write(
        self, call: Call, parts: Sequence[Addressed], *, acks: int, timeout_ms: int
    ) -> list[Outcome]:
        """Writes each batch where it belongs; the outcomes in the order of the batches.

        Raises:
            Throttled: the client is over its rate and didn't wait.
        """
        groups: dict[int | None, list[int]] = {None: list(range(len(parts)))}
        if self._forwarder.may_forward(call.request):
            groups = by_owner(self._owners.leader(each.where) for each in parts)
        rate = self._local.admit(call)

        async def write_to(owner: int | None, mine: list[Addressed]) -> list[Outcome]:
            if owner is None:
                return await self._write_here(call, mine, acks=acks, timeout_ms=timeout_ms)
            return await self._write_there(owner, call, mine, acks=acks, timeout_ms=timeout_ms)

        answers = await asyncio.gather(
            *[write_to(owner, [parts[i] for i in indexes]) for owner, indexes in groups.items()]
        )
        self._local.charge(rate, sum(len(parts[i].batch) for i in groups.get(None, ())))
        return in_order(groups, answers, len(parts))

    async def _write_here(
        self, call: Call, parts: Sequence[Addressed], *, acks: int, timeout_ms: int
    ) -> list[Outcome]:
        outcomes = [
            await self._local.append(each.where, each.batch, acks=acks, principal=call.principal)
            for each in parts
        ]
        if acks == ACKS_ALL:
            await self._local.wait(outcomes, timeout_ms=timeout_ms)
        return outcomes

    async def _write_there(
        self, owner: int, call: Call, parts: Sequence[Addressed], *, acks: int, timeout_ms: int
    ) -> list[Outcome]:
        request = ProduceRequest(
            acks, timeout_ms, [ProducePart(*each.where, len(each.batch)) for each in parts]
        )
        try:
            raw = await self._forwarder.ask(
                owner,
                "POST",
                routes.PRODUCE,
                [framing.head(request), *[each.batch for each in parts]],
                request=call.request,
                principal=call.principal,
                binary=True,
                timeout_s=timeout_ms / 1000 + GRACE_S,
            )
        except HeadraceError as error:
            return [_refused(each.where, error) for each in parts]
        answer = framing.split(raw, _produced)[0]
        wait_s = answer.throttle_ms / 1000
        return [_outcome(result, wait_s) for result in answer.parts]


def _cut(request: ProduceRequest, data: memoryview) -> list[Addressed]:
    parts, position = [], 0
    for part in request.parts:
        where = TopicIdPartition(TopicId(part.topic_id), part.partition)
        parts.append(Addressed(where, data[position : position + part.length]))
        position += part.length
    return parts


def _refused(where: TopicIdPartition, error: HeadraceError) -> Outcome:
    outcome = Outcome(ProduceResult(*where))
    outcome.refuse(error)
    return outcome


def _outcome(result: ProduceResult, wait_s: float) -> Outcome:
    outcome = Outcome(result, throttle_s=wait_s)
    if result.error is not None:
        outcome.error = from_code(result.error, result.message or "")
    return outcome


class OffsetsAnywhere:
    """POST /v1/offsets and POST /v1/delete-records."""

    def __init__(
        self, local: Offsets, owners: Owners, forwarder: Forwarder, fresh: Freshness
    ) -> None:
        self._local = local
        self._fresh = fresh
        self._owners = owners
        self._forwarder = forwarder

    async def query(self, call: Call) -> web.StreamResponse:
        """POST /v1/offsets."""
        request: OffsetsRequest = call.body
        return json_answer(OffsetsAnswer(await self.answer_all(call, request.queries)))

    async def answer_all(
        self,
        call: Call,
        queries: Sequence[OffsetQuery],
        *,
        may_forward: bool | None = None,
        timeout_s: float = HOP_TIMEOUT_S,
    ) -> list[OffsetAnswer]:
        """Each question answered by the leader of its partition. `may_forward`: whether others are
        asked; None leaves it to the request."""

        async def answer(owner: int | None, mine: list[OffsetQuery]) -> list[OffsetAnswer]:
            if owner is None:
                return await self._local.answer_all(mine)
            try:
                raw = await self._ask(owner, call, routes.OFFSETS, OffsetsRequest(mine), timeout_s)
                return _offsets.decode(raw).answers
            except HeadraceError as error:
                body = ErrorBody.of(error)
                return [OffsetAnswer(each.topic, each.partition, error=body) for each in mine]

        await self._fresh.of_names(each.topic for each in queries)
        groups = self._groups(call, queries, may_forward=may_forward)
        found = await asyncio.gather(
            *[answer(owner, [queries[i] for i in indexes]) for owner, indexes in groups.items()]
        )
        return in_order(groups, found, len(queries))

    async def delete_records(self, call: Call) -> web.StreamResponse:
        """POST /v1/delete-records."""
        parts: list[DeleteRecordsPart] = call.body.partitions

        async def delete(
            owner: int | None, mine: list[DeleteRecordsPart]
        ) -> list[DeleteRecordsResult]:
            if owner is None:
                return await self._local.delete_records(mine)
            try:
                body = DeleteRecordsRequest(mine)
                raw = await self._ask(owner, call, routes.DELETE_RECORDS, body, HOP_TIMEOUT_S)
                return _deleted.decode(raw).partitions
            except HeadraceError as error:
                told = ErrorBody.of(error)
                return [
                    DeleteRecordsResult(each.topic, each.partition, error=told) for each in mine
                ]

        await self._fresh.of_names(each.topic for each in parts)
        groups = self._groups(call, parts, may_forward=None)
        found = await asyncio.gather(
            *[delete(owner, [parts[i] for i in indexes]) for owner, indexes in groups.items()]
        )
        return json_answer(DeleteRecordsAnswer(in_order(groups, found, len(parts))))

    def _groups(
        self,
        call: Call,
        asked: Sequence[OffsetQuery] | Sequence[DeleteRecordsPart],
        *,
        may_forward: bool | None,
    ) -> dict[int | None, list[int]]:
        if may_forward is None:
            may_forward = self._forwarder.may_forward(call.request)
        if not may_forward:
            return {None: list(range(len(asked)))}
        return by_owner(self._owners.leader_by_name(each.topic, each.partition) for each in asked)

    async def _ask(
        self, owner: int, call: Call, path: str, body: msgspec.Struct, timeout_s: float
    ) -> bytes:
        return await self._forwarder.ask(
            owner,
            "POST",
            path,
            [_json.encode(body)],
            request=call.request,
            principal=call.principal,
            timeout_s=timeout_s,
        )
