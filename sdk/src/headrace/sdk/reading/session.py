"""What a consumer consists of once it reads: made on its first use, on the loop of that use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.protocol.errors import HeadraceError, PartitionNotFound
from headrace.protocol.ids import TopicPartition
from headrace.protocol.record import Record
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.core.positions import PartitionState
from headrace.sdk.core.progress import Progress
from headrace.sdk.offsets import Where, places_of
from headrace.sdk.reading.commits import Commits
from headrace.sdk.reading.decoding import Decoder
from headrace.sdk.reading.fetcher import Fetcher
from headrace.sdk.reading.group_calls import GroupCalls
from headrace.sdk.reading.group_reader import Call, GroupReader
from headrace.sdk.reading.handouts import Handouts
from headrace.sdk.reading.membership import Membership
from headrace.sdk.reading.subscription import Subscription
from headrace.sdk.settings import ConsumerSettings
from headrace.sdk.tasks import Tasks

log = logging.getLogger("headrace.sdk.consumer")


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the program wants to hear: partitions that came, that go, and that are gone already."""

    on_assigned: Call | None = None
    on_revoked: Call | None = None
    on_lost: Call | None = None


NO_CALLBACKS = Callbacks()


class Session:
    """One consumer at work. Nothing is read before `start` has succeeded."""

    def __init__(
        self,
        client: Client,
        topics: Sequence[str],
        settings: ConsumerSettings,
        decoder: Decoder,
        callbacks: Callbacks = NO_CALLBACKS,
    ) -> None:
        self.is_started = False
        self.fetcher = Fetcher(client, view := ClusterView(client), settings)
        self.progress = Progress()
        self.handouts = Handouts(
            self.fetcher, self.progress, decoder, on_corrupt=settings.on_corrupt
        )
        self.commits = Commits(
            client, settings.offsets_group, retry_timeout=settings.offset_retry_timeout
        )
        self.subscription = Subscription(
            topics,
            offset_reset=settings.offset_reset,
            view=view,
            fetcher=self.fetcher,
            commits=self.commits,
        )
        self._client = client
        self._view = view
        self._settings = settings
        self._commits_itself = settings.offsets_group is not None and settings.auto_commit
        self._callbacks = callbacks
        self.membership: Membership | None = None
        self._reader: GroupReader | None = None
        self._starting = asyncio.Lock()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Looks the topics and starting offsets up, once; what fails is tried again next time."""
        async with self._starting:
            if self.is_started:
                return
            if self._is_to_join:
                await self._join()
            else:
                await self.subscription.begin()
            timeouts = self._client.settings
            if self._commits_itself:
                self._tasks.spawn(
                    self.commits.keep_committing(
                        self.finished,
                        interval=self._settings.auto_commit_interval,
                        timeout=timeouts.request_timeout,
                    )
                )
            if self.membership is None:
                self._tasks.spawn(self.subscription.watch(timeouts.metadata_max_age))
            self.is_started = True
        if self.membership is not None:
            await self.membership.settled(self._settings.offset_retry_timeout)

    # --- the group -------------------------------------------------------------------------------

    @property
    def _is_to_join(self) -> bool:
        settings = self._settings
        if settings.group is None or settings.broadcast:
            return False
        return bool(self.subscription.topics or settings.pattern)

    async def _join(self) -> None:
        """Lets the group say what is read here."""
        settings, timeouts = self._settings, self._client.settings
        assert settings.group is not None
        await self.subscription.require(self.subscription.topics)
        self._reader = GroupReader(
            self.fetcher,
            self.progress,
            self.handouts,
            self.subscription,
            self.commits,
            commit_timeout=timeouts.request_timeout if self._commits_itself else None,
            on_assigned=self._callbacks.on_assigned,
            on_revoked=self._callbacks.on_revoked,
            on_lost=self._callbacks.on_lost,
        )
        membership = Membership(
            GroupCalls(self._client, self._view, settings.group, settings),
            self._reader,
            settings,
            self.subscription.topics,
            topics_interval=timeouts.metadata_max_age,
        )
        await membership.begin()
        self.membership = membership
        self.commits.identity = lambda: (membership.member_id, membership.heard_epoch)
        self.commits.topic_id_of = self._topic_id_of
        self.handouts.may_be_empty = True
        self.handouts.topics_may_go = settings.pattern is not None
        self.handouts.may_hand_out = lambda: membership.may_hand_out

    async def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        """Reads these topics from now on, as far as the group gives them.

        Raises:
            HeadraceError: they can't be looked up; then nothing has changed.
        """
        settings = replace(self._settings, pattern=pattern)
        if topics:
            await self.subscription.require(topics)
        self.subscription.topics, self._settings = tuple(topics), settings
        self.handouts.topics_may_go = pattern is not None
        if not self.is_started:
            return
        if self.membership is not None:
            await self.membership.subscribe(topics, pattern)
        elif self._is_to_join:
            await self.subscription.replace([])
            await self._join()
        else:
            await self.subscription.replace_topics()

    def forget_topics(self) -> None:
        """Partitions are assigned from now on."""
        self.subscription.topics = ()
        self._settings = replace(self._settings, pattern=None)

    def _topic_id_of(self, where: TopicPartition) -> str | None:
        state = self.fetcher.states.get(where)
        return None if state is None else state.topic_id.hex()

    async def leave(self) -> None:
        """Gives up what the group gave and is no member any more."""
        membership, self.membership = self.membership, None
        if membership is None or self._reader is None:
            return
        await membership.end_steps()
        await self._reader.close()
        await membership.close(leave=True)
        self.commits.identity = lambda: ("", -1)
        self.handouts.may_be_empty = False
        self.handouts.may_hand_out = lambda: True
        for where in list(self.fetcher.states):
            self.fetcher.states.pop(where).forget()

    # --- partitions ------------------------------------------------------------------------------

    def state_at(self, partition: tuple[str, int]) -> PartitionState:
        """The state of an assigned partition.

        Raises:
            PartitionNotFound: it is not assigned.
        """
        where = TopicPartition(*partition)
        found = self.fetcher.states.get(where)
        if found is None:
            raise PartitionNotFound(f"{where.topic}/{where.partition} is not assigned")
        return found

    def state_of(self, record: Record) -> PartitionState:
        """The state of the partition that a record came from."""
        return self.fetcher.states[TopicPartition(record.topic, record.partition)]

    def chosen(self, partitions: Sequence[tuple[str, int]]) -> list[PartitionState]:
        """The states of the given partitions; none given: of all."""
        if not partitions:
            return list(self.fetcher.states.values())
        return [self.state_at(partition) for partition in partitions]

    def finished(self) -> dict[TopicPartition, int]:
        """What may be committed by itself."""
        return self.progress.finished(self.fetcher.states.values())

    # --- places ----------------------------------------------------------------------------------

    async def seek(self, states: Sequence[PartitionState], to: Where) -> None:
        """Goes on at a place in each of the partitions, also with what was read ahead."""
        places = await self.places_of([state.owner for state in states], to)
        for state in states:
            self.progress.move(state, places[state.owner])
        self.fetcher.check_open()
        self.fetcher.pump()

    async def places_of(
        self, partitions: Sequence[TopicPartition], to: Where
    ) -> dict[TopicPartition, int]:
        """The offset of a place in each of the partitions, asked now.

        Raises:
            HeadraceError: a partition can't be asked.
        """
        timeout = self._settings.offset_retry_timeout
        return await places_of(self._client, partitions, to, timeout=timeout)

    # --- end -------------------------------------------------------------------------------------

    async def commit_last(self) -> None:
        """Commits what is finished, if the consumer does that by itself; never raises."""
        if self.membership is not None and self.is_started:
            await self._leave_last()
            return
        if not self._commits_itself or not self.is_started:
            return
        try:
            timeout = self._client.settings.request_timeout
            await self.commits.commit_changed(self.finished(), timeout=timeout)
        except HeadraceError as error:
            log.warning("offsets could not be committed at close: %s", error)

    async def _leave_last(self) -> None:
        try:
            await self.leave()
        except HeadraceError as error:
            log.warning("the group could not be left in order: %s", error)

    async def close(self) -> None:
        """Hands out nothing more and gives up all connections."""
        self.progress.cut()
        if self.membership is not None:  # Interrupted: nothing is committed, but the others know.
            await self.membership.close(leave=True)
        await self.fetcher.close()
        await self._tasks.cancel()
        await self._view.close()
        await self._client.close()
