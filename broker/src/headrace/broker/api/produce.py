"""The way in: batches of many partitions, checked, appended, and answered once they are committed.

Appending happens within one turn of the loop, so a client that vanishes meanwhile changes nothing:
what was appended stays appended, and its retry is deduplicated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from headrace.broker.api.auth import Policy, Principal
from headrace.broker.api.endpoint import Call
from headrace.broker.clock import Clock
from headrace.broker.core.quota import ByteRate
from headrace.broker.disk_space import DiskGuard
from headrace.broker.metrics import Metrics
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.quotas import Quotas
from headrace.protocol import framing, limits
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    Forbidden,
    HeadraceError,
    InvalidRequest,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
)
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.names import is_internal
from headrace.protocol.requests import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    BATCH_MEDIA_TYPE,
    CLIENT_HEADER,
    ProducePart,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)

TIMEOUT_MS_MAX = 600_000
"""Longest wait for replicas that a request may ask for."""

SHORT_BYTES = 16 << 10
"""After so few bytes, readers who waited for them are answered before the producer is: a record's
way to its reader gets 0.2 ms shorter, the acknowledgement's no longer than a turn of the loop."""

_decoder = msgspec.msgpack.Decoder(ProduceRequest)


@dataclass(slots=True)
class Outcome:
    """What became of one batch: refused (`error`), or written in `partition` up to `last_offset`,
    where its commit is waited for."""

    result: ProduceResult
    partition: Partition | None = None
    last_offset: int = -1
    leader_epoch: int = -1
    throttle_s: float = 0.0
    error: HeadraceError | None = None

    def refuse(self, error: HeadraceError) -> None:
        """Makes it a refusal."""
        self.error = error
        result = self.result
        result.error, result.message, result.base_offset = error.code, error.message, -1

    @property
    def is_late(self) -> bool:
        """Whether it is written and not known to be committed. Once somebody else led, another
        record may be at its offset: then the high watermark says nothing of it."""
        partition = self.partition
        if partition is None:
            return False
        is_same = partition.leading and partition.leader_epoch == self.leader_epoch
        return not is_same or self.last_offset >= partition.high_watermark

    @property
    def has_readers(self) -> bool:
        """Whether somebody waits for what was written."""
        return self.partition is not None and self.partition.has_readers


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
        quotas: Quotas,
    ) -> None:
        self._manager = manager
        self._policy = policy
        self._clock = clock
        self._metrics = metrics
        self._disk = disk
        self._quotas = quotas

    async def handle(
        self, call: Call, request: ProduceRequest, data: memoryview
    ) -> web.StreamResponse:
        """A whole request whose partitions are this broker's own, as far as it knows."""
        rate = self.admit(call)
        outcomes = await self._append_all(request, data, call.principal)
        wait_s = self._quotas.charge(rate, len(data))
        wait_s = max(wait_s, *[each.throttle_s for each in outcomes], 0.0)
        if request.acks == ACKS_ALL:
            await self.wait(outcomes, timeout_ms=request.timeout_ms)
        if len(data) <= SHORT_BYTES and any(each.has_readers for each in outcomes):
            await asyncio.sleep(0)  # lets those readers' answers leave first
        return binary_answer(outcomes, wait_s)

    def admit(self, call: Call) -> ByteRate:
        """The client's allowance, for charging it later.

        Raises:
            Throttled: the client is over its rate and didn't wait.
        """
        rate = self._quotas.client(call.request.headers.get(CLIENT_HEADER)).produce
        self._quotas.require(rate, whose="this client")
        return rate

    def charge(self, rate: ByteRate, size_bytes: int) -> None:
        """Takes bytes that were written here from the client's allowance."""
        self._quotas.charge(rate, size_bytes)

    async def _append_all(
        self, request: ProduceRequest, data: memoryview, principal: Principal
    ) -> list[Outcome]:
        outcomes = []
        position = 0
        for part in request.parts:
            batch = data[position : position + part.length]
            position += part.length
            where = TopicIdPartition(TopicId(part.topic_id), part.partition)
            outcomes.append(await self.append(where, batch, acks=request.acks, principal=principal))
        return outcomes

    async def append(
        self, where: TopicIdPartition, batch: memoryview, *, acks: int, principal: Principal
    ) -> Outcome:
        """Appends one batch; a refusal is a result like any other and doesn't stop the rest."""
        result = ProduceResult(where.topic_id, where.partition)
        outcome = Outcome(result)
        try:
            partition = self._manager.find(where)
            self._require_allowed(principal, partition)
            self._quotas.require(partition.rates.produce, whose=f"topic {partition.topic!r}")
            self._disk.require_room(len(batch))
            if not partition.knows_producers:
                await partition.learn_producers()
            appended, _ = partition.append(batch, acks=acks, now_ms=self._clock.now_ms())
        except HeadraceError as error:
            self._metrics.produce_rejected.labels(error.code).inc()
            outcome.refuse(error)
            return outcome
        result.base_offset = appended.base_offset
        result.append_time_ms = appended.append_time_ms
        result.log_start_offset = partition.log.start_offset
        outcome.partition, outcome.last_offset = partition, appended.last_offset
        outcome.leader_epoch = partition.leader_epoch
        outcome.throttle_s = self._quotas.charge(partition.rates.produce, len(batch))
        return outcome

    def _require_allowed(self, principal: Principal, partition: Partition) -> None:
        self._policy.authorize(principal, "write", f"topic:{partition.topic}")
        if is_internal(partition.topic):
            raise Forbidden(f"topic {partition.topic!r} is the system's own; clients only read it")

    async def wait(self, outcomes: list[Outcome], *, timeout_ms: int) -> None:
        """Waits until all are committed; marks those that aren't in time."""
        late = [each for each in outcomes if each.is_late]
        if not late:
            return
        tasks = [
            asyncio.ensure_future(
                each.partition.committed(each.last_offset, leader_epoch=each.leader_epoch)
            )
            for each in late
            if each.partition is not None
        ]
        try:
            await asyncio.wait(tasks, timeout=timeout_ms / 1000)
        finally:
            for task in tasks:
                task.cancel()
        for each, task in zip(late, tasks, strict=True):
            _mark(each, task, timeout_ms)


def read(body: Buffer) -> tuple[ProduceRequest, memoryview]:
    """A binary request that makes sense, and the batches behind it.

    Raises:
        InvalidRequest: it doesn't.
    """
    request, data = framing.split(body, _decoder)
    _check(request, len(data))
    return request, data


def binary_answer(outcomes: Sequence[Outcome], wait_s: float) -> web.Response:
    """The answer to a binary request; `wait_s`: what byte rates ask the client to wait."""
    body = framing.head(ProduceResponse(int(wait_s * 1000), [each.result for each in outcomes]))
    return web.Response(body=body, content_type=BATCH_MEDIA_TYPE)


def _mark(outcome: Outcome, task: asyncio.Future[None], timeout_ms: int) -> None:
    if not task.done() or task.cancelled():
        outcome.refuse(
            RequestTimedOut(
                f"written, but not committed within {timeout_ms} ms; it may still be, and an"
                " idempotent producer's retry is deduplicated"
            )
        )
        return
    error = task.exception()
    if isinstance(error, HeadraceError):
        # Its own code would say that nothing was written, and a producer may believe that.
        outcome.refuse(
            NotEnoughReplicasAfterAppend(
                f"written, but not committed here ({error.message}); it may still be, and an"
                " idempotent producer's retry is deduplicated"
            )
        )
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
