"""What a step of the group means for the consumer's inner side: partitions given up in order, with
what the program had of them finished and committed, and partitions received where the group is."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headrace.protocol.errors import HeadraceError, TopicNotFound
from headrace.protocol.ids import TopicId, TopicPartition
from headrace.sdk.core.positions import PartitionState
from headrace.sdk.core.progress import Progress
from headrace.sdk.reading.commits import Commits
from headrace.sdk.reading.fetcher import Fetcher
from headrace.sdk.reading.handouts import Handouts
from headrace.sdk.reading.subscription import Subscription

log = logging.getLogger("headrace.sdk.consumer")

FINISH_LOOK_S = 0.01
"""How often it is looked whether the program has finished what it has of a partition that it gives
up."""

RECEIVE_RETRY_S = 0.5
"""Pause before starting offsets that could not be looked up are asked for again."""

Call = Callable[[Sequence[TopicPartition]], Awaitable[object] | object]


class GroupReader:
    """Does the steps for one consumer (`membership.Reader`). The callbacks get the partitions."""

    def __init__(
        self,
        fetcher: Fetcher,
        progress: Progress,
        handouts: Handouts,
        subscription: Subscription,
        commits: Commits,
        *,
        commit_timeout: float | None,
        on_assigned: Call | None,
        on_revoked: Call | None,
        on_lost: Call | None,
    ) -> None:
        """`commit_timeout`: None where the program commits by itself."""
        self._fetcher = fetcher
        self._progress = progress
        self._handouts = handouts
        self._subscription = subscription
        self._commits = commits
        self._commit_timeout = commit_timeout
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost or on_revoked
        self._topic_ids: dict[str, TopicId] = {}

    @property
    def owned(self) -> dict[TopicPartition, str]:
        """The partitions being read, with their topics' ids."""
        return {where: state.topic_id.hex() for where, state in self._fetcher.states.items()}

    # --- giving up --------------------------------------------------------------------------------

    async def give_up(self, partitions: Sequence[TopicPartition], timeout: float) -> None:
        """Hands out nothing more of the partitions, waits (at most `timeout` seconds) until the
        program has finished what it has, lets it know, commits, and forgets them. The others go on
        meanwhile."""
        states = [self._fetcher.states[where] for where in partitions]
        self._hold(states)
        await self._finished(states, timeout)
        await _call(self._on_revoked, partitions)
        await self._commit(states)
        self._forget(states)

    async def _finished(self, states: Sequence[PartitionState], timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not all(map(self._progress.is_done_with, states)):
            if loop.time() >= deadline:
                log.warning(
                    "partitions are given up although the program hasn't finished what it has of"
                    " them; those records come again elsewhere"
                )
                return
            await asyncio.sleep(FINISH_LOOK_S)

    async def _commit(self, states: Sequence[PartitionState]) -> None:
        if self._commit_timeout is None:
            return
        try:
            finished = self._progress.finished(states)
            await self._commits.commit_changed(finished, timeout=self._commit_timeout)
        except HeadraceError as error:
            log.warning("offsets of partitions given up could not be committed: %s", error)

    def _forget(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            self._commits.forget(state.owner)
            self._progress.touched.discard(state)
            if self._fetcher.states.get(state.owner) is state:
                self._fetcher.states.pop(state.owner).forget()

    async def lose(self) -> None:
        """All partitions are gone without asking: nothing of them can be committed any more."""
        states = list(self._fetcher.states.values())
        self._hold(states)
        self._forget(states)
        if states:
            await _call(self._on_lost, [state.owner for state in states])

    async def close(self) -> None:
        """The consumer ends: the program is told of what it gives up, and what is finished is
        committed."""
        states = list(self._fetcher.states.values())
        self._hold(states)
        if states:
            await _call(self._on_revoked, [state.owner for state in states])
        await self._commit(states)

    def hold(self) -> None:
        """Hands out nothing from now on."""
        self._hold(list(self._fetcher.states.values()))

    def _hold(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            state.is_held = True
            self._progress.pause(state)

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self, partitions: Mapping[TopicPartition, str]) -> None:
        """Starts reading where the group is, once the program was asked (it may seek)."""
        while True:
            try:
                states = await self._subscription.prepare(partitions)
                break
            except HeadraceError as error:
                if not error.retriable:
                    raise
                log.warning("starting offsets can't be looked up, trying again: %s", error)
                await asyncio.sleep(RECEIVE_RETRY_S)
        if not states:
            return
        for state in states:
            state.is_held = True
            self._fetcher.states[state.owner] = state
            self._note_identity(state)
        await _call(self._on_assigned, [state.owner for state in states])
        for state in states:
            state.is_held = False
        self._fetcher.pump()
        self._fetcher.wake()

    def _note_identity(self, state: PartitionState) -> None:
        """Tells the program, once, that it reads another topic of the same name from now on."""
        topic = state.owner.topic
        before = self._topic_ids.setdefault(topic, state.topic_id)
        if before != state.topic_id:
            self._topic_ids[topic] = state.topic_id
            self._handouts.notices.append(
                TopicNotFound(
                    f"topic {topic!r} was deleted and created again; its offsets mean nothing in"
                    " the new one. Reading on gives the new topic's records, as offset_reset says"
                )
            )

    # --- failing ----------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Ends whoever reads with `error`, now and at every further call."""
        self._handouts.failure = error
        self._fetcher.wake()


async def _call(callback: Call | None, partitions: Sequence[TopicPartition]) -> None:
    if callback is not None:
        outcome = callback(sorted(partitions))
        if inspect.isawaitable(outcome):
            await outcome
