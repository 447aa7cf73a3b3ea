"""Topics: create, list, describe, alter, delete."""

from __future__ import annotations

from typing import Literal

import msgspec
from aiohttp import web

from headrace.broker.api.endpoint import Call, json_answer
from headrace.broker.api.shielding import to_the_end
from headrace.broker.controller.coordination import Coordination
from headrace.broker.core.model import PartitionRecord, TopicObject, UnreadableRecord
from headrace.broker.partition.manager import PartitionManager
from headrace.protocol.errors import NotLeader, PartitionOffline
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.models import (
    ConfigEntry,
    ErrorBody,
    Name,
    PartitionInfo,
    TopicAlter,
    TopicCreate,
    TopicDeleted,
    TopicInfo,
    TopicList,
    TopicSummary,
)
from headrace.protocol.names import check_user_topic, is_internal


class TopicPath(msgspec.Struct, forbid_unknown_fields=True):
    """A topic by name."""

    topic: Name


class ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Whether the system's own topics are listed too."""

    internal: Literal["true", "false"] = "false"


class Topics:
    """The endpoints under /v1/topics that aren't about records."""

    def __init__(self, coordination: Coordination, manager: PartitionManager) -> None:
        self._coordination = coordination
        self._manager = manager

    async def create(self, call: Call) -> web.StreamResponse:
        """POST /v1/topics."""
        body: TopicCreate = call.body
        self._manager.require_room_for(body.partitions or 1)
        topic = await to_the_end(
            self._coordination.create_topic(
                check_user_topic(body.name),
                partitions=body.partitions,
                replicas=body.replicas,
                config=body.config,
            )
        )
        await self._manager.settled()
        return json_answer(self._describe(topic), status=201)

    async def list_all(self, call: Call) -> web.StreamResponse:
        """GET /v1/topics."""
        query: ListQuery = call.query
        topics = sorted(self._coordination.view.topics.items())
        return json_answer(
            TopicList(
                [
                    TopicSummary(
                        name,
                        topic.topic_id.hex(),
                        is_internal(name),
                        topic.partition_count,
                        topic.replicas,
                    )
                    for name, topic in topics
                    if query.internal == "true" or not is_internal(name)
                ]
            )
        )

    async def describe(self, call: Call) -> web.StreamResponse:
        """GET /v1/topics/{topic}."""
        return json_answer(self._describe(self._manager.topic(call.path.topic)))

    async def alter(self, call: Call) -> web.StreamResponse:
        """PATCH /v1/topics/{topic}."""
        body: TopicAlter = call.body
        before = self._manager.writable_topic(call.path.topic)
        self._manager.require_room_for(max(0, (body.partitions or 0) - before.partition_count))
        name = before.name
        topic = await to_the_end(
            self._coordination.alter_topic(
                name, config=body.config, partitions=body.partitions, replicas=body.replicas
            )
        )
        await self._manager.settled()
        return json_answer(self._describe(topic))

    async def delete(self, call: Call) -> web.StreamResponse:
        """DELETE /v1/topics/{topic}."""
        name = self._manager.writable_topic(call.path.topic).name
        topic_id = await to_the_end(self._coordination.delete_topic(name))
        return json_answer(TopicDeleted(topic_id.hex()))

    def _describe(self, topic: TopicObject) -> TopicInfo:
        return TopicInfo(
            topic.name,
            topic.topic_id.hex(),
            is_internal(topic.name),
            topic.replicas,
            {
                key: ConfigEntry(entry.value, entry.source)
                for key, entry in self._manager.config_entries(topic).items()
            },
            [self._partition(topic, index) for index in range(topic.partition_count)],
        )

    def _partition(self, topic: TopicObject, index: int) -> PartitionInfo:
        record = self._coordination.view.record(topic.topic_id, index)
        if record is None or isinstance(record, UnreadableRecord):
            reason = "it has no record yet" if record is None else record.reason
            error = PartitionOffline(f"{topic.name}/{index}: {reason}")
            return PartitionInfo(index, None, -1, [], [], error=ErrorBody.of(error))
        return self._readable(topic, index, record)

    def _readable(self, topic: TopicObject, index: int, record: PartitionRecord) -> PartitionInfo:
        info = PartitionInfo(
            index,
            record.leader.broker_id if record.leader else None,
            record.leader_epoch,
            list(record.replicas),
            [member.broker_id for member in record.isr],
            recovery=None if record.recovery == "none" else record.recovery,
            elr=[member.broker_id for member in record.elr],
            min_isr=record.min_effective,
        )
        here = self._manager.get(TopicIdPartition(topic.topic_id, index))
        if here is not None and here.log is not None:
            info.log_start_offset = here.log.start_offset
            info.high_watermark = here.high_watermark
            info.size_bytes = here.log.size_bytes
            if here.offline is not None and not isinstance(here.offline, NotLeader):
                info.error = ErrorBody.of(here.offline)
        why = self._coordination.why_offline(topic.topic_id, index)
        if why is not None and info.error is None:
            info.error = ErrorBody.of(PartitionOffline(f"{topic.name}/{index}: {why}"))
        return info
