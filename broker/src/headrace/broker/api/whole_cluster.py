"""Descriptions that no broker can give alone: each adds what the others know to its own answer.

Only what may be missing is asked for; a broker that doesn't answer leaves its part unknown, but for
the list of groups, where a part that is missing would look like groups that don't exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

import msgspec
from aiohttp import web

from headrace.broker.api.anywhere import OffsetsAnywhere
from headrace.broker.api.endpoint import Call, Handler, json_answer
from headrace.broker.api.forwarding import Forwarder
from headrace.broker.api.owners import Owners
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import parse_topic_id
from headrace.protocol.models import GroupInfo, GroupList, OffsetQuery, PartitionInfo, TopicInfo

ASK_TIMEOUT_S = 2.0
"""What another broker may take to tell of its own; then its part stays unknown."""

_groups = msgspec.json.Decoder(GroupList)
_group = msgspec.json.Decoder(GroupInfo)
_topic = msgspec.json.Decoder(TopicInfo)


class DescribeQuery(msgspec.Struct, forbid_unknown_fields=True):
    """`leaders=true` asks each partition's leader for its offsets and size; without it they are
    what this broker knows, which is quicker and enough for finding leaders."""

    leaders: Literal["true", "false"] = "false"


class WholeCluster:
    """Wraps the handlers that describe what is this broker's own."""

    def __init__(self, owners: Owners, forwarder: Forwarder, offsets: OffsetsAnywhere) -> None:
        self._owners = owners
        self._forwarder = forwarder
        self._offsets = offsets

    def list_groups(self, local: Handler) -> Handler:
        """All groups: those that this broker coordinates and those of the others.

        Raises (the handler):
            BrokerUnavailable: a coordinator can't be reached.
        """

        async def handle(call: Call) -> web.StreamResponse:
            answer = await local(call)
            if not self._forwarder.may_forward(call.request):
                return answer
            owners = self._owners.coordinators()
            found = await asyncio.gather(*[self._get(each, call) for each in owners])
            groups = {group.group: group for group in _groups.decode(_body(answer)).groups}
            for raw in found:
                groups.update((group.group, group) for group in _groups.decode(raw).groups)
            return json_answer(GroupList([groups[name] for name in sorted(groups)]))

        return handle

    def describe_group(self, local: Handler) -> Handler:
        """A group as its coordinator knows it, with the lag in partitions that others lead."""

        async def handle(call: Call) -> web.StreamResponse:
            answer = await local(call)
            info = _group.decode(_body(answer))
            unknown = [each for each in info.offsets if each.lag is None]
            if not unknown:
                return answer
            queries = [OffsetQuery(each.topic, each.partition, "latest") for each in unknown]
            ends = await self._offsets.answer_all(
                call, queries, may_forward=True, timeout_s=ASK_TIMEOUT_S
            )
            for entry, end in zip(unknown, ends, strict=True):
                if end.offset is not None:
                    entry.high_watermark = end.offset
                    entry.lag = max(0, end.offset - entry.offset)
            return json_answer(info)

        return handle

    def describe_topic(self, local: Handler) -> Handler:
        """A topic, with its leaders' offsets and sizes where they are asked for."""

        async def handle(call: Call) -> web.StreamResponse:
            answer = await local(call)
            if call.query.leaders == "false" or not self._forwarder.may_forward(call.request):
                return answer
            info = _topic.decode(_body(answer))
            leaders = self._owners.leaders(parse_topic_id(info.topic_id))
            told = await asyncio.gather(*[self._described_by(each, call) for each in leaders])
            found = dict(zip(leaders, told, strict=True))
            return json_answer(_with_leaders(info, found))

        return handle

    async def _described_by(self, owner: int, call: Call) -> dict[int, PartitionInfo]:
        try:
            raw = await self._get(owner, call, timeout_s=ASK_TIMEOUT_S)
        except HeadraceError:
            return {}
        return {each.partition: each for each in _topic.decode(raw).partitions}

    async def _get(self, owner: int, call: Call, *, timeout_s: float = 30.0) -> bytes:
        path = call.request.rel_url.raw_path_qs
        return await self._forwarder.ask(
            owner,
            "GET",
            path,
            [],
            request=call.request,
            principal=call.principal,
            timeout_s=timeout_s,
        )


def _with_leaders(info: TopicInfo, told: Mapping[int, Mapping[int, PartitionInfo]]) -> TopicInfo:
    """What this broker doesn't lead, as its leader sees it; unknown where that one is silent."""
    for mine in info.partitions:
        if mine.leader is None or mine.leader not in told:
            continue
        theirs = told[mine.leader].get(mine.partition)
        mine.log_start_offset = theirs.log_start_offset if theirs else None
        mine.high_watermark = theirs.high_watermark if theirs else None
        mine.size_bytes = theirs.size_bytes if theirs else None
    return info


def _body(answer: web.StreamResponse) -> bytes:
    assert isinstance(answer, web.Response)
    assert isinstance(answer.body, bytes)
    return answer.body
