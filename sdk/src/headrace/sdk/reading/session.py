"""What a consumer consists of once it reads: made on its first use, on the loop of that use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

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
from headrace.sdk.reading.handouts import Handouts
from headrace.sdk.reading.subscription import Subscription
from headrace.sdk.settings import ConsumerSettings
from headrace.sdk.tasks import Tasks

log = logging.getLogger("headrace.sdk.consumer")


class Session:
    """One consumer at work. Nothing is read before `start` has succeeded."""

    def __init__(
        self, client: Client, topics: Sequence[str], settings: ConsumerSettings, decoder: Decoder
    ) -> None:
        self.is_started = False
        self.fetcher = Fetcher(client, view := ClusterView(client), settings)
        self.progress = Progress()
        self.handouts = Handouts(
            self.fetcher, self.progress, decoder, on_corrupt=settings.on_corrupt
        )
        self.commits = Commits(client, settings.group, retry_timeout=settings.offset_retry_timeout)
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
        self._commits_itself = settings.group is not None and settings.auto_commit
        self._starting = asyncio.Lock()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Looks the topics and starting offsets up, once; what fails is tried again next time."""
        async with self._starting:
            if self.is_started:
                return
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
            self._tasks.spawn(self.subscription.watch(timeouts.metadata_max_age))
            self.is_started = True

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
        if not self._commits_itself or not self.is_started:
            return
        try:
            timeout = self._client.settings.request_timeout
            await self.commits.commit_changed(self.finished(), timeout=timeout)
        except HeadraceError as error:
            log.warning("offsets could not be committed at close: %s", error)

    async def close(self) -> None:
        """Hands out nothing more and gives up all connections."""
        self.progress.cut()
        await self.fetcher.close()
        await self._tasks.cancel()
        await self._view.close()
        await self._client.close()
