"""The part of `Admin` that moves replicas: reassignments, cordoned and drained brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from headrace.protocol import reassignment_models as models
from headrace.protocol import routes
from headrace.protocol.names import check_name
from headrace.sdk.client import Client

Plan = Mapping[tuple[str, int], Sequence[int]]
"""Topic and partition -> the brokers that shall have it, the preferred leader first."""


class PlacementAdmin:
    """Mixed into `Admin`, which has the client."""

    _client: Client

    async def reassign(
        self,
        plan: Plan | None = None,
        *,
        mode: Literal["even", "leaders"] = "even",
        brokers: Collection[int] | None = None,
        throttle: int | None = None,
        max_concurrent_moves: int | None = None,
        dry_run: bool = False,
    ) -> models.ReassignmentPlan:
        """Moves replicas in the background; `reassignments()` tells how far. Without a plan they
        and their leaders are spread evenly, over all brokers or over `brokers`, with as few copies
        as that takes; `mode="leaders"` moves leaders only. `throttle`: bytes a second that each
        broker copies (-1: no bound; None: as it is set). `dry_run` only tells the plan.

        Raises:
            PlanRefused: a broker isn't live, or is cordoned; `details["topics"]` says more.
            TopicNotFound, PartitionNotFound, BrokerNotFound, InvalidRequest: a plan that can't be.
        """
        body = models.Reassign(
            dry_run=dry_run,
            mode=mode,
            brokers=None if brokers is None else list(brokers),
            plan=None if plan is None else _written(plan),
            throttle_bytes_per_second=throttle,
            max_concurrent_moves=max_concurrent_moves,
        )
        return await self._client.call(
            "POST", routes.REASSIGNMENTS, models.ReassignmentPlan, body=body
        )

    async def reassignments(self) -> models.ReassignmentProgress:
        """How far the present reassignment is; `state` is `none` if there is none (any more)."""
        return await self._client.call("GET", routes.REASSIGNMENTS, models.ReassignmentProgress)

    async def cancel_reassignment(self, topics: Iterable[str] | None = None) -> list[str]:
        """Calls the reassignment off, of these topics or of all: what is half-way goes back, what
        is done stays. The answer names the topics that had any."""
        if topics is None:
            return await self._cancel(None)
        cancelled: list[str] = []
        for topic in topics:
            cancelled.extend(await self._cancel(check_name(topic, kind="topic")))
        return cancelled

    async def cordon(self, broker_id: int) -> models.BrokerPlacement:
        """The broker gets no new replicas, and leads only what nobody else can. Survives
        restarts."""
        return await self._place("POST", routes.CORDON, broker_id)

    async def uncordon(self, broker_id: int) -> models.BrokerPlacement:
        """The broker gets replicas again; what was moved away doesn't come back by itself."""
        return await self._place("POST", routes.UNCORDON, broker_id)

    async def placement(self, broker_id: int) -> models.BrokerPlacement:
        """Whether the broker is cordoned, and how many replicas it has."""
        return await self._place("GET", routes.PLACEMENT, broker_id)

    async def drain(
        self,
        broker_id: int,
        *,
        ignore_racks: bool = False,
        throttle: int | None = None,
        max_concurrent_moves: int | None = None,
        dry_run: bool = False,
    ) -> models.ReassignmentPlan:
        """Cordons the broker and moves all its replicas to others, in the background: it is empty
        once `placement()` says 0 replicas. `ignore_racks`: topics may end in fewer racks.

        Raises:
            BrokerNotFound.
            PlanRefused: a topic couldn't keep its replicas; nothing is changed.
        """
        body = models.Drain(
            dry_run=dry_run,
            ignore_racks=ignore_racks,
            throttle_bytes_per_second=throttle,
            max_concurrent_moves=max_concurrent_moves,
        )
        path = routes.fill(routes.DRAIN, broker_id=broker_id)
        return await self._client.call("POST", path, models.ReassignmentPlan, body=body)

    async def _cancel(self, topic: str | None) -> list[str]:
        query = None if topic is None else {"topic": topic}
        answer = await self._client.call(
            "DELETE", routes.REASSIGNMENTS, models.ReassignmentsCancelled, query=query
        )
        return answer.topics

    async def _place(self, method: str, route: str, broker_id: int) -> models.BrokerPlacement:
        path = routes.fill(route, broker_id=broker_id)
        return await self._client.call(method, path, models.BrokerPlacement)


def _written(plan: Plan) -> list[models.WantedReplicas]:
    return [
        models.WantedReplicas(topic, partition, list(replicas))
        for (topic, partition), replicas in plan.items()
    ]
