"""How far the replicas of a partition without a leader go: asked for when that decides (R24).

An end counts only together with the session that said it: it must still be the registered one when
the answer is in. Nothing is remembered between two questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from headrace.broker.controller.view import ClusterView
from headrace.broker.core.election import LogEnd
from headrace.broker.peers.base import PeerHandler, Peers
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import HeadraceError, InvalidRequest
from headrace.protocol.ids import TopicId, parse_topic_id

LOG_ENDS = "log-ends"
"""Path of the question."""

TIMEOUT_S = 5.0
PARTITIONS_PER_CALL = 10_000
"""More are asked for in the next round."""

LogEndOf = Callable[[TopicId, int], LogEnd | None]
"""This broker's own replica; None while its log isn't open."""

Asks = Mapping[str, Mapping[int, tuple[int, ...]]]
"""Topic -> partition -> brokers to ask."""


class _Part(msgspec.Struct, array_like=True, frozen=True):
    topic_id: str
    partition: int


class _End(msgspec.Struct, array_like=True, frozen=True):
    topic_id: str
    partition: int
    last_epoch: int
    offset: int


class _Answer(msgspec.Struct, frozen=True):
    session: int
    ends: list[_End]


_parts = msgspec.json.Decoder(list[_Part])
_answers = msgspec.json.Decoder(_Answer)


def answer_log_ends(session: Callable[[], int], log_end_of: LogEndOf) -> PeerHandler:
    """The handler of `LOG_ENDS`: a replica whose log isn't open is left out."""

    async def handle(body: memoryview) -> list[Buffer]:
        try:
            parts = _parts.decode(body)
            wanted = [(part, parse_topic_id(part.topic_id)) for part in parts]
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidRequest(f"no list of partitions: {error}") from error
        ends = [
            _End(part.topic_id, part.partition, end.last_epoch, end.offset)
            for part, topic_id in wanted
            if (end := log_end_of(topic_id, part.partition)) is not None
        ]
        return [msgspec.json.encode(_Answer(session(), ends))]

    return handle


class LogEnds:
    """Asks brokers, this one among them, for their log ends."""

    def __init__(
        self, peers: Peers, view: ClusterView, *, own_id: int, handler: PeerHandler
    ) -> None:
        self._peers = peers
        self._view = view
        self._own_id = own_id
        self._handler = handler

    async def ask(self, asks: Asks) -> dict[str, dict[int, dict[int, LogEnd]]]:
        """Topic -> partition -> broker -> end; what wasn't answered isn't in it."""
        by_broker: dict[int, list[tuple[str, _Part]]] = {}
        for name, partitions in asks.items():
            topic = self._view.topic(name)
            for partition, brokers in partitions.items() if topic is not None else ():
                for broker_id in brokers:
                    part = _Part(topic.topic_id.hex(), partition) if topic else None
                    if part is not None:
                        by_broker.setdefault(broker_id, []).append((name, part))
        answers = await asyncio.gather(
            *(self._ask_one(broker_id, parts) for broker_id, parts in by_broker.items())
        )
        found: dict[str, dict[int, dict[int, LogEnd]]] = {}
        for broker_id, answer in zip(by_broker, answers, strict=True):
            for name, partition, end in answer:
                found.setdefault(name, {}).setdefault(partition, {})[broker_id] = end
        return found

    async def _ask_one(
        self, broker_id: int, parts: list[tuple[str, _Part]]
    ) -> list[tuple[str, int, LogEnd]]:
        asked = parts[:PARTITIONS_PER_CALL]
        body = msgspec.json.encode([part for _, part in asked])
        try:
            answer = _answers.decode(await self._call(broker_id, body))
        except (HeadraceError, msgspec.MsgspecError):
            return []
        registration = self._view.brokers.get(broker_id)
        if registration is None or registration.session != answer.session:
            return []
        name_of = {part.topic_id: name for name, part in asked}
        return [
            (name_of[end.topic_id], end.partition, LogEnd(end.last_epoch, end.offset))
            for end in answer.ends
            if end.topic_id in name_of
        ]

    async def _call(self, broker_id: int, body: bytes) -> Buffer:
        if broker_id == self._own_id:
            return b"".join(await self._handler(memoryview(body)))
        return await self._peers.call(broker_id, LOG_ENDS, body, timeout_s=TIMEOUT_S)
