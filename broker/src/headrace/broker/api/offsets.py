"""Questions about offsets, many at once, and cutting logs at the front."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.broker.api.shielding import to_the_end
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.protocol.errors import HeadraceError, InvalidRequest, RequestTimedOut
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.models import (
    DeleteRecordsPart,
    DeleteRecordsResult,
    ErrorBody,
    OffsetAnswer,
    OffsetQuery,
)

SETTLE_S = 3.0
"""How long a question waits for a new leader to know what is committed, and a deletion for the
followers."""

LOOK_INTERVAL_S = 0.01
"""Pause between two looks at who has deleted."""


class Offsets:
    """Of the partitions that this broker leads."""

    def __init__(self, manager: PartitionManager) -> None:
        self._manager = manager

    async def answer_all(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """Answers every question, with an error where one can't be."""
        return list(await asyncio.gather(*map(self._answer, queries)))

    async def _answer(self, query: OffsetQuery) -> OffsetAnswer:
        answer = OffsetAnswer(query.topic, query.partition)
        try:
            partition = self._find(query.topic, query.partition)
            answer.leader_epoch = partition.leader_epoch
            answer.offset, answer.timestamp_ms = await _look_up(partition, query)
        except HeadraceError as error:
            answer.error = ErrorBody.of(error)
        return answer

    async def delete_records(self, parts: Sequence[DeleteRecordsPart]) -> list[DeleteRecordsResult]:
        """Cuts each partition; answers once the new starts are on the disk."""
        return await to_the_end(self._cut_all(parts))

    async def _cut_all(self, parts: Sequence[DeleteRecordsPart]) -> list[DeleteRecordsResult]:
        results = [await self._cut(each) for each in parts]
        await self._manager.checkpoint()
        return results

    async def _cut(self, part: DeleteRecordsPart) -> DeleteRecordsResult:
        result = DeleteRecordsResult(part.topic, part.partition)
        try:
            self._manager.writable_topic(part.topic)
            partition = self._find(part.topic, part.partition)
            await _settle(partition)
            before = part.before_offset
            before = partition.high_watermark if before == -1 else before
            await partition.delete_before(before)
            result.log_start_offset = partition.log.start_offset
            await _spread(partition, before)
        except HeadraceError as error:
            result.error = ErrorBody.of(error)
        return result

    def _find(self, topic: str, index: int) -> Partition:
        found = self._manager.find(TopicIdPartition(self._manager.topic(topic).topic_id, index))
        found.require_usable()
        return found


async def _settle(partition: Partition) -> None:
    """Waits until a new leader's high watermark has passed all that readers may have seen under the
    one before (KIP-207)."""
    try:
        async with asyncio.timeout(SETTLE_S):
            await partition.own_epoch_committed()
    except TimeoutError:
        raise RequestTimedOut(
            f"{partition.name}: its leader is new, and not enough replicas have caught up within"
            f" {SETTLE_S:g} s to say what is committed; ask again"
        ) from None


async def _spread(partition: Partition, before: int) -> None:
    """Waits until the in-sync followers have deleted as well: who leads next must not bring the
    records back."""
    behind: list[int] = []
    try:
        async with asyncio.timeout(SETTLE_S):
            while behind := partition.replicas_before(before):
                await asyncio.sleep(LOOK_INTERVAL_S)
    except TimeoutError:
        raise RequestTimedOut(
            f"{partition.name}: the records before {before} are deleted, but broker"
            f" {', '.join(map(str, behind))} hasn't heard of it within {SETTLE_S:g} s; if it leads"
            " next they are back: ask again"
        ) from None
    partition.require_usable()


async def _look_up(partition: Partition, query: OffsetQuery) -> tuple[int | None, int | None]:
    if query.at != "earliest":
        await _settle(partition)
    end_offset = partition.high_watermark
    if query.at == "earliest":
        return partition.log.start_offset, None
    if query.at == "latest":
        return end_offset, None
    if query.at == "timestamp":
        if query.timestamp_ms is None:
            raise InvalidRequest("at=timestamp needs timestamp_ms")
        hit = await partition.log.offset_for_time(query.timestamp_ms, end_offset=end_offset)
        return (None, None) if hit is None else (hit.offset, hit.timestamp_ms)
    if query.offset is None or query.size_bytes is None:
        raise InvalidRequest("at=bytes needs offset and size_bytes")
    partition.check_readable(query.offset)
    log = partition.log
    return (
        await log.offset_after_bytes(query.offset, query.size_bytes, end_offset=end_offset),
        None,
    )
