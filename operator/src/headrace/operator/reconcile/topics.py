"""One pass for the Topics of a cluster that are due, many in each call to the brokers:

    due → ask (describe_topics) → plan each (pure) → carry out together → … → write status

A topic whose call fails is tried again by itself; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.operator.core import topic_plan
from headrace.operator.core.cluster_status import paused_status
from headrace.operator.core.conditions import Condition
from headrace.operator.core.observed import Moving
from headrace.operator.core.part import not_ready
from headrace.operator.core.pods import is_terminating
from headrace.operator.core.topic_plan import TopicAction, TopicFact, TopicPlan, TopicResource
from headrace.operator.kube import paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.events import Events
from headrace.operator.process.desk import Desk, Name
from headrace.operator.process.work_queue import Key
from headrace.operator.reconcile.ask_brokers import AT_ONCE, admin_of, at_once, every
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
from headrace.operator.reconcile.write_status import (
    has_finalizer,
    now,
    set_finalizer,
    write_status,
)
from headrace.operator.spec import JsonObject, TopicSpec
from headrace.protocol import cluster_models, models
from headrace.protocol.errors import HeadraceError, InvalidConfig, PlanRefused, TopicNotFound
from headrace.sdk import Admin

CHUNK = 100
"""Topics that are carried through together: the first are ready soon, and memory stays small."""

BATCH_TIMEOUT_S = 30.0
"""Seconds for one call about so many topics."""

ROUNDS = 6
"""Plans in one pass for one chunk: finalizer, create, alter, reassign."""

DEGRADED_FACTOR = 3.0
"""A topic that lacks in-sync replicas is looked at so many times less often than one that changes:
nothing can be done about it here."""

WRITES_AT_ONCE = 12
"""Writes to the API server in flight."""


@dataclass(slots=True)
class _Work:
    """A Topic on its way through a pass. `failure`: what went wrong with it; `released`: nothing
    holds the resource any more; `is_stale`: somebody has changed it meanwhile;
    `is_deleted`: its topic was deleted in this pass."""

    raw: JsonObject
    resource: TopicResource
    ruler: TopicResource
    fact: TopicFact | None = None
    plan: TopicPlan = field(default_factory=TopicPlan)
    failure: Condition | None = None
    released: bool = False
    is_stale: bool = False
    is_deleted: bool = False

    @property
    def name(self) -> Name:
        return self.resource.namespace, self.resource.name


class Topics:
    """Passes for Topics. `pass_over` is what the work queue calls, with a cluster as the key."""

    def __init__(self, kube: KubeClient, events: Events, desk: Desk, *, poll_s: float) -> None:
        self._kube = kube
        self._events = events
        self._desk = desk
        self._poll_s = poll_s
        self._schedules: dict[Key, Schedule] = {}
        self._writing = asyncio.Semaphore(WRITES_AT_ONCE)
        self._asking = asyncio.Semaphore(AT_ONCE)

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
        due = self._desk.take_news(key) | schedule.due(_now())
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
        async with admin_of(found.values(), timeout_s=BATCH_TIMEOUT_S) as admin:
            answers = admin is not None
            size = _size(cluster)
            for first in range(0, len(raws), CHUNK):
                works = await self._read(key, raws[first : first + CHUNK], schedule)
                if trouble is not None:
                    await self._without(works, trouble)
                elif not (answers and admin and await self._with_brokers(works, admin, size)):
                    answers = False
                    self._without_brokers(works, key.name)
                await self._finish(works, schedule)

    # --- reading ---

    async def _read(self, key: Key, raws: Sequence[JsonObject], schedule: Schedule) -> list[_Work]:
        resources = []
        for raw in raws:
            try:
                resources.append((raw, resource_of(raw, TopicSpec)))
            except InvalidConfig as error:
                await self._say_invalid(raw, error)
                schedule.settled(_name(raw))
        subjects = [resource.subject for _, resource in resources]
        rulers = rulers_of(subjects, self._desk.of(key), TopicSpec)
        return [
            _Work(raw, resource, rulers.get(resource.subject, resource))
            for raw, resource in resources
        ]

    async def _say_invalid(self, raw: JsonObject, error: InvalidConfig) -> None:
        """One that can't be read is never acted on, but it may go."""
        if is_terminating(raw) and has_finalizer(raw):
            told = f"its topic wasn't deleted: {error.message}"
            self._events.tell(raw, "Warning", "TopicLeftBehind", told)
            await set_finalizer(self._kube, raw, wanted=False)
            return
        await self._write(raw, status_with(raw, not_ready("InvalidConfig", error.message)))

    # --- planning and carrying out ---

    async def _without(self, works: list[_Work], trouble: Condition) -> None:
        for work in works:
            work.plan = topic_plan.plan_without_cluster(work.resource, trouble)
        await self._hold_and_release(works)

    def _without_brokers(self, works: list[_Work], cluster: str) -> None:
        for work in works:
            if work.resource.is_paused:
                continue
            work.plan = topic_plan.plan_without_brokers(work.resource, no_broker(cluster))
            work.failure = next(iter(work.plan.conditions), None)

    async def _with_brokers(self, works: list[_Work], admin: Admin, size: _Size) -> bool:
        """Whether the brokers answered."""
        left = [work for work in works if not work.resource.is_paused]
        for _ in range(ROUNDS):
            if not left:
                return True
            try:
                facts = await admin.describe_topics(work.resource.subject for work in left)
            except HeadraceError:
                return False
            for work in left:
                state = facts.get(work.resource.subject)
                work.fact = None if state is None else _fact(state)
            await every(lambda work: self._look_twice(work, admin), left)
            for work in left:
                work.plan = topic_plan.plan_topic(work.resource, work.fact, work.ruler)
            left = [work for work in left if work.plan.actions and work.failure is None]
            await self._hold_and_release(left)
            await self._ask(left, admin, size)
            left = [
                work
                for work in left
                if work.failure is None and not work.released and not work.is_stale
            ]
        return True

    async def _look_twice(self, work: _Work, admin: Admin) -> None:
        """Before a deleted resource is let go because its topic isn't there: who said so
        may not have heard of it yet. Asked for one by name, it looks into the store."""
        resource = work.resource
        if resource.deleting_s is None or work.fact is not None or work.is_deleted:
            return
        if not resource.has_finalizer or resource.spec.deletion_policy != "Delete":
            return
        try:
            async with self._asking:
                found = await admin.describe_topic(resource.subject)
        except TopicNotFound:
            return
        except HeadraceError as error:
            work.failure = condition_of(error)
            return
        size = len(found.partitions)
        work.fact = TopicFact(
            name=found.name, topic_id=found.topic_id, partitions=size, replicas=found.replicas
        )

    async def _hold_and_release(self, works: Iterable[_Work]) -> None:
        async def one(work: _Work) -> None:
            for action in work.plan.actions:
                if isinstance(action, topic_plan.Hold | topic_plan.Release):
                    await self._set_finalizer(work, action)

        await every(one, works)

    async def _set_finalizer(
        self, work: _Work, action: topic_plan.Hold | topic_plan.Release
    ) -> None:
        is_hold = isinstance(action, topic_plan.Hold)
        try:
            async with self._writing:
                work.raw = await set_finalizer(self._kube, work.raw, wanted=is_hold)
        except KubernetesError as error:
            work.is_stale = error.is_conflict or (error.is_absent and is_hold)
            if work.is_stale or not error.is_absent:
                work.failure = condition_of(error)
                return
        if isinstance(action, topic_plan.Release) and action.warning:
            self._events.tell(work.raw, "Warning", "TopicLeftBehind", action.warning)
        if work.resource.deleting_s is not None and not is_hold:
            work.released = True
            self._desk.gone(work.raw)
            return
        self._desk.written(work.raw)
        work.resource = resource_of(work.raw, TopicSpec)

    async def _ask(self, works: Sequence[_Work], admin: Admin, size: _Size) -> None:
        by_name = {
            work.resource.subject: work for work in works if work.ruler.uid == work.resource.uid
        }
        await every(self._check_still_asked, by_name.values())
        creates, alters, deletes = _calls(works)
        for create in creates:
            create.replicas = create.replicas or size.default_replicas
        try:
            if creates:
                _take(by_name, await admin.create_topics(creates))
                _blame_the_start(by_name, size)
            if alters:
                _take(by_name, await admin.alter_topics(alters))
            await at_once(lambda name: self._delete(by_name[name], admin), deletes)
        except HeadraceError as error:
            for name in {*(c.name for c in creates), *(a.name for a in alters), *deletes}:
                by_name[name].failure = condition_of(error)

    async def _delete(self, work: _Work, admin: Admin) -> None:
        try:
            await admin.delete_topic(work.resource.subject)
            work.is_deleted = True
        except TopicNotFound:
            return
        except HeadraceError as error:
            work.failure = condition_of(error)

    async def _check_still_asked(self, work: _Work) -> None:
        """Asks for the resource once more before its topic is deleted, or made again. What is known
        of it may be old (a watch that began after it went tells nothing); deleting a topic can't be
        taken back, and one that was deleted on purpose isn't to come back."""
        is_deletion = work.resource.deleting_s is not None
        if not is_deletion and not (work.fact is None and work.resource.status.get("topicId")):
            return
        try:
            async with self._asking:
                found = await self._kube.get(paths.TOPIC, *work.name)
        except KubernetesError as error:
            work.failure = condition_of(error)
            return
        if found is None or found["metadata"].get("uid") != work.resource.uid:
            work.is_stale = True
            self._desk.gone(work.raw)
        else:
            work.is_stale = is_terminating(found) != is_deletion

    # --- status ---

    async def _finish(self, works: Sequence[_Work], schedule: Schedule) -> None:
        await every(self._say, [each for each in works if not (each.released or each.is_stale)])
        for work in works:
            if work.released:
                schedule.settled(work.name)
            elif work.failure is not None:
                schedule.failed(work.name, _now())
            elif any(each.type == "Progressing" for each in work.plan.conditions):
                schedule.again(work.name, _now() + self._poll_s)
            elif work.fact is not None and work.fact.under_replicated:
                schedule.again(work.name, _now() + self._poll_s * DEGRADED_FACTOR)
            else:
                schedule.settled(work.name)

    async def _say(self, work: _Work) -> None:
        resource = work.resource
        if resource.is_paused:
            wanted = paused_status(resource.status, generation=resource.generation, now=now())
        else:
            conditions = tuple(each for each in (work.failure, *work.plan.conditions) if each)
            wanted = topic_plan.topic_status(resource, work.fact, conditions, now=now())
        await self._write(work.raw, wanted)

    async def _write(self, raw: JsonObject, wanted: JsonObject) -> None:
        async with self._writing:
            try:
                written = await write_status(self._kube, self._events, raw, wanted, quiet=True)
            except KubernetesError as error:
                if not error.is_absent:
                    raise
                return
        if written is not raw:
            self._desk.written(written)


@dataclass(frozen=True, slots=True)
class _Size:
    """The BrokerCluster: whether all its brokers are ready, and how many replicas a topic gets that
    doesn't say. Left to the brokers, a topic that is applied together with its cluster would have
    as many as there are brokers at that moment."""

    is_whole: bool
    default_replicas: int


def _size(cluster: JsonObject | None) -> _Size:
    wanted = (cluster or {}).get("spec") or {}
    brokers = int(wanted.get("replicas") or 1)
    ready = ((cluster or {}).get("status") or {}).get("readyReplicas") or 0
    chosen = str((wanted.get("config") or {}).get("default.replication.factor", ""))
    default = int(chosen) if chosen.isdecimal() and int(chosen) else min(3, brokers)
    return _Size(ready >= brokers, default)


def _blame_the_start(by_name: dict[str, _Work], size: _Size) -> None:
    """A topic that asks for more brokers than there are yet isn't wrong: it waits."""
    if size.is_whole:
        return
    for work in by_name.values():
        if work.failure is not None and work.failure.reason == "InvalidConfig":
            told = f"{work.failure.message} (not all brokers of the cluster are ready)"
            work.failure = not_ready("BrokersNotReady", told)


def _calls(
    works: Iterable[_Work],
) -> tuple[list[models.TopicCreate], list[cluster_models.NamedTopicAlter], list[str]]:
    creates: list[models.TopicCreate] = []
    alters: list[cluster_models.NamedTopicAlter] = []
    deletes: list[str] = []
    for work in works:
        if work.failure is not None or work.is_stale or work.released:
            continue
        for action in work.plan.actions:
            _add(action, creates, alters, deletes)
    return creates, alters, deletes


def _add(
    action: TopicAction,
    creates: list[models.TopicCreate],
    alters: list[cluster_models.NamedTopicAlter],
    deletes: list[str],
) -> None:
    match action:
        case topic_plan.CreateTopic(name, partitions, replicas, config):
            creates.append(models.TopicCreate(name, partitions, replicas, dict(config)))
        case topic_plan.AlterTopic(name, changes, partitions):
            alters.append(
                cluster_models.NamedTopicAlter(
                    name=name, config=dict(changes), partitions=partitions
                )
            )
        case topic_plan.SetReplicas(name, replicas):
            alters.append(cluster_models.NamedTopicAlter(name=name, replicas=replicas))
        case topic_plan.DeleteTopic(name):
            deletes.append(name)


def _take(by_name: dict[str, _Work], outcomes: Iterable[cluster_models.TopicOutcome]) -> None:
    """Failures of single topics. One that exists by now was made a moment ago: the next look tells
    whether it is as it should be."""
    for outcome in outcomes:
        if outcome.error is None or outcome.error.code in ("topic_exists", "topic_not_found"):
            continue
        error = outcome.error.to_error()
        if isinstance(error, PlanRefused):
            why = "; ".join([error.message, *map(str, _reasons(error))])
            by_name[outcome.name].failure = not_ready("ReassignmentRefused", why)
        else:
            by_name[outcome.name].failure = condition_of(error)


def _reasons(error: PlanRefused) -> list[object]:
    topics = error.details.get("topics")
    return list(topics.values()) if isinstance(topics, dict) else []


def _fact(state: cluster_models.TopicState) -> TopicFact:
    return TopicFact(
        name=state.name,
        topic_id=state.topic_id,
        partitions=state.partitions,
        replicas=state.replicas,
        config={
            key: value if isinstance(value, int | str) else str(value)
            for key, value in state.config.items()
        },
        under_replicated=state.under_replicated,
        moving=Moving(total=state.moving, done=state.moved) if state.moving else None,
    )


def _name(raw: JsonObject) -> Name:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]


def _now() -> float:
    return asyncio.get_running_loop().time()
