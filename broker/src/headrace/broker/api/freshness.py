"""What another broker has told the client already is known here too before it is denied.

A topic made through one broker is used through another a millisecond later, and this one's watch of
the store may be behind. So a name that is unknown here is looked up in the store, and a partition
that a client or broker sends to its leader is waited for while this broker is about to lead it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import PartitionRecord
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.store import keys
from headrace.broker.store.base import Gone, Put, Store
from headrace.protocol.errors import HeadraceError, NotLeader, StoreUnavailable
from headrace.protocol.ids import TopicIdPartition

SETTLE_S = 1.0
"""How long a request waits for its partitions to be led here; longer is the client's to wait."""

LOOK_INTERVAL_S = 0.005
"""Pause between two looks."""

LOOKUPS_MAX = 16
"""Names looked up in the store at the same time; for more the view has the last word."""

WAITING_MAX = 256
"""Requests that wait at the same time; more are answered from what is known."""


class Freshness:
    """Waits for what is about to be known, within bounds."""

    def __init__(
        self, store: Store, view: ClusterView, manager: PartitionManager, *, broker_id: int
    ) -> None:
        self._store = store
        self._view = view
        self._manager = manager
        self._broker_id = broker_id
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._waiting = 0

    async def of_names(self, topics: Iterable[str]) -> None:
        """Looks up the topics that are unknown here; those that don't exist stay unknown."""
        unknown = {topic for topic in topics if self._view.topic(topic) is None}
        for topic in unknown:
            task = self._lookups.get(topic)
            if task is None:
                if len(self._lookups) >= LOOKUPS_MAX:
                    return
                task = self._lookups[topic] = asyncio.ensure_future(self._look_up(topic))
                task.add_done_callback(lambda _, topic=topic: self._lookups.pop(topic))  # type: ignore[misc]
            await asyncio.shield(task)

    async def _look_up(self, topic: str) -> None:
        try:
            item = await self._store.get(keys.topic(topic))
            shards = [] if item is None else await self._store.list(keys.shards(topic))
        except StoreUnavailable:
            return
        found = Gone(keys.topic(topic)) if item is None else Put(item)
        self._view.apply([found, *[Put(shard) for shard in shards]])

    async def of_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Waits until each is led here, or is known to be led elsewhere, broken or without a
        leader; a second at most."""
        late = [where for where in partitions if not self._is_settled(where)]
        if not late or self._waiting >= WAITING_MAX:
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(SETTLE_S):
                while late:
                    await asyncio.sleep(LOOK_INTERVAL_S)
                    late = [where for where in late if not self._is_settled(where)]
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    def _is_settled(self, where: TopicIdPartition) -> bool:
        here = self._manager.get(where)
        if here is not None and here.leading:
            return True
        record = self._view.record(where.topic_id, where.partition)
        if isinstance(record, PartitionRecord):
            is_ours = record.leader is not None and record.leader.broker_id == self._broker_id
            return not is_ours or self._is_broken(where)
        topic = self._view.topic_by_id(where.topic_id)
        is_new = topic is None or 0 <= where.partition < topic.partition_count
        return record is not None or not is_new

    def _is_broken(self, where: TopicIdPartition) -> bool:
        try:
            offline = self._manager.find(where).offline
        except HeadraceError as error:
            offline = error
        return offline is not None and not isinstance(offline, NotLeader)
