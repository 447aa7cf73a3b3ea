"""The cluster's health at one look: what each broker carries, and which partitions have problems.

Made from the view of whichever broker is asked, so it costs no other broker anything; the loop gets
its turn between topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from headrace.broker.api.endpoint import Call, Endpoint, json_answer
from headrace.broker.controller.coordination import Coordination
from headrace.broker.core.model import AnyRecord, BrokerStatus, PartitionRecord, TopicObject
from headrace.broker.core.partition_health import UNREADABLE, problems_of
from headrace.protocol import routes
from headrace.protocol.cluster_models import BrokerLoad, ClusterHealth, TroubledPartition
from headrace.protocol.ids import TopicIdPartition

TOPICS_AT_ONCE = 100
"""Topics looked at between two breaths of the loop."""


class HealthQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which problems are listed (all are counted), of which topic, and how many."""

    problem: Literal["offline", "under_min_isr", "under_replicated", "unreadable"] | None = None
    topic: Annotated[str, Meta(max_length=249)] | None = None
    limit: Annotated[int, Meta(ge=0, le=10_000)] = 1_000


@dataclass(slots=True)
class _Sums:
    problems: Counter[str] = field(default_factory=Counter)
    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    in_sync: Counter[int] = field(default_factory=Counter)
    partitions: int = 0

    def add(self, record: AnyRecord | None, problems: tuple[str, ...]) -> None:
        self.partitions += 1
        self.problems.update(problems)
        if isinstance(record, PartitionRecord):
            self.replicas.update(record.replicas)
            self.in_sync.update(member.broker_id for member in record.isr)
            if record.leader is not None:
                self.leaders[record.leader.broker_id] += 1


class HealthOfCluster:
    """GET /v1/cluster/health."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    @property
    def endpoints(self) -> list[Endpoint]:
        """The one endpoint."""
        return [
            Endpoint(
                method="GET", path=routes.CLUSTER_HEALTH, handler=self.describe, action="describe",
                summary="What each broker carries, and partitions with problems.",
                answer=ClusterHealth, query_model=HealthQuery,
            ),
        ]  # fmt: skip

    async def describe(self, call: Call) -> web.StreamResponse:
        """GET /v1/cluster/health."""
        query: HealthQuery = call.query
        sums = _Sums()
        listed, troubled = 0, list[TroubledPartition]()
        statuses = self._coordination.broker_statuses()
        cluster = self._coordination.view.cluster
        cordoned = cluster.cordoned if cluster is not None else ()
        unreadable = self._coordination.view.unreadable()
        live = {broker_id for broker_id, status in statuses.items() if status.live}
        for turn, topic in enumerate(sorted(self._topics(), key=lambda topic: topic.name)):
            if turn % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
                await asyncio.sleep(0)
            for partition, record in self._records(topic):
                problems = problems_of(record, live=live)
                if TopicIdPartition(topic.topic_id, partition) in unreadable:
                    problems = (UNREADABLE, *(p for p in problems if p != UNREADABLE))
                sums.add(record, problems)
                is_asked = query.topic in (None, topic.name)
                if problems and is_asked and (query.problem or problems[0]) in problems:
                    listed += 1
                    if listed <= query.limit:
                        troubled.append(_troubled(topic.name, partition, record, problems))
        return json_answer(
            ClusterHealth(
                partitions=sums.partitions,
                offline=sums.problems["offline"],
                under_min_isr=sums.problems["under_min_isr"],
                under_replicated=sums.problems["under_replicated"],
                unreadable=sums.problems["unreadable"],
                brokers=_loads(sums, statuses, cordoned),
                listed=listed,
                troubled=troubled,
            )
        )

    def _topics(self) -> list[TopicObject]:
        return list(self._coordination.view.topics.values())

    def _records(self, topic: TopicObject) -> Iterator[tuple[int, AnyRecord | None]]:
        for partition in range(topic.partition_count):
            yield partition, self._coordination.view.record(topic.topic_id, partition)


def _loads(
    sums: _Sums, statuses: Mapping[int, BrokerStatus], cordoned: Collection[int]
) -> list[BrokerLoad]:
    return [
        BrokerLoad(
            broker_id,
            status.state if status.live else "dead",
            sums.leaders[broker_id],
            sums.replicas[broker_id],
            sums.replicas[broker_id] - sums.in_sync[broker_id],
            broker_id in cordoned,
        )
        for broker_id, status in sorted(statuses.items())
    ]


def _troubled(
    topic: str, partition: int, record: AnyRecord | None, problems: tuple[str, ...]
) -> TroubledPartition:
    found = TroubledPartition(topic, partition, list(problems))
    if isinstance(record, PartitionRecord):
        found.leader = record.leader.broker_id if record.leader else None
        found.replicas = list(record.replicas)
        found.isr = [member.broker_id for member in record.isr]
        found.elr = [member.broker_id for member in record.elr]
        found.min_isr = record.min_effective
    return found
