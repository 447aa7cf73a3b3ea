"""The leader's side of a follower's fetch: validate, count, answer (replication.md R13, R14, R16).

A request waits until there is something to say. What it says of a partition is true for the epoch
it names: everything is looked at again after each await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.broker.clock import Clock
from headrace.broker.core.fetch_rules import Diverging, TooOld, validate
from headrace.broker.log.slices import LogSlice
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.replication.sessions import FollowerSession, Listing, StartTold
from headrace.broker.replication.stats import ReplicationStats
from headrace.protocol import framing
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    Conflict,
    Fenced,
    HeadraceError,
    InternalError,
    OffsetOutOfRange,
)
from headrace.protocol.replication import (
    ReplicaPart,
    ReplicaRequest,
    ReplicaResponse,
    ReplicaResult,
    ReplicaWake,
)

log = logging.getLogger(__name__)

WAIT_MS_MAX = 5_000
"""Longest wait of a follower's request, whatever it asks for."""

RESPONSE_BYTES_MAX = 32 << 20
"""Bytes of one answer, whatever it asks for (one batch always goes)."""

RESULTS_MAX = 10_000
"""Partitions in one answer."""

BREATH_BYTES = 1 << 20
"""Bytes read before the loop gets its turn."""

SESSION_EXPIRY_S = 60.0
"""Silence after which what a follower has listed is forgotten; it begins anew then."""

_requests = msgspec.msgpack.Decoder(ReplicaRequest)
_wakes = msgspec.msgpack.Decoder(ReplicaWake)

Consider = Callable[[Partition], None]
"""Told of each partition whose ISR may have to change."""


@dataclass(slots=True)
class _Answer:
    results: list[ReplicaResult] = field(default_factory=list)
    data: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0


class ReplicaServer:
    """Answers the followers of this broker's partitions."""

    def __init__(
        self,
        manager: PartitionManager,
        *,
        clock: Clock,
        consider: Consider,
        stats: ReplicationStats,
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._consider = consider
        self._stats = stats
        self.sessions: dict[int, FollowerSession] = {}

    async def wake(self, body: memoryview) -> Sequence[Buffer]:
        """Answers the follower's waiting request with what there is."""
        request, _ = framing.split(body, _wakes)
        session = self.sessions.get(request.broker)
        if session is not None and session.number == request.fetch_session:
            session.hurried = max(session.hurried, request.sequence)
            session.waiter.wake()
        return []

    async def fetch(self, body: memoryview) -> Sequence[Buffer]:
        """News of what the follower has listed, as soon as there is some or the wait is over.

        Raises:
            Conflict: the session isn't known; the follower begins anew.
            Fenced: a later process of this follower was here.
        """
        request, _ = framing.split(body, _requests)
        self._stats.fetches += 1
        now_s = self._clock.monotonic()
        session = self._session(request, now_s)
        session.take(request, now_s)
        deadline_s = now_s + min(request.max_wait_ms, WAIT_MS_MAX) / 1000
        answer = await self._wait(session, request, deadline_s)
        self._add_moved(session, answer)
        session.answered_s = self._clock.monotonic()
        self._stats.bytes_out += answer.size_bytes
        head = ReplicaResponse(request.fetch_session, request.sequence, answer.results)
        return [framing.head(head), *answer.data]

    def close(self) -> None:
        """Answers all waiting requests."""
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()

    def expire(self) -> None:
        """Forgets followers that were silent for long."""
        now_s = self._clock.monotonic()
        for broker_id, session in list(self.sessions.items()):
            if now_s - session.seen_s > SESSION_EXPIRY_S:
                session.close()
                del self.sessions[broker_id]

    def _session(self, request: ReplicaRequest, now_s: float) -> FollowerSession:
        known = self.sessions.get(request.broker)
        if known is not None and request.session < known.session:
            raise Fenced(f"a later process of broker {request.broker} fetches here")
        if request.sequence == 0:
            if known is not None and known.number == request.fetch_session:
                # The same request a second time. Were it to begin anew, the first one's answer
                # would be taken, and what this one answers lost: never listed again.
                raise Conflict("the fetch session has begun already: begin anew")
            if known is not None:
                known.close()
            fresh = self.sessions[request.broker] = FollowerSession(request, now_s)
            return fresh
        if (
            known is None
            or (known.session, known.number) != (request.session, request.fetch_session)
            or known.sequence + 1 != request.sequence
        ):
            raise Conflict("the fetch session isn't known here: begin anew")
        return known

    async def _wait(
        self, session: FollowerSession, request: ReplicaRequest, deadline_s: float
    ) -> _Answer:
        answer = _Answer()
        limit = min(request.max_bytes, RESPONSE_BYTES_MAX)
        while True:
            session.waiter.looking()
            await self._look(session, request.sequence, answer, limit)
            left_s = deadline_s - self._clock.monotonic()
            is_over = (
                session.closed
                or session.sequence != request.sequence
                or session.hurried >= request.sequence
            )
            if answer.results or is_over or left_s <= 0 or not await session.waiter.wait(left_s):
                return answer
            # Others may be appending in this very turn: their batches go along.
            await asyncio.sleep(0)

    async def _look(
        self, session: FollowerSession, sequence: int, answer: _Answer, limit: int
    ) -> None:
        """Looks at what is ready, in turn, as far as there is room."""
        breath = 0
        for listing in list(session.ready):
            if answer.size_bytes >= limit or len(answer.results) >= RESULTS_MAX:
                return
            before = answer.size_bytes
            if listing in session.ready:
                await self._look_at(listing, answer, limit - answer.size_bytes)
            breath += answer.size_bytes - before
            if breath >= BREATH_BYTES:
                breath = 0
                await asyncio.sleep(0)
            if session.closed or session.sequence != sequence:
                return

    async def _look_at(self, listing: Listing, answer: _Answer, room: int) -> None:
        part, session = listing.part, listing.session
        session.ready.pop(listing, None)
        if part is None:
            return
        result = ReplicaResult(part.topic_id, part.partition)
        try:
            partition = self._manager.find(listing.where)
            session.attach(listing, partition)
            partition.hear_epoch(part.leader_epoch)
            partition.require_usable(part.leader_epoch)
            result.leader_epoch = partition.leader_epoch
            data = await self._news(listing, part, partition, result, room)
        except Conflict:
            session.ready[listing] = None  # the log was cut while it was read: look again
            return
        except HeadraceError as error:
            result.error, result.message = error.code, error.message
            result.length, data = 0, None
        except Exception:
            # One partition must not keep the follower from all the others.
            log.exception("%s/%d can't be copied from here", *listing.where)
            self._stats.serve_failures += 1
            result.error, result.message = InternalError.code, "see the leader's log"
            result.length, data = 0, None
        if listing.part is not part:
            return
        if result.error is None and data is None and result.diverging_end < 0:
            return
        listing.answered()
        self._tell(listing, result, answer)
        if data is not None:
            answer.data.append(data)
            answer.size_bytes += len(data)

    async def _news(
        self,
        listing: Listing,
        part: ReplicaPart,
        partition: Partition,
        result: ReplicaResult,
        room: int,
    ) -> Buffer | None:
        """Counts the fetch, and fills in what there is to say."""
        log = partition.log
        result.log_start_offset = log.start_offset
        verdict = validate(
            part.offset, part.last_epoch, start_offset=log.start_offset,
            end_offset=log.end_offset, epoch_end=log.end_offset_for_epoch,
        )  # fmt: skip
        if isinstance(verdict, TooOld):
            raise OffsetOutOfRange(
                f"{partition.name} starts at {log.start_offset}, offset {part.offset} is gone"
            )
        if isinstance(verdict, Diverging):
            result.diverging_epoch, result.diverging_end = verdict.epoch, verdict.end_offset
            return None
        if not listing.is_validated:
            listing.is_validated = self._count(listing, part, partition)
        result.high_watermark = partition.high_watermark
        if part.offset >= log.end_offset:
            if not listing.is_idle:
                listing.is_idle = True
                listing.session.moved[listing] = None
            return None
        return await self._read(part, partition, result, room)

    def _count(self, listing: Listing, part: ReplicaPart, partition: Partition) -> bool:
        """The follower has the leader's log up to its offset (R14); False if this broker hasn't
        read yet that it is a replica: it is counted when it has."""
        replicas, session = partition.replicas, listing.session
        if replicas is None or session.broker_id not in replicas.record.replicas:
            return False
        replicas.fetched(
            session.broker_id, generation=session.generation, session=session.session,
            offset=part.offset, end_offset=partition.log.end_offset, now_s=session.seen_s,
            confirmed_s=session.confirmed_s,
        )  # fmt: skip
        partition.isolated = False
        partition.advance_high_watermark()
        member = replicas.record.in_isr(session.broker_id)
        if member is None or member.generation != session.generation:
            self._consider(partition)
        return True

    async def _read(
        self, part: ReplicaPart, partition: Partition, result: ReplicaResult, room: int
    ) -> Buffer:
        with await _locate(partition, part.offset, min(part.max_bytes, room)) as found:
            with partition.reading():
                data = found.read_nowait()
                if data is None:
                    data = await found.read()
            result.first_offset, next_offset = found.base_offset, found.next_offset
        partition.require_usable(part.leader_epoch)
        partition.stats.bytes_out += len(data)
        result.length = len(data)
        result.has_holes = partition.log.has_holes
        if result.has_holes:
            result.epochs = [
                (epoch, start)
                for epoch, start in partition.log.epochs.entries()
                if part.offset <= start < next_offset
            ]
        result.high_watermark = partition.high_watermark
        return data

    def _tell(self, listing: Listing, result: ReplicaResult, answer: _Answer) -> None:
        answer.results.append(result)
        if result.error is None:
            listing.start_told = StartTold(
                result.log_start_offset, result.leader_epoch, listing.session.sequence
            )

    def _add_moved(self, session: FollowerSession, answer: _Answer) -> None:
        """Says how far partitions are committed of which there is nothing else to say. Only of
        logs that were compared: a follower takes its own records for committed by it (R14). Who
        wasn't looked at yet is told then."""
        for listing in list(session.moved)[: RESULTS_MAX - len(answer.results)]:
            if not listing.is_validated:
                continue
            del session.moved[listing]
            partition, part = listing.partition, listing.part
            if partition is None or part is None or not partition.leading:
                continue
            if part.leader_epoch != partition.leader_epoch:
                continue
            result = ReplicaResult(
                part.topic_id, part.partition, partition.leader_epoch,
                partition.high_watermark, partition.log.start_offset,
            )  # fmt: skip
            self._tell(listing, result, answer)


async def _locate(partition: Partition, offset: int, max_bytes: int) -> LogSlice:
    """The leader's batches from `offset` on, committed or not, expired or not. Where cleaning has
    left none, an empty batch leads the follower behind them."""
    log = partition.log
    try:
        found = log.locate(offset, max_bytes=max_bytes, end_offset=log.end_offset)
    except BlockingIOError:
        found = await log.locate_cold(offset, max_bytes=max_bytes, end_offset=log.end_offset)
    return found if found is not None else log.skip(offset, log.end_offset)
