"""What to do about one consumer group: where it starts, resets by id, how it is.

The resource rules policy, never who is a member. Offsets are only set while the group has no
members; that a reset was done is known by `status.lastResetId`, and by what the offsets themselves
carry, should the operator have died in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.operator.core.conditions import Condition, rendered
from headrace.operator.core.part import not_ready, progressing, warning
from headrace.operator.core.resources import Resource, conflict
from headrace.operator.spec import ConsumerGroupSpec, JsonObject, Reset

RESET_MARK = "headrace.dev/reset="
"""Metadata of offsets that a reset has committed: this and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed offset. `lag` is None where the leader can't be asked."""

    topic: str
    partition: int
    lag: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFact:
    """A group as its coordinator has it; one that nobody has used yet is Empty. `topics`: those of
    the spec that exist."""

    state: str = "Empty"
    members: int = 0
    offsets: tuple[Committed, ...] = ()
    topics: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class SetOffsets:
    """Commits offsets in the group's name, in all partitions of topics. `mark`: their metadata."""

    group: str
    topics: tuple[str, ...]
    to: str
    mark: str = ""


GroupResource = Resource[ConsumerGroupSpec]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What to do, what to say, and what status is to remember once the actions are done."""

    actions: tuple[SetOffsets, ...] = ()
    conditions: tuple[Condition, ...] = ()
    remembered: Mapping[str, object] = field(default_factory=dict)


def plan_group(resource: GroupResource, fact: GroupFact, ruler: GroupResource) -> GroupPlan:
    """The next steps, where the brokers answer."""
    if resource.deleting_s is not None:
        return GroupPlan()
    if ruler.uid != resource.uid:
        return GroupPlan(conditions=(conflict("group", ruler),))
    if resource.spec.type == "queue":
        told = "type queue isn't there yet in this version: use stream or broadcast"
        return GroupPlan(conditions=(not_ready("NotSupported", told),))
    reset = _plan_reset(resource, fact)
    if reset.actions:
        return reset
    start = _plan_start(resource, fact)
    return GroupPlan(
        start.actions,
        (*reset.conditions, *start.conditions),
        {**reset.remembered, **start.remembered},
    )


def _plan_reset(resource: GroupResource, fact: GroupFact) -> GroupPlan:
    reset = resource.spec.reset
    if reset is None or resource.status.get("lastResetId") == reset.id:
        return GroupPlan()
    if any(each.metadata == RESET_MARK + reset.id for each in fact.offsets):
        return GroupPlan(remembered={"lastResetId": reset.id})
    topics = _topics_of(resource, fact, reset)
    missing = [each for each in topics if each in resource.spec.topics and each not in fact.topics]
    if not topics or missing:
        what = f"topics {', '.join(missing)} don't exist" if missing else "no topics are named"
        return GroupPlan(conditions=(_pending(f"reset {reset.id!r} waits: {what}"),))
    if fact.members:
        told = f"reset {reset.id!r} waits until the group is empty; it has {fact.members} members"
        return GroupPlan(conditions=(_pending(told),))
    action = SetOffsets(resource.subject, topics, reset.to, RESET_MARK + reset.id)
    done = {"lastResetId": reset.id, "initialised": _initialised(resource, topics)}
    return GroupPlan((action,), remembered=done)


def _topics_of(resource: GroupResource, fact: GroupFact, reset: Reset) -> tuple[str, ...]:
    named = reset.topics or resource.spec.topics or [each.topic for each in fact.offsets]
    return tuple(sorted(set(named)))


def _pending(message: str) -> Condition:
    return progressing("ResetPending", message)


def _plan_start(resource: GroupResource, fact: GroupFact) -> GroupPlan:
    """Before a group's first member comes, and only then; a topic it has read has its place."""
    start = resource.spec.start_from
    if start is None:
        return GroupPlan()
    open_topics = set(resource.spec.topics) - set(resource.status.get("initialised") or ())
    there = sorted(open_topics & fact.topics)
    used = {each.topic for each in fact.offsets}
    fresh = tuple(each for each in there if each not in used and not fact.members)
    missing = sorted(open_topics - fact.topics)
    told = f"topics that don't exist yet: {', '.join(missing)}"
    conditions = (warning("TopicNotFound", told),) if missing else ()
    remembered = {"initialised": _initialised(resource, there)} if there else {}
    actions = (SetOffsets(resource.subject, fresh, start),) if fresh else ()
    return GroupPlan(actions, conditions, remembered)


def _initialised(resource: GroupResource, more: list[str] | tuple[str, ...]) -> list[str]:
    return sorted({*(resource.status.get("initialised") or ()), *more})


def group_status(
    resource: GroupResource,
    fact: GroupFact | None,
    planned: tuple[Condition, ...],
    remembered: Mapping[str, object],
    *,
    now: str,
) -> JsonObject:
    """All of `status`. `now`: RFC 3339."""
    before = resource.status
    kept = ("lastResetId", "initialised")
    found: JsonObject = {
        "observedGeneration": resource.generation,
        "groupName": resource.subject,
        **{key: before[key] for key in kept if key in before},
        **remembered,
    }
    conditions = list(planned)
    if fact is not None:
        lags = lag_by_topic(fact)
        found |= {"state": fact.state, "members": fact.members, "lag": sum(lags.values())}
        found["topics"] = [{"name": name, "lag": lag} for name, lag in sorted(lags.items())]
        conditions += _lag_condition(resource, sum(lags.values()))
    if not any(each.type == "Ready" for each in conditions):
        conditions.append(Condition("Ready", "True", "AllIsWell", "The group is as it should be."))
    found["conditions"] = rendered(
        conditions, before.get("conditions") or [], generation=resource.generation, now=now
    )
    return found


def lag_by_topic(fact: GroupFact) -> dict[str, int]:
    """Records not committed yet, as far as leaders could be asked."""
    found: dict[str, int] = {}
    for each in fact.offsets:
        found[each.topic] = found.get(each.topic, 0) + (each.lag or 0)
    return found


def _lag_condition(resource: GroupResource, lag: int) -> list[Condition]:
    most = resource.spec.max_lag
    if most is None:
        return []
    if lag > most:
        return [Condition("LagHigh", "True", "LagHigh", f"{lag} records behind, {most} allowed")]
    return [Condition("LagHigh", "False", "LagLow", f"at most {most} records behind")]
