"""The way in: batches of many partitions, checked, appended, and answered once they are committed.

Appending happens within one turn of the loop, so a client that vanishes meanwhile changes nothing:
what was appended stays appended, and its retry is deduplicated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from aiohttp import web

from headrace.broker.api.auth import Policy, Principal
from headrace.broker.api.endpoint import Call
from headrace.broker.clock import Clock
from headrace.broker.disk_space import DiskGuard
from headrace.broker.metrics import Metrics
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.protocol import framing, limits
from headrace.protocol.errors import Forbidden, HeadraceError, InvalidRequest, RequestTimedOut
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.names import is_internal
from headrace.protocol.requests import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    BATCH_MEDIA_TYPE,
    ProducePart,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)

TIMEOUT_MS_MAX = 600_000
"""Longest wait for replicas that a request may ask for."""

_decoder = msgspec.msgpack.Decoder(ProduceRequest)


@dataclass(slots=True)
class Pending:
    """A batch that is written and waits to be committed."""

    partition: Partition
    last_offset: int
    result: ProduceResult


class Produce:
    """Appends batches; used by the binary and the JSON path and by nothing else."""

    def __init__(
        self,
        manager: PartitionManager,
        *,
        policy: Policy,
        clock: Clock,
        metrics: Metrics,
        disk: DiskGuard,
    ) -> None:
        self._manager = manager
        self._policy = policy
        self._clock = clock
        self._metrics = metrics
        self._disk = disk

    async def handle(self, call: Call) -> web.StreamResponse:
        """POST /v1/produce."""
        request, data = framing.split(call.body, _decoder)
        _check(request, len(data))
        results, pending = await self._append_all(request, data, call.principal)
        if request.acks == ACKS_ALL:
            await self.wait(pending, timeout_ms=request.timeout_ms)
        body = framing.head(ProduceResponse(0, results))
        return web.Response(body=body, content_type=BATCH_MEDIA_TYPE)

    async def _append_all(
        self, request: ProduceRequest, data: memoryview, principal: Principal
    ) -> tuple[list[ProduceResult], list[Pending]]:
        results, pending = [], []
        position = 0
        for part in request.parts:
            batch = data[position : position + part.length]
            position += part.length
            where = TopicIdPartition(TopicId(part.topic_id), part.partition)
            outcome = await self.append(where, batch, acks=request.acks, principal=principal)
            results.append(outcome.result)
            if outcome.partition is not None:
                pending.append(Pending(outcome.partition, outcome.last_offset, outcome.result))
        return results, pending

    async def append(
        self, where: TopicIdPartition, batch: memoryview, *, acks: int, principal: Principal
    ) -> Outcome:
        """Appends one batch; a refusal is a result like any other and doesn't stop the rest."""
        result = ProduceResult(where.topic_id, where.partition)
        try:
            partition = self._manager.find(where)
            self._require_allowed(principal, partition)
            self._disk.require_room(len(batch))
            if not partition.knows_producers:
                await partition.learn_producers()
            appended, _ = partition.append(batch, acks=acks, now_ms=self._clock.now_ms())
        except HeadraceError as error:
            self._metrics.produce_rejected.labels(error.code).inc()
            refuse(result, error)
            return Outcome(result, None, -1)
        result.base_offset = appended.base_offset
        result.append_time_ms = appended.append_time_ms
        result.log_start_offset = partition.log.start_offset
        return Outcome(result, partition, appended.last_offset)

    def _require_allowed(self, principal: Principal, partition: Partition) -> None:
        self._policy.authorize(principal, "write", f"topic:{partition.topic}")
        if is_internal(partition.topic):
            raise Forbidden(f"topic {partition.topic!r} is the system's own; clients only read it")

    async def wait(self, pending: list[Pending], *, timeout_ms: int) -> None:
        """Waits until all are committed; marks those that aren't in time."""
        late = [each for each in pending if each.last_offset >= each.partition.high_watermark]
        if not late:
            return
        tasks = [asyncio.ensure_future(each.partition.committed(each.last_offset)) for each in late]
        try:
            await asyncio.wait(tasks, timeout=timeout_ms / 1000)
        finally:
            for task in tasks:
                task.cancel()
        for each, task in zip(late, tasks, strict=True):
            _mark(each.result, task, timeout_ms)


@dataclass(slots=True)
class Outcome:
    """A result, and where to wait for its commit unless it was refused."""

    result: ProduceResult
    partition: Partition | None
    last_offset: int


def refuse(result: ProduceResult, error: HeadraceError) -> None:
    """Turns the result into that of a refusal."""
    result.error, result.message, result.base_offset = error.code, error.message, -1


def _mark(result: ProduceResult, task: asyncio.Future[None], timeout_ms: int) -> None:
    if not task.done() or task.cancelled():
        refuse(
            result,
            RequestTimedOut(
                f"written, but not committed within {timeout_ms} ms; it may still be, and an"
                " idempotent producer's retry is deduplicated"
            ),
        )
        return
    error = task.exception()
    if isinstance(error, HeadraceError):
        refuse(result, error)
    elif error is not None:
        raise error


def _check(request: ProduceRequest, data_bytes: int) -> None:
    if request.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
        raise InvalidRequest(f"acks is -1 (all), 1 or 0, not {request.acks}")
    if not 0 <= request.timeout_ms <= TIMEOUT_MS_MAX:
        raise InvalidRequest(f"timeout_ms is 0 to {TIMEOUT_MS_MAX}, not {request.timeout_ms}")
    if len(request.parts) > limits.PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(request.parts)} parts; a request has at most {limits.PARTITIONS_PER_REQUEST_MAX}"
        )
    if any(part.length < 0 for part in request.parts):
        raise InvalidRequest("a part's length is negative")
    announced = sum(part.length for part in request.parts)
    if announced != data_bytes:
        raise InvalidRequest(f"the parts are {announced} bytes together, {data_bytes} arrived")
    _check_no_repeats(request.parts)


def _check_no_repeats(parts: list[ProducePart]) -> None:
    if len({(part.topic_id, part.partition) for part in parts}) != len(parts):
        raise InvalidRequest("a partition appears twice; send one batch a partition and request")
