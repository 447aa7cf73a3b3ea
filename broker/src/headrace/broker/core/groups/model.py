"""A consumer group as values, and the changes that make one out of another.

A group is what its records in `__offsets` say; `Group.with_changes` takes them, whether they come
from a decision (`machine`) or from the log. Each kind of change has a key of its own, so that the
order in which compaction leaves them doesn't matter. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from headrace.protocol.ids import TopicIdPartition

NOT_JOINED = 0
"""The epoch that a member says which hasn't heard an answer yet."""

Partitions = frozenset[TopicIdPartition]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member asks for and how it lives. `version` counts its own changes, so that an older
    request that arrives late changes nothing."""

    topics: tuple[str, ...]
    version: int = 0
    instance_id: str | None = None
    rack: str | None = None
    assignor: str = "uniform"
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    has_left: bool = False
    """A static member that closed and may come back within its session."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a member was told last: the step's number, what it owns with the number of the step that
    gave it, and what it is to give up. It owns both until it confirms the step.

    A member that hasn't heard of the step yet still says `previous_epoch`."""

    epoch: int
    previous_epoch: int
    assigned: Mapping[TopicIdPartition, int]
    revoking: Mapping[TopicIdPartition, int]

    def given_at(self, where: TopicIdPartition) -> int | None:
        """The step that gave the partition; None if the member doesn't own it."""
        found = self.assigned.get(where)
        return self.revoking.get(where) if found is None else found


@dataclass(frozen=True, slots=True)
class Header:
    """The group itself. `epoch` is a number not used by any step so far or at most the last one;
    `members_epoch` the last change of members or subscriptions, `target_epoch` the one that the
    targets were made for."""

    epoch: int = 0
    members_epoch: int = 0
    target_epoch: int = 0
    empty_since_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeaderSet:
    """The group's own record; None: the group is gone."""

    value: Header | None


@dataclass(frozen=True, slots=True)
class SubscriptionSet:
    """A member joined, changed or (None) is gone."""

    member_id: str
    value: Subscription | None


@dataclass(frozen=True, slots=True)
class TargetSet:
    """What a member is to own in the end."""

    member_id: str
    value: Partitions | None


@dataclass(frozen=True, slots=True)
class StepSet:
    """What a member is told."""

    member_id: str
    value: Step | None


Change = HeaderSet | SubscriptionSet | TargetSet | StepSet
NOTHING: Partitions = frozenset()


@dataclass(frozen=True)
class Group:
    """One group at one moment. `confirmed` is not in the log: the last step that each member has
    confirmed to this coordinator."""

    name: str
    header: Header = Header()
    members: Mapping[str, Subscription] = field(default_factory=dict)
    targets: Mapping[str, Partitions] = field(default_factory=dict)
    steps: Mapping[str, Step] = field(default_factory=dict)
    confirmed: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def owners(self) -> dict[TopicIdPartition, str]:
        """Who owns each partition, given up but not yet confirmed included."""
        found: dict[TopicIdPartition, str] = {}
        for member_id, step in self.steps.items():
            found.update(dict.fromkeys(step.assigned, member_id))
            found.update(dict.fromkeys(step.revoking, member_id))
        return found

    @cached_property
    def epoch(self) -> int:
        """The highest number used so far; the next one is above it, so that no member and no
        partition is ever told of two things by one number."""
        return max(self.header.epoch, *(step.epoch for step in self.steps.values()), 0)

    @property
    def is_stale(self) -> bool:
        """Whether members changed since the targets were made."""
        return self.header.target_epoch < self.header.members_epoch

    def target(self, member_id: str) -> Partitions:
        """What the member is to own in the end."""
        return self.targets.get(member_id, NOTHING)

    def is_settled(self, member_id: str) -> bool:
        """Whether the member owns what it is to own, and knows."""
        step = self.steps.get(member_id)
        return (
            step is not None
            and not step.revoking
            and self.confirmed.get(member_id) == step.epoch
            and step.assigned.keys() == self.target(member_id)
        )

    def holder_of(self, instance_id: str) -> str | None:
        """The member of that instance id."""
        for member_id, subscription in self.members.items():
            if subscription.instance_id == instance_id:
                return member_id
        return None

    def with_confirmed(self, member_id: str, epoch: int) -> Group:
        """The member has said that it did the step."""
        if self.confirmed.get(member_id) == epoch:
            return self
        made = replace(self, confirmed={**self.confirmed, member_id: epoch})
        for name in ("owners", "epoch"):
            if name in self.__dict__:
                made.__dict__[name] = self.__dict__[name]
        return made

    def with_changes(self, changes: Iterable[Change]) -> Group:
        """The group after the changes, in their order."""
        changes = list(changes)
        if all(isinstance(change, StepSet) for change in changes):
            return self._with_steps([each for each in changes if isinstance(each, StepSet)])
        header, members = self.header, dict(self.members)
        targets, steps = dict(self.targets), dict(self.steps)
        for change in changes:
            match change:
                case HeaderSet(value):
                    header = value or Header()
                case SubscriptionSet(member_id, value):
                    _put(members, member_id, value)
                case TargetSet(member_id, value):
                    _put(targets, member_id, value)
                case StepSet(member_id, value):
                    _put(steps, member_id, value)
        confirmed = {each: epoch for each, epoch in self.confirmed.items() if each in members}
        return Group(self.name, header, members, targets, steps, confirmed)

    def _with_steps(self, changes: Sequence[StepSet]) -> Group:
        """The same where only steps change: a change of one member in a large group costs no more
        than a copy of `owners`, which is brought up to date instead of made anew."""
        steps, owners, epoch = dict(self.steps), dict(self.owners), self.epoch
        for member_id, value in ((each.member_id, each.value) for each in changes):
            before = steps.get(member_id)
            for where in () if before is None else (*before.assigned, *before.revoking):
                if owners.get(where) == member_id:
                    del owners[where]
            _put(steps, member_id, value)
            if value is not None:
                owners.update(dict.fromkeys((*value.assigned, *value.revoking), member_id))
                epoch = max(epoch, value.epoch)
        made = replace(self, steps=steps)
        made.__dict__["owners"] = owners
        if all(each.value is not None for each in changes):
            made.__dict__["epoch"] = epoch
        return made


def _put(where: dict[str, T], key: str, value: T | None) -> None:
    if value is None:
        where.pop(key, None)
    else:
        where[key] = value
