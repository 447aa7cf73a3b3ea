"""Consumer groups of the in-memory cluster: what brokers answer to members, in a few lines.

Shares no code with the brokers, so that the tests which run against both compare two minds. Each
member is told one step at a time: first what to give up; once that is confirmed, what is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.protocol import models
from headrace.protocol.errors import (
    Fenced,
    GroupNotEmpty,
    GroupNotFound,
    InstanceInUse,
    InvalidRequest,
    UnknownMember,
)
from headrace.protocol.ids import TopicId

Place = tuple[TopicId, int]
"""A partition."""


class MemoryCommit(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int


@dataclass(slots=True)
class MemoryMember:
    """A member. `has` says in which step each partition was given; `gives_up` are still its own."""

    body: models.GroupHeartbeat
    seen_at: float
    epoch: int
    before: int = 0
    confirmed: bool = False
    has_left: bool = False
    topics_version: int = 0
    topics: tuple[str, ...] = ()
    has: dict[Place, int] = field(default_factory=dict)
    gives_up: dict[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryGroup:
    """A group: its members, the plan (who is to have what) and the committed offsets."""

    members: dict[str, MemoryMember] = field(default_factory=dict)
    plan: dict[Place, str] = field(default_factory=dict)
    offsets: dict[Place, MemoryCommit] = field(default_factory=dict)
    departed: set[str] = field(default_factory=set)
    number: int = 0

    def next_number(self) -> int:
        """A number for a step, never used before."""
        self.number += 1
        return self.number


class MemoryGroups:
    """All groups. `places` lists a topic's partitions, `now` is a monotonic clock in seconds."""

    def __init__(self, places: Callable[[str], list[Place]], now: Callable[[], float]) -> None:
        self.groups: dict[str, MemoryGroup] = {}
        self._places = places
        self._now = now

    def of(self, name: str) -> MemoryGroup:
        """The group, brought up to date: silent members are gone, the plan fits the topics."""
        group = self.groups.setdefault(name, MemoryGroup())
        now = self._now()
        for member_id, member in list(group.members.items()):
            if (now - member.seen_at) * 1000 > member.body.session_timeout_ms:
                self._remove(group, member_id)
        self._make_plan(group)
        return group

    # --- members ---------------------------------------------------------------------------------

    def beat(self, name: str, body: models.GroupHeartbeat) -> models.GroupHeartbeatAnswer:
        """One heartbeat; `news` then tells the step.

        Raises:
            UnknownMember, Fenced, InstanceInUse, InvalidRequest: as brokers do.
        """
        group = self.of(name)
        if body.epoch < 0:
            self._leave(group, body)
            return models.GroupHeartbeatAnswer(body.member_id, body.epoch, 0, [])
        member = group.members.get(body.member_id)
        if member is None:
            member = self._join(name, group, body)
        elif body.epoch == member.epoch:
            member.confirmed = True
        elif body.epoch not in (0, member.before):
            raise Fenced(f"member {body.member_id!r} was told epoch {member.epoch}")
        member.seen_at = self._now()
        if body.topics is not None and body.topics_version > member.topics_version:
            member.topics_version, member.topics = body.topics_version, tuple(body.topics)
        self._make_plan(group)
        return models.GroupHeartbeatAnswer(
            body.member_id, member.epoch, member.body.session_timeout_ms
        )

    def news(self, name: str, body: models.GroupHeartbeat) -> tuple[int, list[Place]] | None:
        """The member's step, if it hasn't heard of it.

        Raises:
            UnknownMember: it was removed.
        """
        group = self.of(name)
        member = group.members.get(body.member_id)
        if member is None:
            raise UnknownMember(f"group {name!r} has no member {body.member_id!r} any more")
        for each in list(group.members) * 2:  # What one gave up, another one may get.
            self._advance(group, each)
        if member.epoch in (body.epoch, body.heard_epoch):
            return None
        return member.epoch, sorted(member.has)

    def _join(self, name: str, group: MemoryGroup, body: models.GroupHeartbeat) -> MemoryMember:
        if body.epoch != 0 or body.member_id in group.departed:
            raise UnknownMember(f"group {name!r} has no member {body.member_id!r} any more")
        if body.topics is None:
            raise InvalidRequest("a member that joins (epoch 0) says its topics")
        made = MemoryMember(body, self._now(), group.next_number())
        for member_id, member in list(group.members.items()):
            if body.instance_id is not None and member.body.instance_id == body.instance_id:
                if not member.has_left:
                    raise InstanceInUse(
                        f"instance id {body.instance_id!r} is in use", retry_after_ms=100
                    )
                made.has = dict.fromkeys(member.has, made.epoch)
                group.plan = {
                    where: body.member_id if owner == member_id else owner
                    for where, owner in group.plan.items()
                }
                del group.members[member_id]
                group.departed.add(member_id)
        group.members[body.member_id] = made
        return made

    def _leave(self, group: MemoryGroup, body: models.GroupHeartbeat) -> None:
        member = group.members.get(body.member_id)
        if member is not None and body.epoch == -2 and member.body.instance_id is not None:
            member.has_left, member.gives_up = True, {}
        else:
            self._remove(group, body.member_id)
            self._make_plan(group)

    def _remove(self, group: MemoryGroup, member_id: str) -> None:
        group.members.pop(member_id, None)
        group.departed.add(member_id)

    # --- who is to have what ---------------------------------------------------------------------

    def _make_plan(self, group: MemoryGroup) -> None:
        """Keeps what is, shares out what is free, then levels."""
        readers: dict[Place, list[str]] = {}
        for member_id, member in group.members.items():
            for topic in member.topics:
                for where in self._places(topic):
                    readers.setdefault(where, []).append(member_id)
        plan = {
            where: owner for where, owner in group.plan.items() if owner in readers.get(where, ())
        }
        count = dict.fromkeys(group.members, 0)
        for owner in plan.values():
            count[owner] += 1
        for where in sorted(readers):
            least = min(readers[where], key=lambda each: count[each])
            present = plan.get(where)
            if present is None or count[least] + 1 < count[present]:
                if present is not None:
                    count[present] -= 1
                plan[where] = least
                count[least] += 1
        group.plan = plan

    def _advance(self, group: MemoryGroup, member_id: str) -> None:
        member = group.members[member_id]
        if not member.confirmed and (member.has or member.gives_up):
            return
        member.gives_up = {}
        wanted = {where for where, owner in group.plan.items() if owner == member_id}
        surplus = {where: at for where, at in member.has.items() if where not in wanted}
        taken = {
            where
            for other, each in group.members.items()
            for where in (*each.has, *each.gives_up)
            if other != member_id
        }
        free = sorted(wanted - member.has.keys() - taken)
        if not surplus and not free:
            return
        member.before, member.epoch, member.confirmed = member.epoch, group.next_number(), False
        if surplus:
            member.has = {where: at for where, at in member.has.items() if where in wanted}
            member.gives_up = surplus
        else:
            member.has |= dict.fromkeys(free, member.epoch)

    # --- offsets ---------------------------------------------------------------------------------

    def check_commit(
        self, name: str, request: models.CommitRequest, places: Iterable[Place]
    ) -> dict[Place, Fenced]:
        """The partitions that the caller may not commit.

        Raises:
            UnknownMember, Fenced: it may commit nothing.
        """
        group = self.of(name)
        if not request.member_id:
            if group.members and not request.force:
                raise UnknownMember(f"group {name!r} has live members: only they commit")
            return {}
        member = group.members.get(request.member_id)
        if member is None:
            raise UnknownMember(f"group {name!r} has no member {request.member_id!r} any more")
        if request.member_epoch > member.epoch:
            raise Fenced(f"member {request.member_id!r} was told epoch {member.epoch}")
        owned = member.has | member.gives_up
        return {
            where: Fenced(f"partition {where[1]} isn't owned by {request.member_id!r}")
            for where in places
            if owned.get(where, request.member_epoch + 1) > request.member_epoch
        }

    def delete(self, name: str, *, force: bool) -> None:
        """Forgets a group.

        Raises:
            GroupNotFound, GroupNotEmpty.
        """
        group = self.of(name)
        if group.members and not force:
            raise GroupNotEmpty(f"group {name!r} has live members: stop them first")
        del self.groups[name]
        if not group.members and not group.offsets:
            raise GroupNotFound(f"there is no group {name!r}")

    def describe(
        self, group: MemoryGroup, names: Mapping[TopicId, str]
    ) -> tuple[str, list[models.MemberInfo]]:
        """The group's state and members."""
        infos = [
            models.MemberInfo(
                member_id,
                member.body.instance_id,
                "",
                member.body.rack,
                member.epoch,
                list(member.topics),
                member.body.assignor,
                owned_topics(member.has, names),
                owned_topics(member.gives_up, names),
                owned_topics((w for w, o in group.plan.items() if o == member_id), names),
                member.has_left,
            )
            for member_id, member in group.members.items()
        ]
        if not infos:
            return "Empty", []
        owners = {where: each for each, member in group.members.items() for where in member.has}
        at_rest = owners == group.plan and not any(m.gives_up for m in group.members.values())
        return "Stable" if at_rest else "Reconciling", infos


def owned_topics(places: Iterable[Place], names: Mapping[TopicId, str]) -> list[models.OwnedTopic]:
    """Partitions by topic, as the API says them."""
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(places):
        if topic_id in names:
            found.setdefault(topic_id, []).append(partition)
    return [models.OwnedTopic(names[each], each.hex(), found[each]) for each in found]
