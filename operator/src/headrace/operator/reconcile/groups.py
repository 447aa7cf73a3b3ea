"""One pass for the ConsumerGroups of a cluster that are due, and at least every `poll_s`:

    ask (describe_group) → plan (pure) → set offsets → write status

A write because lag alone has changed happens at most once in `poll_s` for each group.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping
from typing import Literal

from headrace.operator.core import group_plan
from headrace.operator.core.cluster_status import paused_status
from headrace.operator.core.conditions import Condition
from headrace.operator.core.group_plan import (
    Committed,
    GroupFact,
    GroupPlan,
    GroupResource,
    SetOffsets,
)
from headrace.operator.core.part import not_ready
from headrace.operator.kube import paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.events import Events
from headrace.operator.process.desk import Desk, Name
from headrace.operator.process.work_queue import Key
from headrace.operator.reconcile.ask_brokers import AT_ONCE, admin_of, every
from headrace.operator.reconcile.clusters import condition_of
from headrace.operator.reconcile.look_at_cluster import brokers_pods
from headrace.operator.reconcile.read_resource import (
    cluster_trouble,
    no_broker,
    resource_of,
    rulers_of,
    status_with,
)
from headrace.operator.reconcile.schedule import Schedule
from headrace.operator.reconcile.write_status import now, write_status
from headrace.operator.spec import ConsumerGroupSpec, JsonObject
from headrace.protocol.errors import (
    GroupNotFound,
    HeadraceError,
    InvalidConfig,
    UnknownMember,
)
from headrace.sdk import Admin

TOGETHER = 5.0
"""Groups whose times lie within this part of the interval are looked at together."""

GROUPS_PER_SECOND = 20.0
"""The most groups of one cluster that are asked for, on average: many are asked for less often."""


class Groups:
    """Passes for ConsumerGroups. `pass_over` is what the work queue calls, with a cluster as the
    key."""

    def __init__(self, kube: KubeClient, events: Events, desk: Desk, *, poll_s: float) -> None:
        self._kube = kube
        self._events = events
        self._desk = desk
        self._poll_s = poll_s
        self._schedules: dict[Key, Schedule] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def pass_over(self, key: Key) -> float | None:
        """One pass; in how many seconds the next.

        Raises:
            KubernetesError: nothing could be read.
        """
        schedule = self._schedules.setdefault(key, Schedule())
        known = {_name(raw): raw for raw in self._desk.of(key)}
        if not known:
            self._schedules.pop(key, None)
            return None
        schedule.keep_only(known)
        # Those that are nearly due come along, so that a cluster's groups are asked for together.
        due = self._desk.take_news(key) | schedule.due(_now() + self._poll_s / TOGETHER)
        raws = [known[name] for name in sorted(due & known.keys())]
        try:
            if raws:
                await self._go_through(key, raws, schedule)
        except BaseException:
            self._desk.put_back(key, due)
            raise
        return schedule.next_s(_now())

    async def _go_through(self, key: Key, raws: list[JsonObject], schedule: Schedule) -> None:
        cluster = await self._kube.get(paths.BROKER_CLUSTER, key.namespace, key.name)
        trouble = cluster_trouble(cluster, key.name)
        found = {} if trouble else await brokers_pods(self._kube, key.namespace, key.name)
        async with admin_of(found.values()) as admin:
            topics = None if admin is None else await _topics(admin)
            if trouble is None and topics is None:
                trouble = not_ready("BrokerUnavailable", no_broker(key.name))
            await every(lambda raw: self._one(key, raw, trouble, admin, topics, schedule), raws)

    async def _one(
        self,
        key: Key,
        raw: JsonObject,
        trouble: Condition | None,
        admin: Admin | None,
        topics: frozenset[str] | None,
        schedule: Schedule,
    ) -> None:
        async with self._at_once:
            if trouble is not None or admin is None or topics is None:
                assert trouble is not None
                await self._write(raw, status_with(raw, trouble))
                schedule.failed(_name(raw), _now())
                return
            has_failed = await self._reconcile(key, raw, admin, topics)
            if has_failed:
                schedule.failed(_name(raw), _now())
            else:
                among = len(self._desk.of(key))
                schedule.again(_name(raw), _now() + max(self._poll_s, among / GROUPS_PER_SECOND))

    async def _reconcile(
        self, key: Key, raw: JsonObject, admin: Admin, topics: frozenset[str]
    ) -> bool:
        """Whether it failed."""
        try:
            resource = resource_of(raw, ConsumerGroupSpec)
        except InvalidConfig as error:
            await self._write(raw, status_with(raw, not_ready("InvalidConfig", error.message)))
            return False
        if resource.is_paused:
            paused = paused_status(resource.status, generation=resource.generation, now=now())
            await self._write(raw, paused)
            return False
        rulers = rulers_of([resource.subject], self._desk.of(key), ConsumerGroupSpec)
        fact, plan, failure = None, GroupPlan(), None
        try:
            fact = await _fact(admin, resource, topics)
            plan = group_plan.plan_group(resource, fact, rulers.get(resource.subject, resource))
            for action in plan.actions:
                await self._set_offsets(admin, raw, action)
        except (HeadraceError, ValueError) as error:
            failure = _condition_of(error)
        await self._say(raw, resource, fact, plan, failure)
        return failure is not None

    async def _set_offsets(self, admin: Admin, raw: JsonObject, action: SetOffsets) -> None:
        """Sets all of them, or none that anybody could have missed: the mark is on each.

        Raises:
            HeadraceError, ValueError: `to` isn't a place.
        """
        planned = await admin.plan_group_reset(action.group, place(action.to), topics=action.topics)
        offsets = {(each.topic, each.partition): each.new for each in planned}
        results = await admin.alter_group_offsets(action.group, offsets, metadata=action.mark)
        for result in results:
            if result.error is not None:
                raise result.error.to_error()
        if action.mark:
            told = f"offsets of {', '.join(action.topics)} are set to {action.to}"
            self._events.tell(raw, "Normal", "OffsetsReset", told)

    async def _say(
        self,
        raw: JsonObject,
        resource: GroupResource,
        fact: GroupFact | None,
        plan: GroupPlan,
        failure: Condition | None,
    ) -> None:
        conditions = plan.conditions
        remembered: Mapping[str, object] = plan.remembered
        if failure is not None:
            conditions, remembered = (failure, *conditions), {}
        status = group_plan.group_status(resource, fact, conditions, remembered, now=now())
        await self._write(raw, status)

    async def _write(self, raw: JsonObject, wanted: JsonObject) -> None:
        try:
            written = await write_status(self._kube, self._events, raw, wanted, quiet=True)
        except KubernetesError as error:
            if not error.is_absent:
                raise
            return
        if written is not raw:
            self._desk.written(written)


def place(text: str) -> Literal["earliest", "latest"] | datetime.datetime:
    """`earliest`, `latest`, or a time with its zone.

    Raises:
        ValueError: it is none of these.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    found = datetime.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone, such as Z or +01:00")
    return found


async def _topics(admin: Admin) -> frozenset[str] | None:
    """All topics; None if no broker answers."""
    try:
        return frozenset(each.name for each in (await admin.list_topics()).topics)
    except HeadraceError:
        return None


async def _fact(admin: Admin, resource: GroupResource, topics: frozenset[str]) -> GroupFact:
    there = frozenset(resource.spec.topics) & topics
    try:
        found = await admin.describe_group(resource.subject)
    except GroupNotFound:
        return GroupFact(topics=there)
    return GroupFact(
        state=found.state,
        members=len(found.members),
        offsets=tuple(
            Committed(
                topic=each.topic,
                partition=each.partition,
                lag=each.lag,
                metadata=each.metadata,
            )
            for each in found.offsets
        ),
        topics=there,
    )


def _condition_of(error: HeadraceError | ValueError) -> Condition:
    if isinstance(error, UnknownMember):
        return not_ready("ResetPending", "a member joined the group meanwhile; trying again")
    if isinstance(error, HeadraceError):
        return condition_of(error)
    return not_ready("InvalidConfig", f"not a place to read from: {error}")


def _name(raw: JsonObject) -> Name:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]


def _now() -> float:
    return asyncio.get_running_loop().time()
