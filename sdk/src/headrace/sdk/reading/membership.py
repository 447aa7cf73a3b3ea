"""A consumer as a member of its group: it joins, hears what it owns, and does that step by step.

    heartbeats   one after another, each waits at the coordinator for news (a third of the session)
    step         give up: hold → program finishes what it has → on_revoked → commit → forget
                 receive: committed offsets → on_assigned → hand out
    confirm      the next heartbeat says the step's epoch; then the coordinator goes on

Heartbeats go on while a step is being done. When none was answered for a whole session, another
member may own the partitions: nothing is handed out any more (replication.md G4), and the consumer
joins anew, as it does when the coordinator says that it is no member any more.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.protocol.errors import HeadraceError, InstanceInUse
from headrace.protocol.ids import TopicPartition
from headrace.protocol.models import GroupHeartbeatAnswer, OwnedTopic
from headrace.sdk.reading.group_calls import Asked, GroupCalls
from headrace.sdk.settings import ConsumerSettings
from headrace.sdk.tasks import Tasks

log = logging.getLogger("headrace.sdk.consumer")

IN_USE_GRACE_S = 10.0
"""Beyond a session: how long a member waits for the place of an earlier one with its instance id
before it takes that to be alive."""

Owned = dict[TopicPartition, str]
"""Partitions that a member owns, with their topics' ids."""


class Reader(Protocol):
    """What does the steps: the consumer's inner side."""

    @property
    def owned(self) -> Owned:
        """The partitions being read."""

    async def give_up(self, partitions: Sequence[TopicPartition], timeout: float) -> None:
        """Ends reading these, finished and committed."""

    async def receive(self, partitions: Owned) -> None:
        """Starts reading these."""

    def hold(self) -> None:
        """Hands out nothing from now on."""

    async def lose(self) -> None:
        """All partitions may be another member's by now."""

    def fail(self, error: Exception) -> None:
        """Ends whoever reads with `error`."""


class _SessionOver(Exception):
    """No heartbeat was answered for a whole session."""


class Membership:
    """One consumer's place in its group."""

    def __init__(
        self,
        calls: GroupCalls,
        reader: Reader,
        settings: ConsumerSettings,
        topics: Sequence[str],
        *,
        topics_interval: float,
    ) -> None:
        self._calls = calls
        self._reader = reader
        self._settings = settings
        self._topics = tuple(topics)
        self._topics_version = 1
        self._told_topics_version = 0
        self._topics_interval = topics_interval
        self._pattern = None if settings.pattern is None else re.compile(settings.pattern)
        self._tasks = Tasks()
        self._main: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._may_step = True
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.member_id = secrets.token_urlsafe(16)
        self.epoch = 0
        """The last step done."""
        self.heard_epoch = 0
        """The last step heard of: what commits say."""
        self._told_topics_version = 0
        self._refused_at: float | None = None
        self._confirmed_at = self._loop.time()
        self._is_over = False
        self._urgent = asyncio.Event()
        self._over_timer: asyncio.TimerHandle | None = None
        self._step: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Joins in the background.

        Raises:
            HeadraceError: the topics of the pattern can't be looked up.
        """
        if self._pattern is not None:
            self._topics = await self._matching(self._pattern)
        self._tasks.spawn(self._watch_topics())
        self._main = self._tasks.spawn(self._run())

    async def settled(self, timeout: float) -> None:
        """Waits until the first step is done.

        Raises:
            HeadraceError: why the group can't be joined.
        """
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._settled)
        except TimeoutError:
            log.warning("group %s: not joined yet, trying on", self._settings.group)

    @property
    def may_hand_out(self) -> bool:
        """Whether the last confirmed heartbeat is younger than the session."""
        return not self._is_over and (
            self._loop.time() < self._confirmed_at + self._settings.session_timeout
        )

    async def end_steps(self) -> None:
        """Does no further step; heartbeats go on."""
        self._may_step = False
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
            self._step = None

    async def close(self, *, leave: bool) -> None:
        """Ends heartbeats; `leave` tells the group, so that the others needn't wait."""
        if self._over_timer is not None:
            self._over_timer.cancel()
        await self._tasks.cancel()
        if not self._settled.done():
            self._settled.set_result(None)
        elif not self._settled.cancelled():
            self._settled.exception()
        if leave:
            await self._say_goodbye()

    async def _run(self) -> None:
        while True:
            try:
                await self._live()
            except _SessionOver:
                log.warning(
                    "group %s: no heartbeat was answered for %g s, so others may own what was read"
                    " here; joining anew", self._settings.group, self._settings.session_timeout,
                )  # fmt: skip
            except HeadraceError as error:
                if error.code not in ("unknown_member", "fenced"):
                    self._fail(error)
                    return
                log.warning("group %s: joining anew: %s", self._settings.group, error)
            except Exception as error:
                self._fail(error)
                return
            await self._lose()

    def _fail(self, error: Exception) -> None:
        self._reader.hold()
        self._reader.fail(error)
        if not self._settled.done():
            self._settled.set_exception(error)

    async def _lose(self) -> None:
        self._reader.hold()
        if self._over_timer is not None:
            self._over_timer.cancel()
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
        await self._reader.lose()
        await self._say_goodbye()
        self._begin_anew()

    async def _say_goodbye(self) -> None:
        """What was owned here is free: others needn't wait until the session is over."""
        if self.heard_epoch:
            try:
                await self._calls.leave(self.member_id)
            except HeadraceError as error:
                log.debug("the group couldn't be told, it will notice: %s", error)

    # --- heartbeats -------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Heartbeats of one membership, until it ends by an error."""
        attempt = 0
        while True:
            self._urgent.clear()
            try:
                await self._first_of(self._tasks.spawn(self._beat()))
                attempt = 0
            except HeadraceError as error:
                if not error.retriable and error.code != "internal":
                    raise
                attempt += 1
                log.debug("group %s: heartbeat failed: %s", self._settings.group, error)
                if isinstance(error, InstanceInUse):
                    self._note_refusal(error)
                await self._first_of(self._tasks.spawn(self._calls.rest(error, attempt)))
            if self._step is not None and self._step.done():
                step, self._step = self._step, None
                step.result()

    def _note_refusal(self, error: InstanceInUse) -> None:
        """Another member has this one's instance id. If that is a dead one, its session ends while
        this one waits; if it isn't, somebody started two.

        Raises:
            InstanceInUse: no session lasts that long.
        """
        now = self._loop.time()
        if self._refused_at is None:
            self._refused_at = now
            log.warning(
                "group %s: instance id %r belongs to another member; waiting until that leaves or"
                " its session is over", self._settings.group, self._settings.instance_id,
            )  # fmt: skip
        elif now > self._refused_at + self._settings.session_timeout + IN_USE_GRACE_S:
            raise error

    async def _first_of(self, work: asyncio.Future[None]) -> None:
        """Waits for the work, or for something that can't wait for it: then its answer is still
        taken when it comes (the coordinator ends it when it sees the next request)."""
        urgent = asyncio.ensure_future(self._urgent.wait())
        try:
            either: list[asyncio.Future[Any]] = [work, urgent]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            urgent.cancel()
        if self._is_over:
            work.cancel()
            raise _SessionOver
        if work.done():
            work.result()
        else:
            work.add_done_callback(_note_end)

    async def _beat(self) -> None:
        member_id, version = self.member_id, self._topics_version
        tells_topics = self._told_topics_version != version
        asked = Asked(
            epoch=self.epoch,
            heard_epoch=self.heard_epoch,
            wait=self._settings.session_timeout / 3 if self.heard_epoch else 0.0,
            topics=self._topics if tells_topics else None,
            topics_version=version,
        )
        sent_at = self._loop.time()
        answer = await self._calls.heartbeat(member_id, asked)
        if member_id != self.member_id or self._is_over:
            return
        self._told_topics_version = max(self._told_topics_version, version)
        self._confirm(sent_at)
        is_new = answer.assignment is not None and answer.epoch > self.heard_epoch
        if answer.assignment is not None and is_new and self._may_step:
            self.heard_epoch = answer.epoch
            self._step = self._tasks.spawn(self._do_step(answer, answer.assignment))

    def _confirm(self, sent_at: float) -> None:
        self._confirmed_at = max(self._confirmed_at, sent_at)
        if self._over_timer is not None:
            self._over_timer.cancel()
        over_at = self._confirmed_at + self._settings.session_timeout
        self._over_timer = self._loop.call_at(over_at, self._session_over)

    def _session_over(self) -> None:
        self._is_over = True
        self._reader.hold()
        self._urgent.set()

    # --- steps ------------------------------------------------------------------------------------

    async def _do_step(self, answer: GroupHeartbeatAnswer, assignment: list[OwnedTopic]) -> None:
        try:
            await self._change_to(_owned(assignment))
            self.epoch = answer.epoch
            if not self._settled.done():
                self._settled.set_result(None)
        finally:
            self._urgent.set()

    async def _change_to(self, wanted: Owned) -> None:
        owned = self._reader.owned
        gone = [where for where, topic_id in owned.items() if wanted.get(where) != topic_id]
        if gone:
            await self._reader.give_up(gone, self._settings.rebalance_timeout / 2)
        new = {where: found for where, found in wanted.items() if owned.get(where) != found}
        if new:
            await self._reader.receive(new)

    # --- topics ---------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        """Asks for these topics, or those of the pattern, from now on.

        Raises:
            HeadraceError: the topics of the pattern can't be looked up.
        """
        self._pattern = None if pattern is None else re.compile(pattern)
        self._ask_for(topics if self._pattern is None else await self._matching(self._pattern))

    def _ask_for(self, topics: Sequence[str]) -> None:
        if tuple(topics) != self._topics:
            self._topics, self._topics_version = tuple(topics), self._topics_version + 1
            self._urgent.set()

    async def _matching(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        names = await self._calls.topic_names()
        return tuple(sorted(name for name in names if pattern.fullmatch(name)))

    async def _watch_topics(self) -> None:
        while True:
            await asyncio.sleep(self._topics_interval)
            pattern = self._pattern
            if pattern is None:
                continue
            try:
                found = await self._matching(pattern)
            except HeadraceError as error:
                log.debug("the topics could not be looked up: %s", error)
                continue
            if self._pattern is pattern:
                self._ask_for(found)


def _note_end(work: asyncio.Future[None]) -> None:
    """The end of a request that nobody waits for any more."""
    if not work.cancelled() and (error := work.exception()) is not None:
        log.debug("an older heartbeat ended: %s", error)


def _owned(assignment: list[OwnedTopic]) -> Owned:
    return {
        TopicPartition(each.topic, partition): each.topic_id
        for each in assignment
        for partition in each.partitions
    }
