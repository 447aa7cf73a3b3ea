"""The whole plan for a BrokerCluster, put together from one planner for each concern.

    objects → storage → live settings → brokers come and go → one restart at most

Each pass does what can be done now; what has to be seen first waits for the next. Nothing here
remembers: the plan for a state is the same whoever makes it, and empty when all is as it should be.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.operator import names
from headrace.operator.builders.brokers import stateful_set
from headrace.operator.builders.config import secret
from headrace.operator.builders.whole import plain_objects
from headrace.operator.core import live_config, pods, scale
from headrace.operator.core.actions import Action, AnnotatePod
from headrace.operator.core.conditions import Condition
from headrace.operator.core.objects import Foreign, plan_object
from headrace.operator.core.observed import Cluster
from headrace.operator.core.part import Part, not_ready
from headrace.operator.core.roll import plan_roll
from headrace.operator.core.scale import plan_scale
from headrace.operator.core.storage import plan_storage
from headrace.operator.spec import JsonObject


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and what to say."""

    actions: tuple[Action, ...]
    conditions: tuple[Condition, ...]


def plan_cluster(seen: Cluster, *, new_secret: str) -> Plan:
    """The next steps. `new_secret`: for a cluster that has none yet."""
    objects = _plan_objects(seen, new_secret)
    later = [plan_storage(seen), live_config.plan_live_config(seen)]
    moves = plan_scale(seen)
    later += [moves, _plan_racks(seen)]
    if not (objects.holds or objects.actions or moves.holds):
        later.append(plan_roll(seen))
    if objects.holds:
        later = [Part(conditions=part.conditions) for part in later]
    parts = [objects, *later]
    return Plan(
        tuple(action for part in parts for action in part.actions),
        tuple(condition for part in parts for condition in part.conditions),
    )


def wanted_objects(seen: Cluster, new_secret: str) -> list[JsonObject]:
    """All objects, as they should be now."""
    owner, size = seen.owner, scale.size(seen)
    notes = {names.LIVE_CONFIG: live_config.note(seen), names.CORDONED: scale.note(size.cordoned)}
    brokers = stateful_set(
        owner,
        seen.spec,
        replicas=size.replicas,
        annotations=notes,
        rolled_for=rolled_for(seen),
    )
    return [secret(owner, new_secret), *plain_objects(owner, seen.spec), brokers]


def rolled_for(seen: Cluster) -> str | None:
    """What a person wrote to have all brokers restarted; taking it away restarts nothing."""
    asked = seen.annotations.get(names.ROLL)
    if asked:
        return asked
    found = seen.stateful_set
    return None if found is None else pods.annotation(found["spec"]["template"], names.ROLLED_FOR)


def _plan_objects(seen: Cluster, new_secret: str) -> Part:
    actions: list[Action] = []
    for wanted in wanted_objects(seen, new_secret):
        step = plan_object(seen, wanted)
        if isinstance(step, Foreign):
            return Part(conditions=(_in_the_way(step),), holds=True)
        if step is not None:
            actions.append(step)
    return Part(tuple(actions))


def _in_the_way(foreign: Foreign) -> Condition:
    what = f"{foreign.kind} {foreign.name}"
    if foreign.is_leftover:
        told = f"{what} of an earlier cluster of this name is still there; waiting until it is gone"
        return not_ready("Pending", told)
    told = f"{what} exists and isn't this cluster's: delete it, or give the cluster another name"
    return not_ready("ResourceConflict", told)


def _plan_racks(seen: Cluster) -> Part:
    return Part(
        tuple(
            AnnotatePod(seen.pods[each]["metadata"]["name"], {names.RACK: rack})
            for each, rack in sorted(seen.racks.items())
            if each in seen.pods
            if pods.annotation(seen.pods[each], names.RACK) != rack
        )
    )
