"""What to do about one topic.

The resource rules what it names: partitions, replicas, and the settings in `config`. Settings that
it doesn't name are left as they are, also when it adopts a topic that exists; one that it has set
and doesn't name any more goes back to the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.operator.core.conditions import Condition, rendered
from headrace.operator.core.live_config import is_same
from headrace.operator.core.observed import Moving
from headrace.operator.core.part import not_ready, progressing
from headrace.operator.core.resources import Resource, conflict
from headrace.operator.spec import ConfigValue, JsonObject, TopicSpec

GIVE_UP_S = 600.0
"""Seconds after which a resource goes although no broker could be asked to delete its topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFact:
    """A topic as the brokers have it. `config`: what is set for this topic, not defaults."""

    name: str
    topic_id: str
    partitions: int
    replicas: int
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    under_replicated: int = 0
    moving: Moving | None = None


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Makes it."""

    name: str
    partitions: int | None
    replicas: int | None
    config: Mapping[str, ConfigValue]


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Changes settings (None: default), adds partitions."""

    name: str
    config: Mapping[str, ConfigValue | None]
    partitions: int | None


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Moves data until each partition has so many replicas."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Removes it with its records."""

    name: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The resource isn't gone before its topic is."""


@dataclass(frozen=True, slots=True)
class Release:
    """The resource may go. `warning`: what is left behind."""

    warning: str = ""


TopicAction = CreateTopic | AlterTopic | SetReplicas | DeleteTopic | Hold | Release
TopicResource = Resource[TopicSpec]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What to do, and what to say."""

    actions: tuple[TopicAction, ...] = ()
    conditions: tuple[Condition, ...] = ()


def plan_topic(resource: TopicResource, fact: TopicFact | None, ruler: TopicResource) -> TopicPlan:
    """The next steps, where the brokers answer. `fact` None: there is no such topic."""
    if resource.deleting_s is not None:
        return _plan_deletion(resource, fact, ruler)
    if ruler.uid != resource.uid:
        release = (Release(),) if resource.has_finalizer else ()
        return TopicPlan(release, (conflict("topic", ruler),))
    held = _plan_finalizer(resource)
    if held:
        return TopicPlan(held, (progressing("Pending", "about to be looked at"),))
    if fact is None:
        spec = resource.spec
        create = CreateTopic(resource.subject, spec.partitions, spec.replicas, dict(spec.config))
        return TopicPlan((create,))
    return _plan_changes(resource, fact)


def plan_without_cluster(resource: TopicResource, why: Condition) -> TopicPlan:
    """The BrokerCluster isn't there, or is going: nothing can be done, and nothing is held."""
    if not resource.has_finalizer:
        return TopicPlan(conditions=(why,))
    warning = ""
    if resource.deleting_s is not None and resource.spec.deletion_policy == "Delete":
        warning = f"topic {resource.subject!r} wasn't deleted: {why.message}"
    return TopicPlan((Release(warning),), (why,))


def plan_without_brokers(resource: TopicResource, message: str) -> TopicPlan:
    """No broker answers: a deletion waits for a while, then the resource goes without."""
    why = not_ready("BrokerUnavailable", message)
    if resource.deleting_s is None or not resource.has_finalizer:
        return TopicPlan(conditions=(why,))
    if resource.spec.deletion_policy == "Delete" and resource.deleting_s < GIVE_UP_S:
        return TopicPlan(conditions=(why,))
    warning = f"topic {resource.subject!r} wasn't deleted, for {GIVE_UP_S:.0f} s no broker answered"
    return TopicPlan((Release(warning if resource.spec.deletion_policy == "Delete" else ""),))


def _plan_finalizer(resource: TopicResource) -> tuple[TopicAction, ...]:
    is_wanted = resource.spec.deletion_policy == "Delete"
    if is_wanted == resource.has_finalizer:
        return ()
    return (Hold(),) if is_wanted else (Release(),)


def _plan_deletion(
    resource: TopicResource, fact: TopicFact | None, ruler: TopicResource
) -> TopicPlan:
    if not resource.has_finalizer:
        return TopicPlan()
    is_ruled = ruler.uid == resource.uid and resource.spec.deletion_policy == "Delete"
    if fact is None or not is_ruled:
        return TopicPlan((Release(),))
    known = resource.status.get("topicId")
    if known and known != fact.topic_id:
        told = (
            f"topic {resource.subject!r} stays: it was made anew by somebody else"
            f" (id {fact.topic_id}, this resource had {known})"
        )
        return TopicPlan((Release(told),))
    return TopicPlan((DeleteTopic(resource.subject),))


def _plan_changes(resource: TopicResource, fact: TopicFact) -> TopicPlan:
    spec, actions, conditions = resource.spec, [], []
    config = _changed_config(resource, fact)
    partitions = None
    if spec.partitions is not None and spec.partitions > fact.partitions:
        partitions = spec.partitions
    if config or partitions is not None:
        actions.append(AlterTopic(resource.subject, config, partitions))
    if spec.partitions is not None and spec.partitions < fact.partitions:
        conditions.append(_cannot_shrink(resource, fact))
    found: list[TopicAction] = [*actions]
    if fact.moving is not None:
        told = f"{fact.moving.done} of {fact.moving.total} partitions moved"
        conditions.append(progressing("Reassigning", told))
    elif spec.replicas is not None and spec.replicas != fact.replicas:
        found.append(SetReplicas(resource.subject, spec.replicas))
        told = f"from {fact.replicas} to {spec.replicas} replicas"
        conditions.append(progressing("Reassigning", told))
    return TopicPlan(tuple(found), tuple(conditions))


def _changed_config(resource: TopicResource, fact: TopicFact) -> dict[str, ConfigValue | None]:
    wanted = resource.spec.config
    changes: dict[str, ConfigValue | None] = {
        key: value
        for key, value in sorted(wanted.items())
        if key not in fact.config or not is_same(fact.config[key], value)
    }
    gone = [key for key in resource.status.get("managedConfig") or () if key not in wanted]
    return changes | {key: None for key in gone if key in fact.config}


def _cannot_shrink(resource: TopicResource, fact: TopicFact) -> Condition:
    told = (
        f"the topic has {fact.partitions} partitions and can't get fewer, since records keep their"
        f" partition: set spec.partitions to {fact.partitions}, or use another topic"
    )
    return not_ready("NotSupported", told)


def topic_status(
    resource: TopicResource,
    fact: TopicFact | None,
    planned: tuple[Condition, ...],
    *,
    now: str,
) -> JsonObject:
    """All of `status`. `now`: RFC 3339."""
    before = resource.status
    found: JsonObject = {
        "observedGeneration": resource.generation,
        "topicName": resource.subject,
    }
    conditions = list(planned)
    if fact is not None:
        found |= _told_by_brokers(resource, fact)
        if fact.under_replicated:
            told = f"{fact.under_replicated} partitions have fewer in-sync replicas than replicas"
            conditions.append(Condition("Degraded", "True", "UnderReplicated", told))
    else:
        kept = ("topicId", "partitions", "replicas", "managedConfig")
        found |= {key: before[key] for key in kept if key in before}
    if not any(each.type == "Ready" for each in conditions):
        ready = "True" if fact is not None else "False"
        reason, told = ("AllIsWell", "The topic is as it should be.")
        if fact is None:
            reason, told = ("Pending", "the topic is being made")
        conditions.append(Condition("Ready", "True" if ready == "True" else "False", reason, told))
    found["conditions"] = rendered(
        conditions,
        before.get("conditions") or [],
        generation=resource.generation,
        now=now,
    )
    return found


def _told_by_brokers(resource: TopicResource, fact: TopicFact) -> JsonObject:
    found: JsonObject = {
        "topicId": fact.topic_id,
        "partitions": fact.partitions,
        "replicas": fact.replicas,
        "underReplicated": fact.under_replicated,
    }
    managed = sorted(
        key
        for key in {*(resource.status.get("managedConfig") or ()), *resource.spec.config}
        if key in fact.config
    )
    if managed:
        found["managedConfig"] = managed
    if fact.moving is not None:
        moving = fact.moving
        found["reassignment"] = {"total": moving.total, "done": moving.done}
        if moving.bytes_remaining is not None:
            found["reassignment"]["bytesRemaining"] = moving.bytes_remaining
    return found
