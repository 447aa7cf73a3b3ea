"""The async admin client: topics, offsets, groups, brokers. Answers are the API's own models.

Calls go through the bootstrap address and are retried until the request timeout is over; creating
and adding only where the first try certainly had no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.protocol import models, routes
from headrace.protocol.errors import GroupNotFound
from headrace.protocol.ids import TopicPartition
from headrace.protocol.names import check_name
from headrace.sdk.client import Client
from headrace.sdk.cluster_admin import ClusterAdmin
from headrace.sdk.group_reset import (
    PlannedReset,
    Shift,
    partitions_to_reset,
    require_empty,
    shifted,
    within,
)
from headrace.sdk.offsets import Where, ask, places_of, query_for
from headrace.sdk.placement_admin import PlacementAdmin
from headrace.sdk.settings import ConnectionSettings, Credentials, bootstrap_urls
from headrace.sdk.transport import Transport

_CONNECTION = ConnectionSettings()


class Admin(ClusterAdmin, PlacementAdmin):
    """Looks after a cluster:

        async with Admin("http://127.0.0.1:9420") as admin:
            await admin.create_topic("orders", partitions=6, config={"retention.ms": 86_400_000})
            print([topic.name for topic in (await admin.list_topics()).topics])

    All methods raise the `HeadraceError` that the cluster answers with.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = _CONNECTION.client_id,
        credentials: Credentials | None = None,
        tls: Any = None,
        request_timeout: float = _CONNECTION.request_timeout,
        connect_timeout: float = _CONNECTION.connect_timeout,
        retry_backoff_ms: int = _CONNECTION.retry_backoff_ms,
        retry_backoff_max_ms: int = _CONNECTION.retry_backoff_max_ms,
        transport: Transport | None = None,
    ) -> None:
        settings = ConnectionSettings(
            client_id=client_id,
            credentials=credentials,
            tls=tls,
            request_timeout=request_timeout,
            connect_timeout=connect_timeout,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        )
        self._client = Client(bootstrap_urls(bootstrap), settings, transport)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives up all connections."""
        await self._client.close()

    # --- topics ----------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        config: Mapping[str, models.ConfigValue] | None = None,
    ) -> models.TopicInfo:
        """Makes a topic. What is left out takes the cluster's default.

        Raises:
            TopicExists, InvalidName, InvalidConfig: the cluster refuses it.
            ConnectionFailed, RequestTimedOut: no answer; the topic may have been made.
        """
        body = models.TopicCreate(name, partitions, replicas, dict(config or {}))
        return await self._client.call(
            "POST", routes.TOPICS, models.TopicInfo, body=body, repeatable=False
        )

    async def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, models.ConfigValue | None] | None = None,
        partitions: int | None = None,
        replicas: int | None = None,
    ) -> models.TopicInfo:
        """Changes settings (None goes back to the default), adds partitions (keys may move to
        other partitions then), or changes the number of replicas: those are added or taken away in
        the background, see `reassignments()`."""
        body = models.TopicAlter(dict(config or {}), partitions, replicas)
        return await self._client.call("PATCH", _topic(name), models.TopicInfo, body=body)

    async def delete_topic(self, name: str) -> models.TopicDeleted:
        """Deletes a topic with all its records. There is no way back."""
        return await self._client.call(
            "DELETE", _topic(name), models.TopicDeleted, repeatable=False
        )

    async def list_topics(self, *, internal: bool = False) -> models.TopicList:
        """All topics by name; the system's own only with `internal`."""
        query = {"internal": "true" if internal else "false"}
        return await self._client.call("GET", routes.TOPICS, models.TopicList, query=query)

    async def describe_topic(self, name: str) -> models.TopicInfo:
        """A topic with its settings and partitions. Offsets and sizes are the leaders' own, None
        where one doesn't answer."""
        query = {"leaders": "true"}
        return await self._client.call("GET", _topic(name), models.TopicInfo, query=query)

    # --- cluster ---------------------------------------------------------------------------------

    async def describe_cluster(self) -> models.ClusterInfo:
        """The cluster and its brokers' addresses."""
        return await self._client.call("GET", routes.CLUSTER, models.ClusterInfo)

    async def brokers(self) -> list[models.BrokerInfo]:
        """All registered brokers."""
        return (await self._client.call("GET", routes.BROKERS, models.BrokerList)).brokers

    async def describe_broker(self, broker_id: int) -> models.BrokerDetail:
        """One broker from within."""
        path = routes.fill(routes.BROKER, broker_id=broker_id)
        return await self._client.call("GET", path, models.BrokerDetail)

    # --- offsets ---------------------------------------------------------------------------------

    async def offsets(
        self, places: Mapping[tuple[str, int], Where]
    ) -> dict[TopicPartition, models.OffsetAnswer]:
        """Offsets for places: `"earliest"`, `"latest"`, or (a datetime) the first record at or
        after a time. Each answer has its own `error`; without a record that late, `offset` is
        None.

            await admin.offsets({("orders", 0): "latest", ("orders", 1): "earliest"})
        """
        asked = {TopicPartition(*where): place for where, place in places.items()}
        queries = [query_for(where, place) for where, place in asked.items()]
        answers = await ask(self._client, queries, timeout=self._client.settings.request_timeout)
        return dict(zip(asked, answers, strict=True))

    async def query_offsets(
        self, queries: Sequence[models.OffsetQuery]
    ) -> list[models.OffsetAnswer]:
        """As `offsets`, for every kind of question that the API has."""
        return await ask(self._client, queries, timeout=self._client.settings.request_timeout)

    async def delete_records(
        self, before: Mapping[tuple[str, int], int]
    ) -> list[models.DeleteRecordsResult]:
        """Removes the records before an offset (-1: all there are now), partition by partition.
        Each result has the log's new start, or an error."""
        parts = [models.DeleteRecordsPart(*where, offset) for where, offset in before.items()]
        answer = await self._client.call(
            "POST",
            routes.DELETE_RECORDS,
            models.DeleteRecordsAnswer,
            body=models.DeleteRecordsRequest(parts),
        )
        return answer.partitions

    # --- groups ----------------------------------------------------------------------------------

    async def list_groups(self) -> models.GroupList:
        """All groups by name."""
        return await self._client.call("GET", routes.GROUPS, models.GroupList)

    async def describe_group(self, group: str) -> models.GroupInfo:
        """A group's members, committed offsets and lag."""
        return await self._client.call("GET", _group(routes.GROUP, group), models.GroupInfo)

    async def delete_group(self, group: str, *, force: bool = False) -> None:
        """Forgets a group with its committed offsets.

        Raises:
            GroupNotEmpty: it has live members (unless `force`: they then join again, afresh).
        """
        path = _group(routes.GROUP, group)
        query = {"force": "true"} if force else None
        await self._client.call("DELETE", path, type(None), query=query, repeatable=False)

    async def group_offsets(self, group: str, *, topic: str | None = None) -> models.GroupInfo:
        """A group's committed offsets without lag, of one topic if named."""
        path = _group(routes.GROUP_OFFSETS, group)
        query = None if topic is None else {"topic": topic}
        return await self._client.call("GET", path, models.GroupInfo, query=query)

    async def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        metadata: str = "",
        force: bool = False,
    ) -> list[models.CommitResult]:
        """Commits offsets (of the next record to read) in a group's name. Each result has its own
        `error`.

        Raises:
            UnknownMember: the group has live members (unless `force`).
        """
        parts = [
            models.CommitPart(*where, offset, metadata=metadata)
            for where, offset in offsets.items()
        ]
        answer = await self._client.call(
            "POST",
            _group(routes.GROUP_OFFSETS, group),
            models.CommitAnswer,
            body=models.CommitRequest(parts, force=force),
        )
        return answer.offsets

    async def plan_group_reset(
        self,
        group: str,
        to: Where | Shift,
        *,
        topics: Iterable[str] = (),
        partitions: Iterable[int] | None = None,
    ) -> list[PlannedReset]:
        """What `reset_group_offsets` would do. `to`: an offset, `"earliest"`, `"latest"`, a
        datetime, or a `Shift`; what lies outside a partition is moved to its nearer end.

        Raises:
            GroupNotFound: no topics are named and the group has no offsets.
        """
        info = await self._group_or_none(group)
        counts = {
            name: len((await self.describe_topic(name)).partitions)
            for name in dict.fromkeys(topics)
        }
        chosen = partitions_to_reset(info, counts, partitions)
        old: dict[TopicPartition, int] = {}
        for each in [] if info is None else info.offsets:
            old[TopicPartition(each.topic, each.partition)] = each.offset
        timeout = self._client.settings.request_timeout
        earliest = await places_of(self._client, chosen, "earliest", timeout=timeout)
        latest = await places_of(self._client, chosen, "latest", timeout=timeout)
        if isinstance(to, Shift):
            asked = {where: shifted(where, old.get(where), to) for where in chosen}
        else:
            asked = await places_of(self._client, chosen, to, timeout=timeout)
        return [
            within(
                where,
                old=old.get(where),
                asked=asked[where],
                earliest=earliest[where],
                latest=latest[where],
            )
            for where in chosen
        ]

    async def reset_group_offsets(
        self, group: str, plan: Sequence[PlannedReset], *, force: bool = False
    ) -> list[models.CommitResult]:
        """Commits a plan.

        Raises:
            GroupNotEmpty: the group has live members (unless `force`).
        """
        require_empty(await self._group_or_none(group), force=force)
        offsets = {(each.topic, each.partition): each.new for each in plan}
        return await self.alter_group_offsets(group, offsets, force=force)

    async def _group_or_none(self, group: str) -> models.GroupInfo | None:
        try:
            return await self.describe_group(group)
        except GroupNotFound:
            return None


def _topic(name: str) -> str:
    return routes.fill(routes.TOPIC, topic=check_name(name, kind="topic"))


def _group(path: str, group: str) -> str:
    return routes.fill(path, group=check_name(group, kind="group"))
