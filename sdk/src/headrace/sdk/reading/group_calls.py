"""A member's requests to its group's coordinator, one try each: directly once an answer told who
that is (a hop less, and no place among those that brokers pass on), else through the bootstrap
address."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.protocol import routes
from headrace.protocol.errors import HeadraceError
from headrace.protocol.models import GroupHeartbeat, GroupHeartbeatAnswer, TopicList
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.settings import ConsumerSettings

LEAVES = -1
LEAVES_FOR_RESTART = -2
LEAVE_TIMEOUT_S = 1.0
"""How long leaving may take at close; without it the group notices after the session."""

GRACE_S = 5.0
"""What an answer may take beyond the wait that was asked for, before another try is better."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a heartbeat says of the member: the last epoch done and heard, and its topics if the
    coordinator doesn't know them yet."""

    epoch: int
    heard_epoch: int
    wait: float
    topics: Sequence[str] | None
    topics_version: int


class GroupCalls:
    """The requests of one consumer."""

    def __init__(
        self, client: Client, view: ClusterView, group: str, settings: ConsumerSettings
    ) -> None:
        self._client = client
        self._view = view
        self._coordinator: int | None = None
        self._settings = settings
        self._path = routes.fill(routes.GROUP_HEARTBEAT, group=group)

    async def heartbeat(self, member_id: str, asked: Asked) -> GroupHeartbeatAnswer:
        """One heartbeat, tried once.

        Raises:
            UnknownMember, Fenced: the member must join again.
            HeadraceError: whatever else went wrong.
        """
        settings = self._settings
        body = GroupHeartbeat(
            member_id,
            asked.epoch,
            asked.heard_epoch,
            round(asked.wait * 1000),
            None if asked.topics is None else list(asked.topics),
            asked.topics_version,
            settings.instance_id,
            settings.rack,
            settings.assignor,
            round(settings.session_timeout * 1000),
            round(settings.rebalance_timeout * 1000),
        )
        return await self._send(body, timeout=asked.wait + GRACE_S)

    async def leave(self, member_id: str) -> None:
        """Says that the member is gone; one with an instance id may come back.

        Raises:
            HeadraceError: the coordinator can't be told.
        """
        epoch = LEAVES if self._settings.instance_id is None else LEAVES_FOR_RESTART
        await self._send(GroupHeartbeat(member_id, epoch), timeout=LEAVE_TIMEOUT_S)

    async def _send(self, body: GroupHeartbeat, *, timeout: float) -> GroupHeartbeatAnswer:
        url = self._client.bootstrap_url
        if self._coordinator is not None:
            url = self._view.url_of_broker(self._coordinator)
        try:
            response = await self._client.send(
                url, "POST", self._path, body=(msgspec.json.encode(body),), timeout=timeout
            )
        except HeadraceError as error:
            self._coordinator = None
            self._view.went_wrong(url, error)
            raise
        answer = _decoder.decode(response.body)
        if answer.coordinator >= 0:
            self._coordinator = answer.coordinator
        return answer

    async def topic_names(self) -> list[str]:
        """All topics that there are.

        Raises:
            HeadraceError: the cluster can't be asked.
        """
        found = await self._client.call("GET", routes.TOPICS, TopicList)
        return [topic.name for topic in found.topics]

    async def rest(self, error: Exception, attempt: int) -> None:
        """Waits before the next try."""
        wait_ms = self._client.backoff.wait_ms(attempt, 0.5)
        retry_after_ms = getattr(error, "retry_after_ms", None) or 0
        await asyncio.sleep(max(wait_ms, retry_after_ms) / 1000)


_decoder = msgspec.json.Decoder(GroupHeartbeatAnswer)
