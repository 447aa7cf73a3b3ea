"""The follower's side: one loop for each leader, over all partitions copied from there.

A loop has one request under way. It lists the partitions of which there is something new to say;
the request waits at the leader for news of all that are listed, and when something is to be listed
meanwhile, the leader is asked to answer at once. Whatever goes wrong ends the fetch session: the
next request begins anew and lists everything.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import msgspec

from headrace.broker.clock import Clock
from headrace.broker.controller.timing import TimeSource
from headrace.broker.core.model import Generation, Leader
from headrace.broker.core.quota import ByteRate
from headrace.broker.partition.partition import Partition
from headrace.broker.peers.base import Peers
from headrace.broker.replication.following import Followed, Next, take
from headrace.broker.replication.stats import ReplicationStats
from headrace.protocol import framing
from headrace.protocol.errors import Conflict, CorruptBatch, HeadraceError
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.replication import (
    FETCH,
    FETCH_WAKE,
    PARTS_MAX,
    ReplicaPart,
    ReplicaRequest,
    ReplicaResponse,
    ReplicaResult,
    ReplicaWake,
)

log = logging.getLogger(__name__)

WAIT_MS = 500
"""How long a request waits at the leader for news; also how late a follower learns that the last
records of a quiet partition are committed."""

ANSWER_TIMEOUT_S = 5.0
"""Beyond the wait; a leader that is silent for so long is asked anew."""

PART_BYTES = 4 << 20
"""Bytes of one partition in one answer."""

ANSWER_BYTES = 16 << 20
"""Bytes of one answer."""

BREATH_BYTES = 1 << 20
"""Bytes appended before the loop gets its turn."""

BACKOFF_S = 0.05
"""Pause after a failed request or a refused partition; doubled up to `BACKOFF_MAX_S`, with
jitter."""

BACKOFF_MAX_S = 1.0

DEBT_LOOK_S = 0.5
"""How often a replica that has used its allowance looks whether it has more, at least: the rate may
be raised meanwhile."""

_responses = msgspec.msgpack.Decoder(ReplicaResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Self:
    """This process, as it tells leaders."""

    broker_id: int
    session: int
    generation: Generation


@dataclass(slots=True, kw_only=True)
class FetcherContext:
    """What all loops of a broker share. `require_room` raises StorageFull; `throttle` bounds what
    comes for replicas that are being added."""

    me: Self
    peers: Peers
    clock: Clock
    time: TimeSource
    stats: ReplicationStats
    require_room: Callable[[int], None]
    throttle: ByteRate
    chance: random.Random


class LeaderLoop:
    """Copies partitions from one leader. `run` as a task, for as long as the broker lives."""

    def __init__(self, leader_id: int, context: FetcherContext) -> None:
        self.leader_id = leader_id
        self._context = context
        self._parts: dict[TopicIdPartition, Followed] = {}
        self._unlisted: dict[TopicIdPartition, None] = {}
        self._forgotten: dict[TopicIdPartition, None] = {}
        self._later: dict[TopicIdPartition, float] = {}
        self._number = 0
        self._sequence = 0
        self._is_waiting = False
        self._work = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their start
        self._lister: asyncio.Task[None] | None = None
        self._begin_anew()

    def __len__(self) -> int:
        return len(self._parts)

    # --- what is followed -------------------------------------------------------------------------

    def follow(self, partition: Partition, leader: Leader, epoch: int) -> None:
        """Copies the partition under this epoch from now on."""
        where = partition.id
        self._parts[where] = Followed(partition, leader, epoch)
        self._forgotten.pop(where, None)
        self._later.pop(where, None)
        partition.on_synced = lambda: self._list(where)
        self._list(where)

    def unfollow(self, where: TopicIdPartition) -> None:
        """Copies it no longer."""
        followed = self._parts.pop(where, None)
        self._unlisted.pop(where, None)
        self._later.pop(where, None)
        if followed is not None:
            followed.partition.on_synced = None
            self._forgotten[where] = None
            self._wake()

    def _list(self, where: TopicIdPartition) -> None:
        followed = self._parts.get(where)
        if followed is None:
            return
        partition = followed.partition
        if partition.written_end < partition.log.end_offset:
            partition.replica_appended()  # told once it is synced (R13)
        elif (debt_s := self._debt_s(partition)) > 0:
            self._list_later(where, min(debt_s, DEBT_LOOK_S))
        elif followed.listed_end != partition.log.end_offset:
            self._unlisted[where] = None
            self._wake()

    def _list_anew(self, where: TopicIdPartition) -> None:
        followed = self._parts.get(where)
        if followed is None:
            return
        followed.listed_end = -1
        self._list(where)

    def _wake(self) -> None:
        self._work.set()
        if self._is_waiting:
            self._is_waiting = False
            self._spawn(self._hurry())

    async def _hurry(self) -> None:
        """Has the leader answer the request that waits there; if that gets lost, it is answered
        when its wait is over."""
        wake = ReplicaWake(self._context.me.broker_id, self._number, self._sequence - 1)
        try:
            await self._context.peers.call(
                self.leader_id, FETCH_WAKE, framing.head(wake), timeout_s=ANSWER_TIMEOUT_S
            )
        except HeadraceError as error:
            log.debug("broker %d can't be hurried: %s", self.leader_id, error)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    # --- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetches until cancelled. May be started again after it failed."""
        failures = 0
        self._begin_anew()
        try:
            while True:
                if not self._parts and not self._forgotten:
                    self._work.clear()
                    await self._work.wait()
                try:
                    await self._turn()
                    failures = 0
                except HeadraceError as error:
                    failures += 1
                    self._failed(error, failures)
                    if failures > 1 or not isinstance(error, Conflict):
                        await self._context.time.sleep(self._pause_s(failures))
                except Exception:
                    failures += 1
                    self._context.stats.fetch_failures += 1
                    log.exception("copying from broker %d failed", self.leader_id)
                    self._begin_anew()
                    await self._context.time.sleep(self._pause_s(failures))
        finally:
            for task in list(self._tasks):
                task.cancel()

    def _failed(self, error: HeadraceError, failures: int) -> None:
        self._context.stats.fetch_failures += 1
        level = logging.INFO if failures == 1 else logging.DEBUG
        log.log(level, "broker %d can't be copied from: %s", self.leader_id, error)
        self._begin_anew()

    def _pause_s(self, failures: int) -> float:
        longest = min(BACKOFF_S * 2.0 ** min(failures, 10), BACKOFF_MAX_S)
        return longest * self._context.chance.uniform(0.5, 1.0)

    def _begin_anew(self) -> None:
        """The leader is told everything again."""
        self._number = self._context.chance.getrandbits(62)
        self._sequence = 0
        self._forgotten.clear()
        for where, followed in self._parts.items():
            followed.listed_end = -1
            if where not in self._later:
                self._list(where)

    async def _turn(self) -> None:
        request = self._request()
        self._is_waiting = request.max_wait_ms > 0
        try:
            raw = await self._context.peers.call(
                self.leader_id, FETCH, framing.head(request),
                timeout_s=request.max_wait_ms / 1000 + ANSWER_TIMEOUT_S,
            )  # fmt: skip
        finally:
            self._is_waiting = False
        response, data = framing.split(raw, _responses)
        if (response.fetch_session, response.sequence) == (self._number, request.sequence):
            await self._take(response, data)

    def _request(self) -> ReplicaRequest:
        me = self._context.me
        forgotten = [(bytes(topic_id), index) for topic_id, index in self._forgotten]
        self._forgotten.clear()
        parts = []
        for where in list(self._unlisted)[:PARTS_MAX]:
            del self._unlisted[where]
            part = self._part(where)
            if part is not None:
                parts.append(part)
        request = ReplicaRequest(
            me.broker_id, me.session, *me.generation, self._number, self._sequence,
            0 if self._unlisted or not self._parts else WAIT_MS, ANSWER_BYTES, parts, forgotten,
        )  # fmt: skip
        self._sequence += 1
        return request

    def _part(self, where: TopicIdPartition) -> ReplicaPart | None:
        followed = self._parts.get(where)
        if followed is None or not followed.is_current:
            return None
        log_ = followed.partition.log
        followed.listed_end, followed.listed_epoch = log_.end_offset, log_.last_epoch
        return ReplicaPart(
            where.topic_id, where.partition, followed.epoch, log_.end_offset, log_.last_epoch,
            self._part_bytes(followed.partition),
        )  # fmt: skip

    def _part_bytes(self, partition: Partition) -> int:
        rate = self._context.throttle.bytes_per_s
        if rate > 0 and self._is_throttled(partition):
            return max(64 << 10, min(PART_BYTES, int(rate / 4)))
        return PART_BYTES

    def _is_throttled(self, partition: Partition) -> bool:
        """Being added and not in sync yet: who is in the ISR mustn't hold the others back, though
        its move may take long on account of other replicas."""
        record, me = partition.record, self._context.me.broker_id
        return record is not None and me in record.adding and record.in_isr(me) is None

    # --- answers ----------------------------------------------------------------------------------

    async def _take(self, response: ReplicaResponse, data: memoryview) -> None:
        position = breath = 0
        for result in response.parts:
            piece = data[position : position + result.length] if result.length else None
            position += result.length
            where = TopicIdPartition(TopicId(result.topic_id), result.partition)
            followed = self._parts.get(where)
            if followed is None or not followed.is_current or followed.listed_end < 0:
                continue  # it is followed no longer, or anew: then it isn't listed yet
            self._take_one(where, followed, result, piece)
            await self._follow_start(followed, result)
            breath += result.length
            if breath >= BREATH_BYTES:
                breath = 0
                await asyncio.sleep(0)

    def _take_one(
        self,
        where: TopicIdPartition,
        followed: Followed,
        result: ReplicaResult,
        data: memoryview | None,
    ) -> None:
        context = self._context
        try:
            if data is not None:
                context.require_room(len(data))
            following = take(followed, result, data, context.stats)
        except HeadraceError as error:
            level = logging.ERROR if isinstance(error, CorruptBatch) else logging.WARNING
            log.log(level, "%s: the leader's batches weren't taken: %s",
                    followed.partition.name, error)  # fmt: skip
            context.stats.fetch_failures += 1
            following = Next.LATER
        except Exception:
            log.exception("%s: what the leader sent wasn't taken", followed.partition.name)
            context.stats.fetch_failures += 1
            following = Next.LATER
        if following is Next.LATER:
            followed.failures += 1
            self._list_later(where, self._pause_s(followed.failures))
        elif following is Next.LIST:
            if self._is_throttled(followed.partition):
                context.throttle.charge(result.length, context.clock.monotonic())
            self._list_anew(where)

    def _debt_s(self, partition: Partition) -> float:
        if not self._is_throttled(partition):
            return 0.0
        return self._context.throttle.debt_s(self._context.clock.monotonic())

    async def _follow_start(self, followed: Followed, result: ReplicaResult) -> None:
        """Gives up what the leader gave up by retention or a request (delete-records)."""
        log_ = followed.partition.log
        start = min(result.log_start_offset, log_.high_watermark)
        if result.error is None and start > log_.start_offset and followed.is_current:
            try:
                await log_.advance_start(start)
            except HeadraceError as error:
                log.warning("%s: its start stays behind: %s", followed.partition.name, error)

    def _list_later(self, where: TopicIdPartition, pause_s: float) -> None:
        self._later[where] = self._context.clock.monotonic() + pause_s
        if self._lister is None or self._lister.done():
            self._lister = self._spawn(self._list_in_time())

    async def _list_in_time(self) -> None:
        """Lists what was put off, each when it is due."""
        while self._later:
            now_s = self._context.clock.monotonic()
            due = [where for where, at_s in self._later.items() if at_s <= now_s]
            for where in due:
                del self._later[where]
                self._list_anew(where)
            if self._later:
                pause_s = min(self._later.values()) - now_s
                await self._context.time.sleep(min(max(pause_s, 0.005), BACKOFF_S))
