"""A group's committed offsets: read from the cluster, written to it, now and then by themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from headrace.protocol import routes
from headrace.protocol.errors import HeadraceError, InvalidRequest
from headrace.protocol.ids import TopicPartition
from headrace.protocol.models import CommitAnswer, CommitPart, CommitRequest, GroupInfo
from headrace.sdk.client import Client
from headrace.sdk.offsets import checked_offset

log = logging.getLogger("headrace.sdk.consumer")


class Commits:
    """One group's offsets, as one consumer knows them; without a group nothing can be committed."""

    def __init__(self, client: Client, group: str | None, *, retry_timeout: float) -> None:
        self._client = client
        self._group = group
        self._retry_timeout = retry_timeout
        self._known: dict[TopicPartition, int] = {}
        self.identity: Callable[[], tuple[str, int]] = lambda: ("", -1)
        """Who commits: a member's id and the last epoch it was told."""
        self.topic_id_of: Callable[[TopicPartition], str | None] = lambda where: None
        """The topic that a partition's offsets mean, where that is known."""

    async def load(self) -> dict[TopicPartition, tuple[str, int]]:
        """All that the group has committed: the topic's id and the offset; nothing without a group.

        Raises:
            HeadraceError: the cluster can't be asked.
        """
        if self._group is None:
            return {}
        try:
            info = await self._client.call(
                "GET", self._path(), GroupInfo, timeout=self._retry_timeout
            )
        except HeadraceError as error:
            if error.code == "group_not_found":
                return {}
            raise
        return {
            TopicPartition(entry.topic, entry.partition): (entry.topic_id, entry.offset)
            for entry in info.offsets
        }

    def note(self, where: TopicPartition, offset: int) -> None:
        """The partition was found to be committed so far: it needs no commit until it goes on."""
        self._known[where] = offset

    def forget(self, where: TopicPartition) -> None:
        """The partition is somebody else's."""
        self._known.pop(where, None)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: str = "",
        timeout: float | None = None,
    ) -> None:
        """Commits these offsets, trying again for `timeout` seconds (None: the retry timeout).

        Raises:
            InvalidRequest: there is no group.
            HeadraceError: the first partition that could not be committed.
        """
        if self._group is None:
            raise InvalidRequest("only a consumer with group= can commit")
        if not offsets:
            return
        parts = [
            CommitPart(
                *where,
                checked_offset(offset),
                metadata=metadata,
                topic_id=self.topic_id_of(where),
            )
            for where, offset in offsets.items()
        ]
        answer = await self._client.call(
            "POST",
            self._path(),
            CommitAnswer,
            body=CommitRequest(parts, *self.identity()),
            timeout=self._retry_timeout if timeout is None else timeout,
        )
        for result in answer.offsets:
            if result.error is None:
                where = TopicPartition(result.topic, result.partition)
                self._known[where] = offsets[where]
        for result in answer.offsets:
            if result.error is not None:
                raise result.error.to_error()

    async def commit_changed(
        self, finished: Mapping[TopicPartition, int], *, timeout: float
    ) -> None:
        """Commits those that differ from what is known to be committed."""
        changed = {
            where: offset for where, offset in finished.items() if self._known.get(where) != offset
        }
        if changed:
            await self.commit(changed, timeout=timeout)

    async def keep_committing(
        self,
        finished: Callable[[], Mapping[TopicPartition, int]],
        *,
        interval: float,
        timeout: float,
    ) -> None:
        """Commits what is finished every `interval` seconds, for ever."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.commit_changed(finished(), timeout=timeout)
            except HeadraceError as error:
                log.warning("offsets could not be committed, trying again later: %s", error)

    def _path(self) -> str:
        return routes.fill(routes.GROUP_OFFSETS, group=self._group)
