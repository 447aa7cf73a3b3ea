"""Which partitions a consumer reads and where each begins; notices those added later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from headrace.protocol.errors import (
    HeadraceError,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from headrace.protocol.ids import TopicPartition
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.core.positions import PartitionState
from headrace.sdk.reading.commits import Commits
from headrace.sdk.reading.fetcher import Fetcher
from headrace.sdk.settings import OffsetReset

log = logging.getLogger("headrace.sdk.consumer")


class Subscription:
    """One consumer's topics, or the partitions it was assigned (then `topics` is empty)."""

    def __init__(
        self,
        topics: Sequence[str],
        *,
        offset_reset: OffsetReset,
        view: ClusterView,
        fetcher: Fetcher,
        commits: Commits,
    ) -> None:
        self.topics = tuple(topics)
        self._offset_reset: OffsetReset = offset_reset
        self._view = view
        self._fetcher = fetcher
        self._commits = commits

    async def begin(self) -> None:
        """Starts reading all partitions of the topics."""
        await self._add(await self._all_partitions())

    async def replace(self, wanted: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions from now on; those read before stay where they are.

        Raises:
            TopicNotFound, PartitionNotFound: there is no such place.
        """
        states = self._fetcher.states
        chosen = set(wanted)
        for where in [where for where in states if where not in chosen]:
            states.pop(where).forget()
        await self._add([where for where in sorted(chosen) if where not in states])

    async def watch(self, interval: float) -> None:
        """Notices added partitions and topics created again, every `interval` seconds."""
        while True:
            await asyncio.sleep(interval)
            try:
                for topic in self.topics:
                    self._fetcher.check_identity(await self._view.refresh(topic))
                known = self._fetcher.states
                added = [where for where in await self._all_partitions() if where not in known]
                if added:
                    await self._add(added, is_new=True)
            except HeadraceError as error:
                log.debug("the topics could not be looked up: %s", error)

    async def _all_partitions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for topic in dict.fromkeys(self.topics):
            view = await self._view.topic(topic)
            found += [TopicPartition(topic, number) for number in range(len(view.leaders))]
        return found

    async def _add(self, wanted: Sequence[TopicPartition], *, is_new: bool = False) -> None:
        """Starts reading partitions: at the committed offset, else as `offset_reset` says. One that
        was added to a topic later (`is_new`) is read from its beginning, or records are lost."""
        self._fetcher.check_open()
        found = [await self._state_for(where) for where in wanted]
        await self._place(found, is_new=is_new)
        self._fetcher.check_open()
        for state in found:
            self._fetcher.states[state.owner] = state
        self._fetcher.pump()

    async def require(self, topics: Sequence[str]) -> None:
        """Refuses topics that aren't there.

        Raises:
            TopicNotFound.
        """
        for topic in topics:
            await self._view.topic(topic)

    async def replace_topics(self) -> None:
        """Reads exactly the partitions of `topics` from now on."""
        await self.replace(await self._all_partitions())

    async def prepare(self, wanted: Mapping[TopicPartition, str]) -> list[PartitionState]:
        """Partitions (with their topics' ids) ready to be read, at the committed offset, else as
        `offset_reset` says; without those whose topic has gone meanwhile.

        Raises:
            HeadraceError: the cluster can't be asked.
        """
        found = []
        for where, topic_id in sorted(wanted.items()):
            try:
                view = await self._view.topic(where.topic)
                if view.topic_id.hex() != topic_id or where.partition >= len(view.leaders):
                    view = await self._view.refresh(where.topic)
            except TopicNotFound:
                continue
            if view.topic_id.hex() == topic_id:
                found.append(PartitionState(where, view.topic_id, None))
        await self._place(found)
        return found

    async def _place(self, found: Sequence[PartitionState], *, is_new: bool = False) -> None:
        committed = await self._commits.load() if found else {}
        for state in found:
            topic_id, offset = committed.get(state.owner, ("", 0))
            if topic_id == state.topic_id.hex():
                state.move(offset)
                self._commits.note(state.owner, offset)
            else:
                state.start = "earliest" if is_new else self._reset_of(state)
        unresolved = [state for state in found if state.start is not None]
        if unresolved:
            await self._fetcher.resolve(unresolved)

    async def _state_for(self, where: TopicPartition) -> PartitionState:
        topic = await self._view.topic(where.topic)
        if where.partition not in range(len(topic.leaders)):
            raise PartitionNotFound(
                f"topic {where.topic!r} has {len(topic.leaders)} partitions,"
                f" there is no {where.partition}"
            )
        return PartitionState(where, topic.topic_id, None)

    def _reset_of(self, state: PartitionState) -> OffsetReset:
        if self._offset_reset == "error":
            raise OffsetOutOfRange(
                f"{state.owner.topic}/{state.owner.partition} has no committed offset and"
                " offset_reset is 'error'; seek, commit, or choose 'earliest' or 'latest'"
            )
        return self._offset_reset
