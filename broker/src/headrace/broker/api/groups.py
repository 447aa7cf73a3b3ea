"""Groups: committed offsets, their lag, and forgetting them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from headrace.broker.api.endpoint import Call, json_answer
from headrace.broker.api.shielding import to_the_end
from headrace.broker.groups.offsets import Commit, GroupCoordinator
from headrace.broker.groups.records import OffsetValue
from headrace.broker.partition.manager import PartitionManager
from headrace.protocol.errors import GroupNotFound, HeadraceError
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.models import (
    CommitAnswer,
    CommitPart,
    CommitRequest,
    CommitResult,
    CommittedOffset,
    ErrorBody,
    GroupInfo,
    GroupList,
    GroupSummary,
    Name,
)
from headrace.protocol.names import check_name

EMPTY = "Empty"
"""A group without members; the only state until membership comes with the groups issue."""


class GroupPath(msgspec.Struct, forbid_unknown_fields=True):
    """A group by name."""

    group: Name


class OffsetsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only the offsets of one topic."""

    topic: Annotated[str, Meta(max_length=249)] | None = None


class Groups:
    """The endpoints under /v1/groups."""

    def __init__(
        self, coordinator: GroupCoordinator, manager: PartitionManager, broker_id: int
    ) -> None:
        self._coordinator = coordinator
        self._manager = manager
        self._broker_id = broker_id

    async def list_all(self, call: Call) -> web.StreamResponse:
        """GET /v1/groups."""
        groups = []
        for group, topic_ids in sorted(self._coordinator.groups()):
            names = (self._manager.topic_name(topic_id) for topic_id in topic_ids)
            groups.append(GroupSummary(group, EMPTY, sorted(name for name in names if name)))
        return json_answer(GroupList(groups))

    async def describe(self, call: Call) -> web.StreamResponse:
        """GET /v1/groups/{group}: committed offsets with lag."""
        group = check_name(call.path.group, kind="group")
        info = self._info(group, await self._coordinator.offsets(group), with_lag=True)
        if not info.offsets:
            raise GroupNotFound(f"group {group!r} has no committed offsets")
        return json_answer(info)

    async def offsets(self, call: Call) -> web.StreamResponse:
        """GET /v1/groups/{group}/offsets: what a consumer needs at its start."""
        group = check_name(call.path.group, kind="group")
        info = self._info(group, await self._coordinator.offsets(group), with_lag=False)
        if call.query.topic is not None:
            info.offsets = [each for each in info.offsets if each.topic == call.query.topic]
        return json_answer(info)

    async def commit(self, call: Call) -> web.StreamResponse:
        """POST /v1/groups/{group}/offsets."""
        group = check_name(call.path.group, kind="group")
        request: CommitRequest = call.body
        results, commits = [], []
        for part in request.offsets:
            result = CommitResult(part.topic, part.partition)
            results.append(result)
            try:
                commits.append(self._commit_of(part))
            except HeadraceError as error:
                result.error = ErrorBody.of(error)
        if commits:
            await to_the_end(self._coordinator.commit(group, commits))
        return json_answer(CommitAnswer(results))

    async def delete(self, call: Call) -> web.StreamResponse:
        """DELETE /v1/groups/{group}."""
        group = check_name(call.path.group, kind="group")
        await to_the_end(self._coordinator.delete(group))
        return web.Response(status=204)

    def _commit_of(self, part: CommitPart) -> Commit:
        topic = self._manager.topic(part.topic)
        where = TopicIdPartition(topic.topic_id, part.partition)
        self._manager.require_exists(where)
        return Commit(where, part.offset, part.leader_epoch, part.metadata)

    def _info(
        self, group: str, offsets: Mapping[TopicIdPartition, OffsetValue], *, with_lag: bool
    ) -> GroupInfo:
        shown = []
        for where, value in offsets.items():
            name = self._manager.topic_name(where.topic_id)
            if name is not None:
                entry = CommittedOffset(
                    name,
                    where.topic_id.hex(),
                    where.partition,
                    value.offset,
                    value.leader_epoch,
                    value.metadata,
                    value.commit_time_ms,
                )
                shown.append(self._with_lag(entry, where) if with_lag else entry)
        shown.sort(key=lambda entry: (entry.topic, entry.partition))
        return GroupInfo(group, EMPTY, self._broker_id, shown)

    def _with_lag(self, entry: CommittedOffset, where: TopicIdPartition) -> CommittedOffset:
        partition = self._manager.get(where)
        if partition is not None and partition.offline is None:
            entry.high_watermark = partition.high_watermark
            entry.lag = max(0, partition.high_watermark - entry.offset)
        return entry
