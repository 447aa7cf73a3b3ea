"""Groups: members' heartbeats, committed offsets and their lag, and forgetting them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from headrace.broker.api.endpoint import Call, json_answer
from headrace.broker.api.shielding import to_the_end
from headrace.broker.core.groups.model import Group, Subscription
from headrace.broker.groups.coordinator import Beat, Commit, GroupCoordinator
from headrace.broker.groups.records import OffsetValue
from headrace.broker.partition.manager import PartitionManager
from headrace.protocol.errors import GroupNotFound, HeadraceError, TopicNotFound
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.models import (
    CommitAnswer,
    CommitPart,
    CommitRequest,
    CommitResult,
    CommittedOffset,
    ErrorBody,
    GroupHeartbeat,
    GroupHeartbeatAnswer,
    GroupInfo,
    GroupList,
    GroupSummary,
    MemberInfo,
    Name,
    OwnedTopic,
)
from headrace.protocol.names import check_name
from headrace.protocol.requests import CLIENT_HEADER

EMPTY = "Empty"
"""A group without members."""

RECONCILING = "Reconciling"
"""Partitions are on their way between members."""

STABLE = "Stable"
"""Every member owns what it is to own."""

LEAVES = -1
"""The epoch that a member says which goes for good."""

LEAVES_FOR_RESTART = -2
"""The epoch of a static member that comes back."""


class GroupPath(msgspec.Struct, forbid_unknown_fields=True):
    """A group by name."""

    group: Name


class OffsetsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only the offsets of one topic."""

    topic: Annotated[str, Meta(max_length=249)] | None = None


class DeleteGroupQuery(msgspec.Struct, forbid_unknown_fields=True):
    """`force`: although it has live members."""

    force: bool = False


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
        for name, group, topic_ids in self._coordinator.groups():
            topics = {self._manager.topic_name(topic_id) for topic_id in topic_ids}
            topics.update(name for each in group.members.values() for name in each.topics)
            known = sorted(topic for topic in topics if topic is not None)
            groups.append(GroupSummary(name, state_of(group), known, len(group.members)))
        return json_answer(GroupList(sorted(groups, key=lambda each: each.group)))

    async def describe(self, call: Call) -> web.StreamResponse:
        """GET /v1/groups/{group}: members, committed offsets and lag."""
        name = check_name(call.path.group, kind="group")
        offsets = await self._coordinator.offsets(name)
        group = await self._coordinator.group(name)
        info = self._info(name, offsets, with_lag=True)
        if group is not None:
            info.state, info.epoch = state_of(group), group.epoch
            info.members = [self._member(group, each) for each in sorted(group.members)]
        if not info.offsets and not info.members:
            raise GroupNotFound(f"group {name!r} has no members and no committed offsets")
        return json_answer(info)

    async def offsets(self, call: Call) -> web.StreamResponse:
        """GET /v1/groups/{group}/offsets: what a consumer needs at its start."""
        group = check_name(call.path.group, kind="group")
        info = self._info(group, await self._coordinator.offsets(group), with_lag=False)
        if call.query.topic is not None:
            info.offsets = [each for each in info.offsets if each.topic == call.query.topic]
        return json_answer(info)

    # --- members ----------------------------------------------------------------------------------

    async def heartbeat(self, call: Call) -> web.StreamResponse:
        """POST /v1/groups/{group}/heartbeat."""
        name = check_name(call.path.group, kind="group")
        beat: GroupHeartbeat = call.body
        if beat.epoch in (LEAVES, LEAVES_FOR_RESTART):
            keep = beat.epoch == LEAVES_FOR_RESTART
            await to_the_end(self._coordinator.leave(name, beat.member_id, keep=keep))
            return json_answer(GroupHeartbeatAnswer(beat.member_id, beat.epoch, 0, []))
        told = await self._coordinator.heartbeat(name, _beat_of(beat, call))
        step = told.step
        owned = None if step is None else self._owned(step.assigned)
        return json_answer(
            GroupHeartbeatAnswer(
                beat.member_id, told.epoch, told.session_timeout_ms, owned, self._broker_id
            )
        )

    def _owned(self, partitions: Iterable[TopicIdPartition]) -> list[OwnedTopic]:
        found: dict[TopicId, list[int]] = {}
        for where in sorted(partitions):
            found.setdefault(where.topic_id, []).append(where.partition)
        named = [(self._manager.topic_name(each), each) for each in found]
        return [
            OwnedTopic(name, topic_id.hex(), found[topic_id])
            for name, topic_id in named
            if name is not None  # deleted a moment ago: it will be taken away
        ]

    def _member(self, group: Group, member_id: str) -> MemberInfo:
        subscription, step = group.members[member_id], group.steps[member_id]
        return MemberInfo(
            member_id,
            subscription.instance_id,
            subscription.client_id,
            subscription.rack,
            step.epoch,
            list(subscription.topics),
            subscription.assignor,
            self._owned(step.assigned),
            self._owned(step.revoking),
            self._owned(group.target(member_id)),
            subscription.has_left,
        )

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(self, call: Call) -> web.StreamResponse:
        """POST /v1/groups/{group}/offsets."""
        group = check_name(call.path.group, kind="group")
        request: CommitRequest = call.body
        results, commits, parts = [], [], []
        for part in request.offsets:
            result = CommitResult(part.topic, part.partition)
            results.append(result)
            try:
                commits.append(self._commit_of(part))
                parts.append(result)
            except HeadraceError as error:
                result.error = ErrorBody.of(error)
        if commits:
            # Whoever hangs up doesn't undo it: what is checked is appended in the same turn.
            refused = await self._coordinator.commit(
                group,
                commits,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                force=request.force,
            )
            for result, commit in zip(parts, commits, strict=True):
                if commit.where in refused:
                    result.error = ErrorBody.of(refused[commit.where])
        return json_answer(CommitAnswer(results))

    async def delete(self, call: Call) -> web.StreamResponse:
        """DELETE /v1/groups/{group}."""
        group = check_name(call.path.group, kind="group")
        await to_the_end(self._coordinator.delete(group, force=call.query.force))
        return web.Response(status=204)

    def _commit_of(self, part: CommitPart) -> Commit:
        topic = self._manager.topic(part.topic)
        if part.topic_id not in (None, topic.topic_id.hex()):
            raise TopicNotFound(
                f"topic {part.topic!r} was deleted and created again: the offset meant the old one"
            )
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


def state_of(group: Group) -> str:
    """What the group is doing, in Kafka's words."""
    if not group.members:
        return EMPTY
    settled = not group.is_stale and all(
        group.is_settled(each) or group.members[each].has_left for each in group.members
    )
    return STABLE if settled else RECONCILING


def _beat_of(body: GroupHeartbeat, call: Call) -> Beat:
    subscription = None
    if body.topics is not None:
        for topic in body.topics:
            check_name(topic, kind="topic")
        subscription = Subscription(
            topics=tuple(sorted(set(body.topics))),
            version=body.topics_version,
            instance_id=body.instance_id,
            rack=body.rack,
            assignor=body.assignor,
            session_timeout_ms=body.session_timeout_ms,
            rebalance_timeout_ms=body.rebalance_timeout_ms,
            client_id=call.request.headers.get(CLIENT_HEADER, "")[:249],
        )
    return Beat(
        member_id=body.member_id,
        epoch=body.epoch,
        heard_epoch=body.heard_epoch,
        wait_s=body.wait_ms / 1000,
        subscription=subscription,
    )
