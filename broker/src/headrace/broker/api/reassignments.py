"""Where replicas are: plans, progress, cancelling; brokers cordoned and drained.

Any broker answers: plans are made from the view and written to the store, the controller carries
them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Literal

import msgspec
from aiohttp import web

from headrace.broker.api.cluster import BrokerPath
from headrace.broker.api.endpoint import Call, Endpoint, json_answer
from headrace.broker.api.shielding import to_the_end
from headrace.broker.controller.planner import Planner
from headrace.broker.controller.reassignments import Reassignments, check
from headrace.broker.core.model import ConfigValue
from headrace.broker.core.moving import MoveStatus
from headrace.broker.core.reassignment import Plan
from headrace.protocol import errors, routes
from headrace.protocol import reassignment_models as models
from headrace.protocol.errors import InvalidRequest
from headrace.protocol.names import check_name

THROTTLE = "reassignment.throttle.bytes.per.second"
MOVES_MAX = "reassignment.max.concurrent.moves"
PLANS_MAX = 3
"""How often it is planned anew, if something else was planned meanwhile."""

_PLAN_ERRORS = (
    errors.BrokerNotFound, errors.PlanRefused, errors.StoreUnavailable, errors.Conflict,
)  # fmt: skip

BytesLeft = Callable[[Iterable[MoveStatus]], Awaitable[Mapping[tuple[str, int], int]]]
"""Bytes left to copy by topic and partition, as far as they can be found out."""


async def _nothing_known(_statuses: Iterable[MoveStatus]) -> Mapping[tuple[str, int], int]:
    return {}


class CancelQuery(msgspec.Struct, forbid_unknown_fields=True):
    """One topic only."""

    topic: str | None = None


class ReassignmentsApi:
    """The endpoints."""

    def __init__(
        self, reassignments: Reassignments, *, bytes_left: BytesLeft = _nothing_known
    ) -> None:
        self._reassignments = reassignments
        self._bytes_left = bytes_left

    @property
    def endpoints(self) -> list[Endpoint]:
        """What there is, for the table."""
        return [*self._of_the_cluster(), *self._of_brokers()]

    def _of_the_cluster(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST", path=routes.REASSIGNMENTS, handler=self.reassign, action="alter",
                summary="Plans where replicas shall be, and moves them there.",
                body=models.Reassign, answer=models.ReassignmentPlan,
                errors=(errors.TopicNotFound, errors.PartitionNotFound, *_PLAN_ERRORS),
            ),
            Endpoint(
                method="GET", path=routes.REASSIGNMENTS, handler=self.progress, action="describe",
                summary="How far the present reassignment is.",
                answer=models.ReassignmentProgress,
            ),
            Endpoint(
                method="DELETE", path=routes.REASSIGNMENTS, handler=self.cancel, action="alter",
                summary="Calls the reassignment off: what is half-way goes back.",
                answer=models.ReassignmentsCancelled, query_model=CancelQuery,
                errors=(errors.TopicNotFound, errors.StoreUnavailable, errors.Conflict),
            ),
        ]  # fmt: skip

    def _of_brokers(self) -> list[Endpoint]:
        store = (errors.BrokerNotFound, errors.StoreUnavailable, errors.Conflict)
        return [
            Endpoint(
                method="POST", path=routes.CORDON, handler=self.cordon, action="alter",
                summary="The broker gets no new replicas and leads only what nobody else can.",
                answer=models.BrokerPlacement, path_model=BrokerPath, errors=store,
            ),
            Endpoint(
                method="POST", path=routes.UNCORDON, handler=self.uncordon, action="alter",
                summary="The broker gets replicas again.",
                answer=models.BrokerPlacement, path_model=BrokerPath, errors=store,
            ),
            Endpoint(
                method="POST", path=routes.DRAIN, handler=self.drain, action="alter",
                summary="Cordons the broker and moves all its replicas to others.",
                body=models.Drain, answer=models.ReassignmentPlan, path_model=BrokerPath,
                errors=_PLAN_ERRORS,
            ),
            Endpoint(
                method="GET", path=routes.PLACEMENT, handler=self.placement, action="describe",
                summary="Whether the broker is cordoned, and how many replicas it has.",
                answer=models.BrokerPlacement, path_model=BrokerPath,
                errors=(errors.BrokerNotFound,),
            ),
        ]  # fmt: skip

    async def reassign(self, call: Call) -> web.StreamResponse:
        """POST /v1/reassignments."""
        body: models.Reassign = call.body
        if body.plan is not None and (body.mode != "even" or body.brokers is not None):
            raise InvalidRequest("a plan says where everything goes: leave mode and brokers out")

        async def make() -> Plan:
            return await asyncio.to_thread(_plan, self._reassignments.planner(), body)

        if body.dry_run:
            return _answer(await make(), executed=False)
        plan = await self._execute(make, _limits(body))
        if body.mode == "leaders":
            await to_the_end(self._reassignments.elect_preferred())
        return _answer(plan, executed=True)

    async def progress(self, call: Call) -> web.StreamResponse:
        """GET /v1/reassignments."""
        progress, limits = self._reassignments.progress(), self._reassignments.limits()
        unfinished = [status for status in progress.statuses if status.state != "done"]
        copying = [status for status in unfinished if status.state == "copying"]
        left = await self._bytes_left(copying)
        cancelling = any(status.target == status.origin for status in progress.statuses)
        state: Literal["none", "running", "cancelling"] = "none"
        if progress.total:
            state = "cancelling" if cancelling else "running"
        return json_answer(
            models.ReassignmentProgress(
                state=state,
                total=progress.total,
                done=progress.done,
                copying=len(copying),
                bytes_remaining=sum(left.values()) if left or not copying else None,
                throttle_bytes_per_second=limits.reassignment_throttle,
                max_concurrent_moves=limits.reassignment_moves_max,
                partitions=[
                    _moving(status, left.get((status.topic, status.partition)))
                    for status in unfinished[: models.PROGRESS_PARTITIONS_MAX]
                ],
            )
        )

    async def cancel(self, call: Call) -> web.StreamResponse:
        """DELETE /v1/reassignments."""
        query: CancelQuery = call.query
        topics = None if query.topic is None else [check_name(query.topic, kind="topic")]
        return json_answer(
            models.ReassignmentsCancelled(await to_the_end(self._reassignments.cancel(topics)))
        )

    async def cordon(self, call: Call) -> web.StreamResponse:
        """POST /v1/brokers/{broker_id}/cordon."""
        broker: int = call.path.broker_id
        await to_the_end(self._reassignments.set_cordoned(broker, cordoned=True))
        return self._placement(broker)

    async def uncordon(self, call: Call) -> web.StreamResponse:
        """POST /v1/brokers/{broker_id}/uncordon."""
        broker: int = call.path.broker_id
        await to_the_end(self._reassignments.set_cordoned(broker, cordoned=False))
        return self._placement(broker)

    async def placement(self, call: Call) -> web.StreamResponse:
        """GET /v1/brokers/{broker_id}/placement."""
        return self._placement(call.path.broker_id)

    async def drain(self, call: Call) -> web.StreamResponse:
        """POST /v1/brokers/{broker_id}/drain. Refused before anything is changed; cordoned before
        anything moves, so that no new topic comes in between."""
        body: models.Drain = call.body
        broker: int = call.path.broker_id

        async def make() -> Plan:
            return await asyncio.to_thread(
                self._reassignments.planner().drain, [broker], ignore_racks=body.ignore_racks
            )

        plan = await make()
        if body.dry_run:
            return _answer(plan, executed=False)
        check(plan)
        await to_the_end(self._reassignments.set_cordoned(broker, cordoned=True))
        return _answer(await self._execute(make, _limits(body)), executed=True)

    async def _execute(
        self, make: Callable[[], Awaitable[Plan]], limits: Mapping[str, ConfigValue | None]
    ) -> Plan:
        """Takes up the plan that `make` gives, or another one if something else was planned
        meanwhile (as the controller does for the offsets topic); which one it was."""
        for _ in range(PLANS_MAX - 1):
            with suppress(errors.Conflict):
                return await self._execute_once(make, limits)
        return await self._execute_once(make, limits)

    async def _execute_once(
        self, make: Callable[[], Awaitable[Plan]], limits: Mapping[str, ConfigValue | None]
    ) -> Plan:
        plan = await make()
        check(plan)
        await to_the_end(self._reassignments.set_limits(limits))
        await to_the_end(self._reassignments.apply(plan))
        return plan

    def _placement(self, broker: int) -> web.Response:
        found = self._reassignments
        found.check_brokers([broker])
        return json_answer(
            models.BrokerPlacement(broker, found.is_cordoned(broker), found.replicas_on(broker))
        )


def _plan(planner: Planner, body: models.Reassign) -> Plan:
    if body.plan is None:
        return planner.spread(body.mode, brokers=body.brokers)
    wanted = {(each.topic, each.partition): each.replicas for each in body.plan}
    if len(wanted) != len(body.plan):
        raise InvalidRequest("a partition is named twice in the plan")
    return planner.by_hand(wanted)


def _limits(body: models.Reassign | models.Drain) -> dict[str, ConfigValue | None]:
    given = {
        THROTTLE: body.throttle_bytes_per_second,
        MOVES_MAX: body.max_concurrent_moves,
    }
    return {key: value for key, value in given.items() if value is not None}


def _answer(plan: Plan, *, executed: bool) -> web.Response:
    return json_answer(
        models.ReassignmentPlan(
            executed,
            plan.copies,
            [
                models.PlannedReplicas(m.topic, m.partition, list(m.origin), list(m.target))
                for m in plan.moves
            ],
            dict(plan.refusals),
        )
    )


def _moving(status: MoveStatus, bytes_left: int | None) -> models.MovingPartition:
    return models.MovingPartition(
        status.topic, status.partition, list(status.origin), list(status.target), status.state,
        list(status.missing), status.reason, bytes_left,
    )  # fmt: skip
