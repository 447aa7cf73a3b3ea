"""Looking after the cluster: its settings, restart checks, elections by command, batches of topics.

Any broker answers; what is asked of the cluster's state goes to the store, not to the controller.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from headrace.broker.api.cluster import BrokerPath
from headrace.broker.api.endpoint import Call, Endpoint, json_answer
from headrace.broker.api.shielding import to_the_end
from headrace.broker.controller.coordination import Coordination
from headrace.broker.controller.topics import NewTopic
from headrace.broker.core import cluster_config
from headrace.broker.core.model import PartitionRecord, TopicObject
from headrace.broker.core.recovery_plan import Repair
from headrace.broker.core.transitions import is_moving
from headrace.broker.partition.manager import PartitionManager
from headrace.protocol import cluster_models as models
from headrace.protocol import errors, routes
from headrace.protocol.errors import HeadraceError, InvalidRequest
from headrace.protocol.limits import PARTITIONS_PER_TOPIC_MAX
from headrace.protocol.models import ConfigEntry, ErrorBody
from headrace.protocol.names import check_user_topic

BLOCKERS_MAX = 100
"""Reasons in one answer; there can be one for each partition."""


REPAIRS_MAX = 1_000
"""Partitions named in one answer."""


class PhaseQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Before the stop or after the start."""

    phase: models.RestartPhase = "before"


class ElectionPath(msgspec.Struct, forbid_unknown_fields=True):
    """A partition of a topic."""

    topic: str
    partition: Annotated[int, Meta(ge=0, le=PARTITIONS_PER_TOPIC_MAX - 1)]


class Upkeep:
    """The endpoints. `static_keys`: a broker's own settings, for a hint to those who try to change
    them here."""

    def __init__(
        self,
        coordination: Coordination,
        manager: PartitionManager,
        *,
        static_keys: Collection[str] = (),
    ) -> None:
        self._coordination = coordination
        self._manager = manager
        self._static_keys = static_keys

    @property
    def endpoints(self) -> list[Endpoint]:
        """What there is, for the table."""
        return [*self._of_the_cluster(), *self._of_topics()]

    def _of_the_cluster(self) -> list[Endpoint]:
        store = (errors.StoreUnavailable, errors.Conflict)
        return [
            Endpoint(
                method="GET", path=routes.CLUSTER_CONFIG, handler=self.config, action="describe",
                summary="The cluster-wide settings in force.", answer=models.ClusterSettings,
            ),
            Endpoint(
                method="PATCH", path=routes.CLUSTER_CONFIG, handler=self.alter_config,
                action="alter", summary="Changes cluster-wide settings while everything runs.",
                body=models.ClusterSettingsAlter, answer=models.ClusterSettings,
                errors=(errors.InvalidConfig, *store),
            ),
            Endpoint(
                method="POST", path=routes.CLUSTER_RECOVER, handler=self.recover, action="alter",
                summary="Puts a store that went back or was lost right from the brokers' disks.",
                body=models.Recover, answer=models.RecoverAnswer, errors=store,
            ),
            Endpoint(
                method="GET", path=routes.RESTART_CHECK, handler=self.restart_check,
                action="describe",
                summary="Whether a broker may be stopped now, or is whole after its start.",
                answer=models.RestartCheck, path_model=BrokerPath, query_model=PhaseQuery,
                errors=(errors.BrokerNotFound,),
            ),
        ]  # fmt: skip

    def _of_topics(self) -> list[Endpoint]:
        store = (errors.StoreUnavailable, errors.Conflict)
        return [
            Endpoint(
                method="POST", path=routes.ELECT_LEADER, handler=self.elect, action="alter",
                summary="Makes a replica lead with what it has, when all others are lost.",
                body=models.ElectLeader, answer=models.ElectedLeader, path_model=ElectionPath,
                errors=(errors.TopicNotFound, errors.PartitionNotFound, *store),
            ),
            Endpoint(
                method="POST", path=routes.CREATE_TOPICS, handler=self.create, action="create",
                summary="Makes many topics; an outcome for each.", body=models.TopicCreates,
                answer=models.TopicOutcomes, errors=(errors.LimitExceeded, *store),
            ),
            Endpoint(
                method="POST", path=routes.ALTER_TOPICS, handler=self.alter, action="alter",
                summary="Changes many topics; an outcome for each.", body=models.TopicAlters,
                answer=models.TopicOutcomes, errors=store,
            ),
            Endpoint(
                method="POST", path=routes.DESCRIBE_TOPICS, handler=self.describe,
                action="describe", summary="The state of many topics, without their partitions.",
                body=models.TopicNames, answer=models.TopicStates,
            ),
        ]  # fmt: skip

    async def config(self, call: Call) -> web.StreamResponse:
        """GET /v1/cluster/config."""
        return self._settings()

    async def alter_config(self, call: Call) -> web.StreamResponse:
        """PATCH /v1/cluster/config."""
        body: models.ClusterSettingsAlter = call.body
        await to_the_end(
            self._coordination.alter_cluster_config(body.config, static_keys=self._static_keys)
        )
        return self._settings()

    def _settings(self) -> web.Response:
        found = cluster_config.effective(self._coordination.cluster_config)
        entries = {key: ConfigEntry(each.value, each.source) for key, each in found.items()}
        return json_answer(models.ClusterSettings(entries))

    async def restart_check(self, call: Call) -> web.StreamResponse:
        """GET /v1/brokers/{broker_id}/restart-check."""
        broker_id, phase = call.path.broker_id, call.query.phase
        found = await self._coordination.restart_blockers(broker_id, phase)
        return json_answer(
            models.RestartCheck(
                broker_id, phase, not found, len(found), sum(each.unavoidable for each in found),
                [
                    models.RestartBlocker(b.topic, b.partition, b.reason, b.unavoidable)
                    for b in found[:BLOCKERS_MAX]
                ],
            )
        )  # fmt: skip

    async def recover(self, call: Call) -> web.StreamResponse:
        """POST /v1/cluster/recover."""
        body: models.Recover = call.body
        plan = await to_the_end(
            self._coordination.recover(execute=body.execute, accept_missing=body.accept_missing)
        )
        return json_answer(
            models.RecoverAnswer(
                body.execute,
                plan.cluster is not None,
                [topic.name for topic in plan.topics],
                len(plan.repairs),
                [_repaired(each) for each in plan.repairs[:REPAIRS_MAX]],
                sorted(plan.unheard),
                list(plan.skipped),
            )
        )

    async def elect(self, call: Call) -> web.StreamResponse:
        """POST /v1/topics/{topic}/partitions/{partition}/elect-leader."""
        body: models.ElectLeader = call.body
        if not body.unclean:
            raise InvalidRequest(
                "what the broker's replica lacks would be lost: say so with unclean=true; a broker"
                " that has all records is elected without being asked"
            )
        record = await to_the_end(
            self._coordination.elect_leader(call.path.topic, call.path.partition, body.broker_id)
        )
        return json_answer(
            models.ElectedLeader(
                call.path.topic,
                record.partition,
                record.leader.broker_id if record.leader else -1,
                record.leader_epoch,
                None if record.recovery == "none" else record.recovery,
            )
        )

    async def create(self, call: Call) -> web.StreamResponse:
        """POST /v1/topics:create."""
        body: models.TopicCreates = call.body
        self._manager.require_room_for(sum(each.partitions or 1 for each in body.topics))
        outcomes: list[TopicObject | HeadraceError | None] = []
        wanted = []
        for each in body.topics:
            try:
                name = check_user_topic(each.name)
            except HeadraceError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            wanted.append(
                NewTopic(
                    name=name, partitions=each.partitions, replicas=each.replicas,
                    config=each.config,
                )
            )  # fmt: skip
        made = iter(await to_the_end(self._coordination.create_topics(wanted)))
        await self._manager.settled()
        return _outcomes(
            [each.name for each in body.topics],
            [next(made) if outcome is None else outcome for outcome in outcomes],
        )

    async def describe(self, call: Call) -> web.StreamResponse:
        """POST /v1/topics:describe."""
        body: models.TopicNames = call.body
        topics = self._coordination.view.topics
        found = [topics[name] for name in sorted(set(body.names)) if name in topics]
        return json_answer(
            models.TopicStates([self._state(topic) for topic in found if not topic.deleting])
        )

    def _state(self, topic: TopicObject) -> models.TopicState:
        records = self._coordination.view.records(topic.topic_id)
        readable = {at: r for at, r in records.items() if isinstance(r, PartitionRecord)}
        moving = {*topic.moves, *(at for at, record in readable.items() if is_moving(record))}
        return models.TopicState(
            topic.name,
            topic.topic_id.hex(),
            topic.partition_count,
            topic.replicas,
            dict(topic.config),
            under_replicated=topic.partition_count
            - sum(len(record.isr) >= len(record.replicas) for record in readable.values()),
            moving=len(moving),
            moved=sum(_is_moved(topic, at, readable.get(at)) for at in moving),
        )

    async def alter(self, call: Call) -> web.StreamResponse:
        """POST /v1/topics:alter."""
        body: models.TopicAlters = call.body
        outcomes = await to_the_end(self._alter_all(body.topics))
        await self._manager.settled()
        return _outcomes([each.name for each in body.topics], outcomes)

    async def _alter_all(
        self, wanted: list[models.NamedTopicAlter]
    ) -> list[TopicObject | HeadraceError]:
        outcomes: list[TopicObject | HeadraceError] = []
        for each in wanted:
            try:
                before = self._manager.writable_topic(each.name)
                more = (each.partitions or 0) - before.partition_count
                self._manager.require_room_for(max(0, more))
                outcomes.append(
                    await self._coordination.alter_topic(
                        before.name,
                        config=each.config,
                        partitions=each.partitions,
                        replicas=each.replicas,
                    )
                )
            except HeadraceError as error:
                outcomes.append(error)
        return outcomes


def _repaired(repair: Repair) -> models.Repaired:
    return models.Repaired(
        repair.name,
        repair.record.partition,
        repair.before.partition_epoch if repair.before else None,
        repair.record.partition_epoch,
        repair.record.leader_epoch,
        repair.source,
        list(repair.unheard),
    )


def _is_moved(topic: TopicObject, partition: int, record: PartitionRecord | None) -> bool:
    if record is None or is_moving(record) or partition not in topic.moves:
        return False
    return set(record.replicas) == set(topic.moves[partition].target)


def _outcomes(names: list[str], outcomes: list[TopicObject | HeadraceError]) -> web.Response:
    return json_answer(
        models.TopicOutcomes(
            [
                models.TopicOutcome(name, error=ErrorBody.of(each))
                if isinstance(each, HeadraceError)
                else models.TopicOutcome(name, each.topic_id.hex())
                for name, each in zip(names, outcomes, strict=True)
            ]
        )
    )
