"""How many pods there shall be, and where data goes when brokers come and go.

Out: the pods are added at once; brokers that carry less than half their share are given data.
In: the leaving brokers are cordoned and drained, and only those that hold nothing any more are
removed, the highest ordinals first. Setting `replicas` back ends it: the move is called off and the
brokers are uncordoned. Which brokers this operator has cordoned is noted on the StatefulSet before
it does so; those that a person has cordoned are left so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.operator import names
from headrace.operator.core.actions import Action, CancelMoves, Cordon, Drain, Rebalance, Uncordon
from headrace.operator.core.conditions import Condition
from headrace.operator.core.observed import Admin, Cluster
from headrace.operator.core.part import Part, not_ready, progressing
from headrace.operator.core.pods import annotation, is_set


@dataclass(frozen=True, slots=True)
class Size:
    """What the StatefulSet shall say: pods, and the brokers that the operator has cordoned."""

    replicas: int
    cordoned: frozenset[int]


def leaving(seen: Cluster) -> tuple[int, ...]:
    """Ordinals of pods that are more than the spec asks for."""
    return tuple(range(seen.spec.replicas, max(seen.replicas or 0, seen.spec.replicas)))


def cordoned_by_us(seen: Cluster) -> frozenset[int]:
    """The note on the StatefulSet."""
    found = seen.stateful_set
    text = "" if found is None else annotation(found, names.CORDONED) or ""
    return frozenset(int(each) for each in text.split(",") if each.strip().isdecimal())


def note(cordoned: Collection[int]) -> str:
    """The note's text."""
    return ",".join(str(each) for each in sorted(cordoned))


def size(seen: Cluster) -> Size:
    """What the StatefulSet shall say now."""
    going, noted = leaving(seen), cordoned_by_us(seen)
    if not going:
        return Size(seen.spec.replicas, noted - _free_again(seen, noted))
    if is_set({"metadata": {"annotations": seen.annotations}}, names.SKIP_SCALE_DOWN_CHECK):
        return Size(seen.spec.replicas, noted)
    replicas = _emptied_to(seen, going)
    return Size(replicas, frozenset((noted | set(going)) - _free_again(seen, noted)))


def _free_again(seen: Cluster, noted: frozenset[int]) -> frozenset[int]:
    """Brokers that stay, or came back, and aren't cordoned any more."""
    admin = seen.admin
    if admin is None:
        return frozenset()
    brokers = admin.brokers
    return frozenset(
        each
        for each in noted
        if each < seen.spec.replicas and each in brokers and not brokers[each].cordoned
    )


def _emptied_to(seen: Cluster, going: tuple[int, ...]) -> int:
    """The least number of pods with which only brokers without data are removed."""
    replicas = going[-1] + 1
    noted = cordoned_by_us(seen)
    for each in reversed(going):
        if each not in noted or not _is_empty(seen.admin, each):
            break
        replicas = each
    return replicas


def _is_empty(admin: Admin | None, broker_id: int) -> bool:
    """Whether it holds nothing and gets nothing. A pod whose broker never registered is empty."""
    if admin is None:
        return False
    broker = admin.brokers.get(broker_id)
    if broker is None:
        return True
    return broker.cordoned and broker.replicas == 0


def plan_scale(seen: Cluster) -> Part:
    """What brokers are asked to do."""
    admin = seen.admin
    if admin is None:
        if leaving(seen):
            return Part(
                conditions=(not_ready("Draining", "brokers are to go, but none of them answers"),)
            )
        return Part()
    if leaving(seen):
        return _plan_in(seen, admin)
    back = _plan_back(seen, admin)
    return back if back.actions else _plan_out(seen, admin)


def _plan_in(seen: Cluster, admin: Admin) -> Part:
    going, noted = leaving(seen), cordoned_by_us(seen)
    if not noted.issuperset(going):
        return Part(conditions=(_draining(admin, going),), holds=True)
    known = [each for each in going if each in admin.brokers]
    actions: list[Action] = [Cordon(each) for each in known if not admin.brokers[each].cordoned]
    actions += [Uncordon(each) for each in sorted(_returning(seen, admin))]
    if actions:
        return Part(tuple(actions), (_draining(admin, going),), holds=True)
    full = tuple(each for each in known if admin.brokers[each].replicas != 0)
    if not full:
        return Part(conditions=(_draining(admin, going),))
    moving = admin.moving
    if moving is not None:
        is_wrong = not moving.cancelling and not moving.onto.isdisjoint(going)
        called_off = (CancelMoves(),) if is_wrong else ()
        return Part(called_off, (_draining(admin, going),))
    if admin.refusals:
        return Part(conditions=blocked(admin))
    return Part((Drain(full),), (_draining(admin, going),))


def to_drain(seen: Cluster) -> tuple[int, ...]:
    """Brokers about which `gather` asks beforehand whether they could be drained."""
    admin = seen.admin
    if admin is None or admin.moving is not None:
        return ()
    brokers = admin.brokers
    return tuple(each for each in leaving(seen) if each in brokers and brokers[each].replicas)


def blocked(admin: Admin) -> tuple[Condition, ...]:
    """Why brokers can't be emptied."""
    if not admin.refusals:
        return ()
    told = [f"{topic}: {reason}" if topic else reason for topic, reason in admin.refusals.items()]
    more = f" (and {len(told) - 3} more)" if len(told) > 3 else ""
    message = (
        f"{'; '.join(told[:3])}{more}. Set spec.replicas back, reduce the replicas of these topics,"
        " or delete them."
    )
    return (
        Condition("ScaleDownBlocked", "True", "ReplicationCantBeKept", message),
        not_ready("ScaleDownBlocked", message),
    )


def _draining(admin: Admin, going: tuple[int, ...]) -> Condition:
    left = sum(admin.brokers[each].replicas or 0 for each in going if each in admin.brokers)
    brokers = ", ".join(str(each) for each in going)
    return not_ready(
        "Draining", f"broker(s) {brokers} are emptied before they go: {left} replicas left"
    )


def _returning(seen: Cluster, admin: Admin) -> set[int]:
    return {
        each
        for each in cordoned_by_us(seen)
        if each < seen.spec.replicas and each in admin.brokers and admin.brokers[each].cordoned
    }


def _plan_back(seen: Cluster, admin: Admin) -> Part:
    """Scaling in was called off, or brokers came back that had been emptied."""
    back = sorted(_returning(seen, admin))
    if not back:
        return Part()
    actions: list[Action] = [] if admin.moving is None else [CancelMoves()]
    actions += [Uncordon(each) for each in back]
    told = progressing("ScaleDownCancelled", "brokers that were to go stay and get data again")
    return Part(tuple(actions), (told,), holds=True)


def _plan_out(seen: Cluster, admin: Admin) -> Part:
    if admin.moving is not None:
        moving = admin.moving
        told = f"{moving.done} of {moving.total} partitions moved"
        return Part(conditions=(progressing("Reassigning", told),))
    if wants_spread(seen, admin) and admin.spread_moves != 0:
        return Part((Rebalance(),), (progressing("Reassigning", "new brokers are given data"),))
    return Part()


def wants_spread(seen: Cluster, admin: Admin) -> bool:
    """Whether data is to be spread; `gather` asks beforehand if that would move anything (racks
    and small numbers of partitions can keep brokers as uneven as they are)."""
    is_still = admin.moving is None and not leaving(seen)
    return is_still and seen.spec.rebalance.auto and is_uneven(seen, admin)


def is_uneven(seen: Cluster, admin: Admin) -> bool:
    """Whether all brokers of the spec are there, and one carries less than half its share."""
    wanted = range(seen.spec.replicas)
    brokers = [admin.brokers.get(each) for each in wanted]
    usable = [each for each in brokers if each is not None and not each.cordoned]
    if len(usable) < len(wanted) or any(each.state != "running" for each in usable):
        return False
    share = admin.replicas // len(wanted)
    return any((each.replicas or 0) * 2 < share for each in usable)
