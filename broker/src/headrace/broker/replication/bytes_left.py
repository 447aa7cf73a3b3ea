"""What is left to copy for replicas that are being added: leaders say, whoever is asked adds up.

An estimate: of a leader's log the part (by offsets) that a missing replica hasn't fetched yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import PartitionRecord
from headrace.broker.core.moving import MoveStatus, missing_replicas
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.peers.base import PeerHandler, Peers
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import HeadraceError, InvalidRequest
from headrace.protocol.ids import TopicIdPartition, parse_topic_id

BYTES_LEFT = "bytes-left"
"""Path of the question."""

TIMEOUT_S = 2.0
PARTITIONS_PER_CALL = 10_000
"""Of more in one leader's hands the rest stays unknown."""


class _Part(msgspec.Struct, array_like=True, frozen=True):
    topic_id: str
    partition: int


_parts = msgspec.json.Decoder(list[_Part])
_bytes = msgspec.json.Decoder(list[int])


class BytesLeft:
    """One broker's part: it answers for what it leads and asks the leaders of the rest."""

    def __init__(
        self, manager: PartitionManager, view: ClusterView, peers: Peers, *, own_id: int
    ) -> None:
        self._manager = manager
        self._view = view
        self._peers = peers
        self._own_id = own_id

    @property
    def handlers(self) -> dict[str, PeerHandler]:
        """What others may ask, by path."""
        return {BYTES_LEFT: self._answer}

    async def find_out(self, copying: Iterable[MoveStatus]) -> Mapping[tuple[str, int], int]:
        """Bytes left by topic and partition; without those whose leader doesn't say."""
        by_leader: dict[int, list[tuple[str, _Part]]] = {}
        for status in copying:
            topic = self._view.topic(status.topic)
            record = self._view.record(topic.topic_id, status.partition) if topic else None
            if topic and isinstance(record, PartitionRecord) and record.leader is not None:
                part = _Part(topic.topic_id.hex(), status.partition)
                by_leader.setdefault(record.leader.broker_id, []).append((status.topic, part))
        answers = await asyncio.gather(*(self._ask(at, asked) for at, asked in by_leader.items()))
        return {where: left for answer in answers for where, left in answer.items()}

    async def _ask(self, leader: int, asked: list[tuple[str, _Part]]) -> dict[tuple[str, int], int]:
        asked = asked[:PARTITIONS_PER_CALL]
        body = msgspec.json.encode([part for _, part in asked])
        try:
            if leader == self._own_id:
                raw: Buffer = b"".join(await self._answer(memoryview(body)))
            else:
                raw = await self._peers.call(leader, BYTES_LEFT, body, timeout_s=TIMEOUT_S)
            found = _bytes.decode(raw)
        except (HeadraceError, msgspec.MsgspecError):
            return {}
        return {
            (name, part.partition): left
            for (name, part), left in zip(asked, found, strict=False)
            if left >= 0
        }

    async def _answer(self, body: memoryview) -> list[Buffer]:
        """One number for each partition asked for; -1 where this broker doesn't lead."""
        try:
            parts = _parts.decode(body)
            wanted = [TopicIdPartition(parse_topic_id(p.topic_id), p.partition) for p in parts]
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidRequest(f"no list of partitions: {error}") from error
        return [msgspec.json.encode([_left(self._manager.get(where)) for where in wanted])]


def _left(partition: Partition | None) -> int:
    if partition is None or partition.log is None or not partition.leading:
        return -1
    record, replicas, log = partition.record, partition.replicas, partition.log
    if record is None or replicas is None:
        return -1
    offsets = max(1, log.end_offset - log.start_offset)
    left = 0
    for broker_id in missing_replicas(record):
        follower = replicas.followers.get(broker_id)
        has = follower.offset if follower else log.start_offset
        behind = max(0, min(offsets, log.end_offset - has))
        left += log.size_bytes * behind // offsets
    return left
