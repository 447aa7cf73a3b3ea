"""What a cluster's brokers say, as values. Every call has a deadline; no answer is an answer, too.

Brokers are reached by their pods' addresses, ready ones first: names of pods that are just being
made would be remembered as unknown by DNS for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from headrace.operator import names
from headrace.operator.core import observed as seen_as
from headrace.operator.core import pods, roll, scale
from headrace.operator.core.observed import Cluster
from headrace.operator.spec import JsonObject
from headrace.protocol import cluster_models, models, reassignment_models
from headrace.protocol.errors import HeadraceError, PlanRefused
from headrace.sdk import Admin

T = TypeVar("T")
R = TypeVar("R")

REQUEST_TIMEOUT_S = 10.0
"""Seconds for one call, retries among them."""

DETAIL_TIMEOUT_S = 2.0
"""Seconds for what only one broker can say about itself."""

MORE_PER_BROKER_S = 0.2
"""Seconds more for asking all, for each broker."""

CONNECT_TIMEOUT_S = 2.0
"""Seconds for a connection: a pod's address that is gone doesn't answer at all."""

AT_ONCE = 8
"""Calls in flight to one cluster."""

URLS_MAX = 9
"""Brokers that are tried; the others are only asked through them."""


def urls(found: Iterable[JsonObject]) -> tuple[str, ...]:
    """Where the brokers of these pods listen, ready ones first."""
    running = [
        pod
        for pod in found
        if (pod.get("status") or {}).get("podIP") and not pods.stuck_reason(pod)
    ]
    running.sort(key=lambda pod: (not pods.is_ready(pod), pod["metadata"]["name"]))
    return tuple(_url(pod["status"]["podIP"]) for pod in running[:URLS_MAX])


def _url(address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{names.PORT}"


@asynccontextmanager
async def admin_of(
    found: Iterable[JsonObject], *, timeout_s: float = REQUEST_TIMEOUT_S
) -> AsyncIterator[Admin | None]:
    """An Admin for the brokers of these pods; None if there is none to ask."""
    where = urls(found)
    if not where:
        yield None
        return
    async with Admin(
        where,
        client_id="headrace-operator",
        request_timeout=timeout_s,
        connect_timeout=CONNECT_TIMEOUT_S,
        retry_backoff_max_ms=500,
    ) as admin:
        yield admin


async def ask_cluster(admin: Admin, seen: Cluster) -> Cluster:
    """`seen` with the brokers' answers, or with the trouble there is in getting them."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S * 2 + MORE_PER_BROKER_S * len(seen.pods)):
            known = replace(seen, admin=await _facts(admin), trouble="")
            return replace(known, admin=await _checked(admin, known))
    except (HeadraceError, TimeoutError) as error:
        # Without the address that was tried last, so that it is written once and not at each try.
        why = error.code if isinstance(error, HeadraceError) else "nothing in time"
        return replace(seen, admin=None, trouble=f"no broker answers ({why}); trying again")


async def _facts(admin: Admin) -> seen_as.Admin:
    cluster = await admin.describe_cluster()
    health = await admin.cluster_health(limit=1)
    config = await admin.cluster_config()
    brokers = await _brokers(admin, cluster, health)
    return seen_as.Admin(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers={each.id: each for each in brokers},
        config=_set_for_the_cluster(config),
        partitions=health.partitions,
        under_replicated=health.under_replicated,
        under_min_isr=health.under_min_isr,
        offline=health.offline,
        moving=_moving(await admin.reassignments()),
    )


def _set_for_the_cluster(config: dict[str, models.ConfigEntry]) -> dict[str, str | int]:
    return {
        key: entry.value if isinstance(entry.value, int | str) else str(entry.value)
        for key, entry in config.items()
        if entry.source == "cluster" and entry.value is not None
    }


async def _brokers(
    admin: Admin, cluster: models.ClusterInfo, health: cluster_models.ClusterHealth
) -> list[seen_as.Broker]:
    loads = {each.id: each for each in health.brokers}
    infos = {each.id: each for each in cluster.brokers}

    async def one(broker_id: int) -> seen_as.Broker:
        load = loads.get(broker_id)
        state = load.state if load is not None else infos[broker_id].state
        placement = await admin.placement(broker_id)
        detail = None
        if state not in ("dead", "draining"):
            detail = await _or_none(admin.describe_broker(broker_id))
        recovering = None if detail is None else detail.recovering
        return seen_as.Broker(
            id=broker_id,
            state=state,
            replicas=placement.replicas,
            cordoned=placement.cordoned,
            version="" if broker_id not in infos else infos[broker_id].version,
            recovering=None if recovering is None else recovering.remaining,
            storage_full=detail is not None and detail.storage_full,
        )

    return await at_once(one, sorted(infos.keys() | loads.keys()))


def _moving(progress: reassignment_models.ReassignmentProgress) -> seen_as.Moving | None:
    if progress.state == "none":
        return None
    onto = {each for p in progress.partitions for each in p.target if each not in p.replicas}
    return seen_as.Moving(
        total=progress.total,
        done=progress.done,
        bytes_remaining=progress.bytes_remaining,
        cancelling=progress.state == "cancelling",
        onto=frozenset(onto),
    )


async def _checked(admin: Admin, seen: Cluster) -> seen_as.Admin:
    """The answers that only some plans need: restart checks, and whether brokers can be emptied."""
    assert seen.admin is not None
    registered = seen.admin.brokers
    asked = [each for each in roll.questions(seen) if each[0] in registered]
    checks = await at_once(lambda question: _check(admin, *question), asked)
    refusals: dict[str, str] = {}
    for broker_id in scale.to_drain(seen):
        refusals |= await _refusals(admin, broker_id)
    return replace(
        seen.admin,
        checks=dict(zip(asked, checks, strict=True)),
        refusals=refusals,
        spread_moves=await _spread_moves(admin) if scale.wants_spread(seen, seen.admin) else None,
    )


async def _spread_moves(admin: Admin) -> int:
    """None at all where it would be refused: nothing is begun then, and everything works as is."""
    try:
        plan = await admin.reassign(dry_run=True)
    except PlanRefused:
        return 0
    return 0 if plan.refusals else len(plan.moves)


async def _check(admin: Admin, broker_id: int, phase: seen_as.Phase) -> seen_as.Check:
    try:
        found = await admin.restart_check(broker_id, phase=phase)
    except HeadraceError as error:
        return seen_as.Check(ok=False, blocking=1, first=f"no answer: {error}")
    return seen_as.Check(found.ok, found.blocking, found.unavoidable, _first(found))


def _first(check: cluster_models.RestartCheck) -> str:
    blockers = [each for each in check.blockers if not each.unavoidable] or check.blockers
    if not blockers:
        return ""
    first = blockers[0]
    where = first.topic if first.partition < 0 else f"{first.topic}/{first.partition}"
    return f"{where}: {first.reason}" if where else first.reason


async def _refusals(admin: Admin, broker_id: int) -> dict[str, str]:
    try:
        return (await admin.drain(broker_id, dry_run=True)).refusals
    except PlanRefused as error:
        return refusals_of(error)


def refusals_of(error: PlanRefused) -> dict[str, str]:
    """Topic → why it can't be moved so."""
    topics = error.details.get("topics")
    if isinstance(topics, dict) and topics:
        return {str(topic): str(reason) for topic, reason in topics.items()}
    return {"": error.message}


async def _or_none(call: Awaitable[T]) -> T | None:
    """The answer of a single broker, which may be just starting: then it is done without."""
    try:
        async with asyncio.timeout(DETAIL_TIMEOUT_S):
            return await call
    except (HeadraceError, TimeoutError):
        return None


async def at_once(call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """The calls' answers in order, a few in flight at a time; the first failure ends all."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with gate:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except* HeadraceError as errors:
        raise _first_of(errors) from errors
    return [task.result() for task in tasks]


async def every(call: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """All the calls, also if some fail; then raises the first failure."""
    outcomes = await asyncio.gather(*(call(item) for item in items), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
