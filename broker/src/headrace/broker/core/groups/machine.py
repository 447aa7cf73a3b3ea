"""The group machine: a group and an event in, the changes to append and the group after them out.

Pure (after KIP-848's CurrentAssignmentBuilder): the caller appends the changes to `__offsets` and
keeps the group only if that worked. How one member gets from what it owns to its target:

    owns too much      REVOKE    told to give up; owns it until it confirms
    confirmed          free      others may have it; then one of
    lacks something    RECEIVE   told what is free of the rest; the others' part comes when freed
    owns its target    settled

A member is told one step at a time, under a number of its own. It says the last number that it has
done, so answers and requests may be lost, repeated or overtake each other: an older number gets the
same step told again, only the step's own number confirms it, any other one is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.broker.core.groups.assignors import Topics, assign, wanted_partitions
from headrace.broker.core.groups.model import (
    NOT_JOINED,
    Change,
    Group,
    Header,
    HeaderSet,
    Step,
    StepSet,
    Subscription,
    SubscriptionSet,
    TargetSet,
)
from headrace.protocol.errors import Fenced, InstanceInUse, UnknownMember
from headrace.protocol.ids import TopicIdPartition

IN_USE_RETRY_MS = 1_000
"""When a static member that is refused shall come again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The group after the event, and what to append for it (nothing: nothing changed)."""

    group: Group
    changes: tuple[Change, ...] = ()


class _Work:
    """A decision in the making: the group so far and the changes that made it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._first = group.epoch  # numbers of members that go must not be used again
        self._changes: list[Change] = []

    def change(self, *changes: Change) -> None:
        self.group = self.group.with_changes(changes)
        self._changes += changes

    def header(self, **values: int) -> None:
        self.change(HeaderSet(replace(self.group.header, **values)))

    def members_changed(self, *, now_ms: int) -> None:
        """A new number for the change; the targets are to be made again."""
        number = max(self._first, self.group.epoch) + 1
        empty_since_ms = 0 if self.group.members else now_ms
        self.header(epoch=number, members_epoch=number, empty_since_ms=empty_since_ms)

    def done(self) -> Outcome:
        return Outcome(self.group, tuple(self._changes))


# --- members -------------------------------------------------------------------------------------


def join(group: Group, member_id: str, subscription: Subscription, *, now_ms: int) -> Outcome:
    """A new member. A static one whose earlier self has left takes over what that had.

    Raises:
        InstanceInUse: the earlier self still lives, or may.
    """
    work = _Work(group)
    earlier = None
    if subscription.instance_id is not None:
        earlier = group.holder_of(subscription.instance_id)
    if earlier is not None:
        _take_over(work, earlier, member_id, subscription, now_ms=now_ms)
    else:
        number = group.epoch + 1
        work.change(
            SubscriptionSet(member_id, subscription),
            StepSet(member_id, Step(number, NOT_JOINED, {}, {})),
        )
        work.members_changed(now_ms=now_ms)
    return work.done()


def _take_over(
    work: _Work, earlier: str, member_id: str, subscription: Subscription, *, now_ms: int
) -> None:
    before, step = work.group.members[earlier], work.group.steps[earlier]
    if not before.has_left:
        raise InstanceInUse(
            f"another member of group {work.group.name!r} has instance id"
            f" {subscription.instance_id!r} and may still live: its session must end first."
            " Give each running member an instance id of its own",
            retry_after_ms=IN_USE_RETRY_MS,
        )
    target, number = work.group.target(earlier), work.group.epoch + 1
    work.change(
        *_tombstones(earlier),
        SubscriptionSet(member_id, subscription),
        TargetSet(member_id, target),
        StepSet(member_id, Step(number, NOT_JOINED, dict.fromkeys(step.assigned, number), {})),
    )
    if (before.topics, before.rack, before.assignor) != (
        subscription.topics,
        subscription.rack,
        subscription.assignor,
    ):
        work.members_changed(now_ms=now_ms)


def heartbeat(
    group: Group, member_id: str, epoch: int, *, subscription: Subscription | None, now_ms: int
) -> Outcome:
    """A member says the last step that it has done; with `subscription` what it asks for. The
    group's `steps[member_id]` is then what the member is to be told.

    Raises:
        UnknownMember: it was removed; it owns nothing and must join again.
        Fenced: a number that this member can't have.
    """
    step = _step_of(group, member_id)
    work = _Work(group)
    if subscription is not None:
        _subscribe(work, member_id, subscription, now_ms=now_ms)
    if epoch == step.epoch:
        work.group = work.group.with_confirmed(member_id, epoch)
    elif epoch not in (NOT_JOINED, step.previous_epoch):
        raise Fenced(
            f"member {member_id!r} of group {group.name!r} says epoch {epoch}, it was told"
            f" {step.epoch}: it must join again",
            details={"epoch": step.epoch},
        )
    _advance(work, member_id)
    return work.done()


def advance(group: Group, member_id: str) -> Outcome:
    """The member's next step, if it has confirmed the last and there is one."""
    work = _Work(group)
    _advance(work, member_id)
    return work.done()


def advance_all(group: Group) -> Outcome:
    """Every member's next step, until there is none: what one has given up, another may get."""
    work = _Work(group)
    moved = True
    while moved:
        before = work.group
        for member_id in group.members:
            _advance(work, member_id)
        moved = work.group is not before
    return work.done()


def leave(group: Group, member_id: str, *, keep: bool, now_ms: int) -> Outcome:
    """A member leaves, owning nothing any more. `keep`: a static one that may come back.

    Raises:
        UnknownMember: it is gone already.
    """
    step = _step_of(group, member_id)
    subscription = group.members[member_id]
    work = _Work(group)
    if keep and subscription.instance_id is not None:
        work.change(SubscriptionSet(member_id, replace(subscription, has_left=True)))
        if step.revoking:
            work.change(StepSet(member_id, replace(step, revoking={})))
    else:
        _remove(work, [member_id], now_ms=now_ms)
    return work.done()


def expire(group: Group, member_ids: Iterable[str], *, awaited: bool, now_ms: int) -> Outcome:
    """Members' sessions, or their times for a step, are over: they own nothing any more. `awaited`:
    a static one of the same instance id is waiting and gets what they had."""
    work = _Work(group)
    gone = []
    for member_id in member_ids:
        subscription = group.members.get(member_id)
        if subscription is None:
            continue
        if awaited and subscription.instance_id is not None and not subscription.has_left:
            work.change(SubscriptionSet(member_id, replace(subscription, has_left=True)))
            work.change(StepSet(member_id, replace(group.steps[member_id], revoking={})))
        else:
            gone.append(member_id)
    if gone:
        _remove(work, gone, now_ms=now_ms)
    return work.done()


def _step_of(group: Group, member_id: str) -> Step:
    step = group.steps.get(member_id)
    if step is None or member_id not in group.members:
        raise UnknownMember(
            f"group {group.name!r} has no member {member_id!r} (any more): it owns nothing and"
            " must join again"
        )
    return step


def _subscribe(work: _Work, member_id: str, wanted: Subscription, *, now_ms: int) -> None:
    before = work.group.members[member_id]
    if wanted.version <= before.version:
        return
    work.change(SubscriptionSet(member_id, replace(wanted, instance_id=before.instance_id)))
    if (before.topics, before.rack, before.assignor) != (
        wanted.topics,
        wanted.rack,
        wanted.assignor,
    ):
        work.members_changed(now_ms=now_ms)


def _remove(work: _Work, member_ids: Iterable[str], *, now_ms: int) -> None:
    for member_id in member_ids:
        work.change(*_tombstones(member_id))
    work.members_changed(now_ms=now_ms)


def _tombstones(member_id: str) -> tuple[Change, ...]:
    return SubscriptionSet(member_id, None), TargetSet(member_id, None), StepSet(member_id, None)


# --- the target ----------------------------------------------------------------------------------


def needs_target(group: Group, topics: Topics) -> bool:
    """Whether members changed, or the topics they read, since the targets were made."""
    if not group.members:
        return group.is_stale
    if group.is_stale:
        return True
    planned = frozenset[TopicIdPartition]().union(*group.targets.values())
    return planned != wanted_partitions(group.members, topics)


def retarget(group: Group, topics: Topics) -> Outcome:
    """Makes the targets again, from those before."""
    work = _Work(group)
    targets = assign(group.members, topics, group.targets)
    work.change(
        *(
            TargetSet(member_id, target)
            for member_id, target in targets.items()
            if target != group.targets.get(member_id)
        )
    )
    if group.is_stale:
        work.header(target_epoch=group.header.members_epoch)
    return work.done()


def delete(group: Group) -> Outcome:
    """Forgets an empty group."""
    return Outcome(Group(group.name), (HeaderSet(None),) if group.header != Header() else ())


# --- one member's next step ----------------------------------------------------------------------


def _advance(work: _Work, member_id: str) -> None:
    group = work.group
    step = group.steps[member_id]
    owns_nothing = not step.assigned and not step.revoking
    if group.confirmed.get(member_id) != step.epoch and not owns_nothing:
        return  # told, not done: nothing else is told before
    if group.is_settled(member_id):
        return
    following = step
    if step.revoking:
        # Confirmed: given up. Who is to have it may get it from now on.
        following = replace(step, revoking={})
    if not group.is_stale:  # else the targets will be others in a moment
        following = _next(group, member_id, following)
    if following is not step:
        work.change(StepSet(member_id, following))


def _next(group: Group, member_id: str, step: Step) -> Step:
    target = group.target(member_id)
    # Partitions to give up = owned - target
    surplus = {where: at for where, at in step.assigned.items() if where not in target}
    if surplus:
        kept = {where: at for where, at in step.assigned.items() if where in target}
        return Step(group.epoch + 1, step.epoch, kept, surplus)
    # Partitions to receive = target - owned - owned by others
    gained = [
        where
        for where in target - step.assigned.keys()
        if group.owners.get(where, member_id) == member_id
    ]
    if not gained:
        return step
    number = group.epoch + 1
    return Step(number, step.epoch, {**step.assigned, **dict.fromkeys(gained, number)}, {})


# --- commits -------------------------------------------------------------------------------------


def check_commit(
    group: Group, member_id: str, epoch: int, partitions: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, Fenced]:
    """Which partitions the member may not commit (G5): those that it doesn't own, and those that it
    was given later than in the step it says (a request of an earlier time; KIP-1251).

    Raises:
        UnknownMember, Fenced: the whole request.
    """
    step = _step_of(group, member_id)
    if epoch > step.epoch:
        raise Fenced(f"member {member_id!r} says epoch {epoch}, it was told {step.epoch}")
    refused = {}
    for where in partitions:
        given = step.given_at(where)
        if given is None or given > epoch:
            refused[where] = Fenced(
                f"partition {where.partition} isn't owned by member {member_id!r} in epoch"
                f" {epoch} (any more): nothing was committed for it"
            )
    return refused
