"""Every endpoint of the client port: the router and /openapi.json are made from this table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version

import msgspec
from aiohttp import web

from headrace.broker.api import openapi
from headrace.broker.api.anywhere import OffsetsAnywhere, ProduceAnywhere
from headrace.broker.api.cluster import BrokerPath, Cluster
from headrace.broker.api.cluster_health import HealthOfCluster
from headrace.broker.api.endpoint import JSON, Call, Endpoint, Owner
from headrace.broker.api.fetch_anywhere import FetchAnywhere
from headrace.broker.api.groups import DeleteGroupQuery, GroupPath, Groups, OffsetsQuery
from headrace.broker.api.owners import Owners
from headrace.broker.api.reassignments import ReassignmentsApi
from headrace.broker.api.records import FetchQuery, PartitionPath, ProduceQuery, Records
from headrace.broker.api.topics import ListQuery, TopicPath, Topics
from headrace.broker.api.upkeep import Upkeep
from headrace.broker.api.whole_cluster import DescribeQuery, WholeCluster
from headrace.protocol import errors, models, routes

_TOPIC_ERRORS = (errors.InvalidName, errors.TopicNotFound)
_PARTITION_ERRORS = (
    *_TOPIC_ERRORS, errors.PartitionNotFound, errors.NotLeader, errors.PartitionOffline,
)  # fmt: skip
_WRITE_ERRORS = (
    *_PARTITION_ERRORS,
    errors.RecordTooLarge,
    errors.InvalidTimestamp,
    errors.StorageFull,
    errors.TopicFull,
    errors.NotEnoughReplicas,
    errors.RequestTimedOut,
)
_STORE_ERRORS = (errors.StoreUnavailable, errors.Conflict)
_GROUP_ERRORS = (errors.InvalidName, errors.NotCoordinator, errors.GroupNotFound)
_MEMBER_ERRORS = (
    errors.InvalidName, errors.NotCoordinator, errors.UnknownMember, errors.Fenced,
    errors.RequestTimedOut, errors.StorageFull,
)  # fmt: skip


@dataclass
class Handlers:
    """The objects behind the endpoints."""

    produce: ProduceAnywhere
    fetch: FetchAnywhere
    records: Records
    offsets: OffsetsAnywhere
    topics: Topics
    groups: Groups
    cluster: Cluster
    owners: Owners
    whole: WholeCluster
    health: HealthOfCluster
    upkeep: Upkeep
    reassignments: ReassignmentsApi

    @cached_property
    def endpoints(self) -> list[Endpoint]:
        """The table."""
        own = [*self._cluster(), *self._topics(), *self._data(), *self._groups(), self._openapi()]
        return [
            *(self._with_owner(each) for each in own),
            *self.upkeep.endpoints,
            *self.reassignments.endpoints,
            *self.health.endpoints,
        ]

    def _with_owner(self, endpoint: Endpoint) -> Endpoint:
        """What concerns one partition, one group or one broker from within has one owner."""
        owners, path = self.owners, endpoint.path
        owner: Owner | None = None
        if "{partition}" in path:
            owner = lambda at: owners.leader_by_name(at.topic, at.partition)  # noqa: E731
        elif "{group}" in path:
            owner = lambda at: owners.coordinator(at.group)  # noqa: E731
        elif (endpoint.method, path) == ("GET", routes.BROKER):
            owner = lambda at: owners.broker(at.broker_id)  # noqa: E731
        return endpoint if owner is None else replace(endpoint, owner=owner)

    def _cluster(self) -> list[Endpoint]:
        cluster = self.cluster
        return [
            Endpoint(
                method="GET", path=routes.CLUSTER, handler=cluster.describe, action="describe",
                summary="The cluster: its brokers and how to reach them.",
                answer=models.ClusterInfo,
            ),
            Endpoint(
                method="GET", path=routes.BROKERS, handler=cluster.brokers, action="describe",
                summary="All registered brokers.", answer=models.BrokerList,
            ),
            Endpoint(
                method="GET", path=routes.BROKER, handler=cluster.broker, action="describe",
                summary="One broker from within.", answer=models.BrokerDetail,
                path_model=BrokerPath, errors=(errors.BrokerNotFound,),
            ),
        ]  # fmt: skip

    def _topics(self) -> list[Endpoint]:
        topics = self.topics
        return [
            Endpoint(
                method="GET", path=routes.TOPICS, handler=topics.list_all, action="describe",
                summary="All topics.", answer=models.TopicList, query_model=ListQuery,
            ),
            Endpoint(
                method="POST", path=routes.TOPICS, handler=topics.create, action="create",
                summary="Makes a topic.", body=models.TopicCreate, answer=models.TopicInfo,
                status=201,
                errors=(
                    errors.InvalidName, errors.InvalidConfig, errors.TopicExists,
                    errors.LimitExceeded, *_STORE_ERRORS,
                ),
            ),
            Endpoint(
                method="GET", path=routes.TOPIC,
                handler=self.whole.describe_topic(topics.describe), action="describe",
                summary="A topic with its settings and partitions.", answer=models.TopicInfo,
                path_model=TopicPath, query_model=DescribeQuery, errors=_TOPIC_ERRORS,
            ),
            Endpoint(
                method="PATCH", path=routes.TOPIC, handler=topics.alter, action="alter",
                summary="Changes settings, partitions or replicas.", body=models.TopicAlter,
                answer=models.TopicInfo, path_model=TopicPath,
                errors=(
                    *_TOPIC_ERRORS, errors.InvalidConfig, errors.PlanRefused,
                    errors.LimitExceeded, *_STORE_ERRORS,
                ),
            ),
            Endpoint(
                method="DELETE", path=routes.TOPIC, handler=topics.delete, action="delete",
                summary="Deletes a topic and its records.", answer=models.TopicDeleted,
                path_model=TopicPath, errors=(*_TOPIC_ERRORS, *_STORE_ERRORS),
            ),
        ]  # fmt: skip

    def _data(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST", path=routes.RECORDS, handler=self.records.produce, action="write",
                summary="Writes records given in JSON.", body=models.JsonProduce,
                answer=models.JsonProduceAnswer, also_status=(207,), path_model=TopicPath,
                query_model=ProduceQuery, errors=_WRITE_ERRORS,
            ),
            Endpoint(
                method="GET", path=routes.PARTITION_RECORDS, handler=self.records.fetch,
                action="read", summary="Reads records of a partition as JSON; can wait for some.",
                answer=models.JsonFetchAnswer, path_model=PartitionPath, query_model=FetchQuery,
                errors=(*_PARTITION_ERRORS, errors.OffsetOutOfRange, errors.CorruptBatch),
            ),
            Endpoint(
                method="POST", path=routes.PRODUCE, handler=self.produce.handle, action="write",
                summary="Writes batches to many partitions.", binary=True, answer=None,
            ),
            Endpoint(
                method="POST", path=routes.FETCH, handler=self.fetch.handle, action="read",
                summary="Reads batches of many partitions; can wait for some.", binary=True,
                answer=None,
            ),
            Endpoint(
                method="POST", path=routes.OFFSETS, handler=self.offsets.query, action="describe",
                summary="Earliest, latest, by time, by bytes: many questions at once.",
                body=models.OffsetsRequest, answer=models.OffsetsAnswer,
            ),
            Endpoint(
                method="POST", path=routes.DELETE_RECORDS, handler=self.offsets.delete_records,
                action="delete", summary="Removes the oldest records of partitions.",
                body=models.DeleteRecordsRequest, answer=models.DeleteRecordsAnswer,
                errors=(errors.StorageFull,),
            ),
        ]  # fmt: skip

    def _groups(self) -> list[Endpoint]:
        groups = self.groups
        return [
            Endpoint(
                method="GET", path=routes.GROUPS,
                handler=self.whole.list_groups(groups.list_all), action="describe",
                summary="All groups.", answer=models.GroupList,
            ),
            Endpoint(
                method="GET", path=routes.GROUP,
                handler=self.whole.describe_group(groups.describe), action="describe",
                summary="A group's members, committed offsets and lag.", answer=models.GroupInfo,
                path_model=GroupPath, errors=_GROUP_ERRORS,
            ),
            Endpoint(
                method="DELETE", path=routes.GROUP, handler=groups.delete, action="delete",
                summary="Forgets a group with its offsets.", answer=None, status=204,
                path_model=GroupPath, query_model=DeleteGroupQuery,
                errors=(*_GROUP_ERRORS, errors.GroupNotEmpty, errors.StorageFull),
            ),
            Endpoint(
                method="POST", path=routes.GROUP_HEARTBEAT, handler=groups.heartbeat,
                action="read", body=models.GroupHeartbeat, answer=models.GroupHeartbeatAnswer,
                summary="A member joins a group, lives on in it, hears what it owns, and leaves.",
                path_model=GroupPath,
                errors=(*_MEMBER_ERRORS, errors.InstanceInUse, errors.LimitExceeded),
            ),
            Endpoint(
                method="GET", path=routes.GROUP_OFFSETS, handler=groups.offsets, action="read",
                summary="A group's committed offsets, for a consumer's start.",
                answer=models.GroupInfo, path_model=GroupPath, query_model=OffsetsQuery,
                errors=(errors.InvalidName, errors.NotCoordinator),
            ),
            Endpoint(
                method="POST", path=routes.GROUP_OFFSETS, handler=groups.commit, action="write",
                summary="Commits offsets.", body=models.CommitRequest, answer=models.CommitAnswer,
                path_model=GroupPath, errors=_MEMBER_ERRORS,
            ),
        ]  # fmt: skip

    def _openapi(self) -> Endpoint:
        async def serve(call: Call) -> web.StreamResponse:
            return web.Response(body=self._document, content_type=JSON)

        return Endpoint(
            method="GET", path=routes.OPENAPI, handler=serve, action="describe",
            summary="This document.", answer=openapi.Document, while_starting=True,
        )  # fmt: skip

    @cached_property
    def _document(self) -> bytes:
        document = openapi.document(self.endpoints, version=version("headrace"))
        return msgspec.json.encode(document)
