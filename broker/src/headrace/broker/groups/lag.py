"""How far groups are behind, as the coordinator knows it: what metrics show.

A committed offset is here; the end of its partition is here as well if this broker has a replica,
else its leader is asked now and then, for all partitions in one call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import PartitionRecord
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.peers.base import Peers
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicId, TopicIdPartition

log = logging.getLogger(__name__)

ENDS_PATH = "partition-ends"
"""Where brokers answer each other; body and answer are MessagePack."""

REFRESH_INTERVAL_S = 10.0
"""How old the ends of other brokers' partitions may be."""

ASK_TIMEOUT_S = 5.0
UNKNOWN = -1

_encoder = msgspec.msgpack.Encoder()
_asked = msgspec.msgpack.Decoder(list[tuple[bytes, int]])
_ends = msgspec.msgpack.Decoder(list[int])


@dataclass(slots=True)
class LagSample:
    """A group's lag in one topic, in records; `unknown` partitions aren't in it."""

    group: str
    topic: str
    lag: int = 0
    unknown: int = 0


class GroupLag:
    """See the module."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        manager: PartitionManager,
        view: ClusterView,
        peers: Peers,
    ) -> None:
        self._coordinator = coordinator
        self._manager = manager
        self._view = view
        self._peers = peers
        self._elsewhere: dict[TopicIdPartition, int] = {}

    async def answer(self, body: memoryview) -> Sequence[Buffer]:
        """What another broker asks: the ends of partitions here; -1 where they aren't."""
        asked = [TopicIdPartition(TopicId(each), number) for each, number in _asked.decode(body)]
        return [_encoder.encode([self._end_here(where) for where in asked])]

    def _end_here(self, where: TopicIdPartition) -> int:
        partition = self._manager.get(where)
        if partition is None or partition.log.failure is not None:
            return UNKNOWN
        return partition.high_watermark

    async def refresh(self) -> None:
        """Asks the leaders of partitions that groups here read and of which no replica is here."""
        wanted: dict[int, list[TopicIdPartition]] = {}
        for _, offsets in self._coordinator.committed():
            for where in offsets:
                if self._manager.get(where) is None:
                    record = self._view.record(*where)
                    if isinstance(record, PartitionRecord) and record.leader is not None:
                        wanted.setdefault(record.leader.broker_id, []).append(where)
        found: dict[TopicIdPartition, int] = {}
        for broker_id, partitions in wanted.items():
            unique = list(dict.fromkeys(partitions))
            try:
                raw = await self._peers.call(
                    broker_id, ENDS_PATH, _encoder.encode(unique), timeout_s=ASK_TIMEOUT_S
                )
                found.update(zip(unique, _ends.decode(raw), strict=True))
            except (HeadraceError, msgspec.DecodeError, ValueError) as error:
                log.debug("broker %d didn't tell the ends of its partitions: %s", broker_id, error)
        self._elsewhere = found

    def samples(self) -> Iterator[LagSample]:
        """The lag of each group that is coordinated here, by topic."""
        for group, offsets in self._coordinator.committed():
            by_topic: dict[TopicId, LagSample] = {}
            for where, value in offsets.items():
                topic = self._manager.topic_name(where.topic_id)
                if topic is None:
                    continue
                sample = by_topic.setdefault(where.topic_id, LagSample(group, topic))
                end = self._end_here(where)
                end = self._elsewhere.get(where, UNKNOWN) if end == UNKNOWN else end
                if end == UNKNOWN:
                    sample.unknown += 1
                else:
                    sample.lag += max(0, end - value.offset)
            yield from by_topic.values()
