"""The coordinator of all groups whose partition of `__offsets` this broker leads (G1-G6).

    request → decision (core.groups.machine, pure) → append under the leader epoch → memory
            → wait until it is below the high watermark → answer

A heartbeat may wait here until there is something to tell: news goes out at once, and an idle group
costs a request now and then. Decisions and their appends happen in one turn of the loop, so nothing
comes between a check and what was checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.broker.clock import Clock
from headrace.broker.core.groups import machine
from headrace.broker.core.groups.assignors import Topics
from headrace.broker.core.groups.machine import Outcome
from headrace.broker.core.groups.model import NOT_JOINED, Group, Step, StepSet, Subscription
from headrace.broker.groups import records
from headrace.broker.groups.group_partition import GroupPartition, run_load
from headrace.broker.groups.records import OffsetValue
from headrace.broker.groups.state import partition_for_group
from headrace.broker.partition.partition import Partition
from headrace.protocol.errors import (
    Fenced,
    GroupNotEmpty,
    GroupNotFound,
    HeadraceError,
    InstanceInUse,
    InvalidRequest,
    LimitExceeded,
    NotCoordinator,
    UnknownMember,
)
from headrace.protocol.ids import TopicId, TopicIdPartition

TARGET_PAUSE_S = 0.2
"""The least time between two assignments of one group: a hundred members that join together cost a
few, and what one of them was just given isn't taken away for each of the others."""

MEMBERS_MAX = 1_000
"""Members of one group: each change of members makes the targets of all again."""

CONFIRMED_WITHIN = 1 / 3
"""A member is told that all is well only if the leadership was confirmed within so much of its
session."""

CONFIRMED_WITHIN_S = 5.0
"""Committed offsets are told only by a coordinator that was confirmed so lately."""


async def always_confirmed(partition: Partition, within_s: float) -> None:
    """Where nobody else can be the leader."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset to commit."""

    where: TopicIdPartition
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat: the last step that the member has done and the last that it has heard of.
    `wait_s`: how long the answer may wait for news."""

    member_id: str
    epoch: int
    heard_epoch: int = NOT_JOINED
    wait_s: float = 0.0
    subscription: Subscription | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a member is told: its step if there is news, and its session's length."""

    epoch: int
    step: Step | None
    session_timeout_ms: int


class GroupCoordinator:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        *,
        spawn: Callable[[str, Awaitable[None]], object],
        is_dead: Callable[[TopicId], bool],
        topics: Callable[[], Topics],
        confirm: Callable[[Partition, float], Awaitable[None]] = always_confirmed,
    ) -> None:
        """`spawn` runs work in the background under a name; `is_dead` says whether a topic id is
        tombstoned; `topics` are those that groups may read now; `confirm` refuses unless this
        broker's leadership was confirmed within so many seconds (G4)."""
        self._confirm = confirm
        self._clock = clock
        self._spawn = spawn
        self._is_dead = is_dead
        self._topics = topics
        self._parts: dict[int, GroupPartition] = {}
        self._partition_count = 0
        self._targeted_at: dict[str, float] = {}

    # --- leadership -------------------------------------------------------------------------------

    def lead(self, partition: Partition, partition_count: int) -> None:
        """This broker leads the partition now; its groups are loaded in the background."""
        self._partition_count = partition_count
        index = partition.id.partition
        present = self._parts.get(index)
        if present is not None and present.epoch == partition.leader_epoch:
            return
        self.resign(index)
        part = self._parts[index] = GroupPartition(partition)
        self._spawn(f"load-groups-{index}", self._load(part))

    async def _load(self, part: GroupPartition) -> None:
        """Loads the partition, starts every member's session (G4), and forgets what a crash kept
        `forget_topic` from forgetting. A session is longer by a third now: for so long the former
        coordinator may have told the member, on its last confirmation, that all is well."""
        await run_load(part)
        if not part.loaded:
            return
        now = self._clock.monotonic()
        for name, group in part.groups.items():
            for member_id, step in group.steps.items():
                subscription = group.members.get(member_id)
                session_s = subscription.session_timeout_ms / 1000 if subscription else 0.0
                part.presence.heard[name, member_id] = now + session_s * CONFIRMED_WITHIN
                part.presence.told[name, member_id] = (step.epoch, now)
        gone = [
            (group_name, where)
            for group_name, offsets in part.state.groups.items()
            for where in offsets
            if self._is_dead(where.topic_id)
        ]
        if gone:
            await self._forget(part, gone)

    def resign(self, index: int) -> None:
        """This broker leads the partition no longer: its groups are forgotten here."""
        part = self._parts.pop(index, None)
        if part is not None:
            part.loaded = False
            part.presence.wake_all()

    def loaded_parts(self) -> list[GroupPartition]:
        """The partitions whose groups can be asked for at this moment."""
        return [part for part in self._parts.values() if part.loaded and not _is_out(part)]

    def _part(self, group: str) -> GroupPartition:
        if not self._partition_count:
            raise NotCoordinator("the group's offsets aren't ready yet", retry_after_ms=200)
        part = self._parts.get(partition_for_group(group, self._partition_count))
        if part is None:
            raise NotCoordinator(
                f"this broker doesn't coordinate group {group!r}", retry_after_ms=200
            )
        part.require_ready()
        return part

    # --- members ----------------------------------------------------------------------------------

    async def heartbeat(self, name: str, beat: Beat) -> Told:
        """A member joins, or says how far it is, and hears what is next.

        Raises:
            UnknownMember, Fenced: it must join again, owning nothing.
            InstanceInUse: another live member has its instance id.
            LimitExceeded: the group is full.
            NotCoordinator, and what appending raises.
        """
        part = self._part(name)
        key = (name, beat.member_id)
        part.presence.dismiss(key)
        self._refuse_evicted(part, key)
        self._take(part, name, self._decide(part, name, beat))
        part.presence.heard[key] = self._clock.monotonic()
        self._push(part, name)
        told = _told(part.groups[name], beat)
        if told.step is None and beat.wait_s > 0:
            wait_s = min(beat.wait_s, told.session_timeout_ms / 3000)
            await part.presence.park(key, wait_s)
            part.require_ready()
            self._refuse_evicted(part, key)
            told = _told(part.groups[name], beat)
        await part.settled()
        await self._confirm(part.partition, told.session_timeout_ms / 1000 * CONFIRMED_WITHIN)
        part.require_ready()
        return told

    @staticmethod
    def _refuse_evicted(part: GroupPartition, key: tuple[str, str]) -> None:
        if part.presence.is_evicted(key):
            raise UnknownMember(
                f"member {key[1]!r} didn't finish its step within its rebalance timeout: it must"
                " join again, owning nothing"
            )

    def _decide(self, part: GroupPartition, name: str, beat: Beat) -> Outcome:
        group = part.groups.get(name) or Group(name)
        now_ms = self._clock.now_ms()
        if beat.member_id in group.members:
            return machine.heartbeat(
                group, beat.member_id, beat.epoch, subscription=beat.subscription, now_ms=now_ms
            )
        if beat.epoch != NOT_JOINED or part.presence.has_departed((name, beat.member_id)):
            raise UnknownMember(
                f"group {name!r} has no member {beat.member_id!r} (any more): it owns nothing and"
                " must join again under a new id"
            )
        if beat.subscription is None:
            raise InvalidRequest("a member that joins (epoch 0) says its topics")
        if len(group.members) >= MEMBERS_MAX:
            raise LimitExceeded(f"group {name!r} has {MEMBERS_MAX} members, the most there can be")
        try:
            return machine.join(group, beat.member_id, beat.subscription, now_ms=now_ms)
        except InstanceInUse:
            instance_id = beat.subscription.instance_id or ""
            part.presence.claim(name, instance_id, self._clock.monotonic())
            raise

    async def leave(self, name: str, member_id: str, *, keep: bool) -> None:
        """A member goes; what it had is free at once. `keep`: a static one that comes back within
        its session. Harmless when it is gone already."""
        part = self._part(name)
        group = part.groups.get(name)
        if group is not None and member_id in group.members:
            now_ms = self._clock.now_ms()
            self._take(part, name, machine.leave(group, member_id, keep=keep, now_ms=now_ms))
        if not keep:
            part.presence.forget((name, member_id))
        self._push(part, name)
        await part.settled()

    # --- decisions into effect --------------------------------------------------------------------

    def _take(self, part: GroupPartition, name: str, outcome: Outcome) -> None:
        """Appends and keeps a decision; notes who was told what, and who is gone."""
        before = part.groups.get(name)
        part.take(name, outcome, now_ms=self._clock.now_ms())
        group, presence = outcome.group, part.presence
        now = self._clock.monotonic()
        for change in outcome.changes:
            if isinstance(change, StepSet) and change.value is not None:
                known = presence.told.get((name, change.member_id))
                if known is None or known[0] != change.value.epoch:
                    presence.told[name, change.member_id] = (change.value.epoch, now)
        if before is not None and before.members is not group.members:
            for member_id in before.members.keys() - group.members.keys():
                presence.forget((name, member_id))

    def _push(self, part: GroupPartition, name: str) -> None:
        """Makes the targets if they are due, and tells members that wait here what is new."""
        group = part.groups.get(name)
        if group is None or name not in part.unsettled:
            return
        if group.is_stale:
            self._retarget(part, name)
        outcome = machine.advance_all(part.groups[name])
        if outcome.changes:
            self._take(part, name, outcome)
            for change in outcome.changes:
                if isinstance(change, StepSet):
                    part.presence.wake((name, change.member_id))
        if not part.groups[name].is_stale:
            part.unsettled.discard(name)

    def _retarget(self, part: GroupPartition, name: str) -> None:
        now = self._clock.monotonic()
        due = self._targeted_at.get(name, -TARGET_PAUSE_S) + TARGET_PAUSE_S
        if now >= due:
            self._targeted_at[name] = now
            self._take(part, name, machine.retarget(part.groups[name], self._topics()))
            return
        asyncio.get_running_loop().call_later(due - now, self._push_later, part, name)

    def _push_later(self, part: GroupPartition, name: str) -> None:
        group = part.groups.get(name)
        if part.loaded and group is not None and group.is_stale and not _is_out(part):
            try:
                self._push(part, name)
            except HeadraceError:
                return  # Not now; the next heartbeat or look at the topics tries again.

    def expire(
        self, part: GroupPartition, name: str, member_ids: Iterable[str], *, awaited: bool = False
    ) -> None:
        """Members' sessions or their times for a step are over.

        Raises:
            What appending raises.
        """
        group = part.groups.get(name)
        if group is None:
            return
        now_ms = self._clock.now_ms()
        self._take(part, name, machine.expire(group, member_ids, awaited=awaited, now_ms=now_ms))
        self._push(part, name)

    def look_at_topics(self, part: GroupPartition, name: str) -> None:
        """Makes the targets of a group again if its topics are others now.

        Raises:
            What appending raises.
        """
        group, topics = part.groups[name], self._topics()
        if group.members and not group.is_stale and machine.needs_target(group, topics):
            self._take(part, name, machine.retarget(group, topics))
        self._push(part, name)

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(
        self,
        name: str,
        commits: Sequence[Commit],
        *,
        member_id: str = "",
        member_epoch: int = -1,
        force: bool = False,
    ) -> dict[TopicIdPartition, Fenced]:
        """Commits the offsets together; done when they are committed on all in-sync replicas. The
        partitions that the member may not commit are left out and answered.

        Raises:
            UnknownMember: the member is gone, or the group has members and the caller is none.
            NotCoordinator, and what appending raises.
        """
        part = self._part(name)
        group = part.groups.get(name)
        refused: dict[TopicIdPartition, Fenced] = {}
        if member_id:
            refused = machine.check_commit(
                group or Group(name), member_id, member_epoch, (each.where for each in commits)
            )
        elif group is not None and group.members and not force:
            raise UnknownMember(
                f"group {name!r} has {len(group.members)} live members: only they commit. Stop"
                " them first, or use a group of another name"
            )
        now_ms = self._clock.now_ms()
        rows = [_row(name, each, now_ms) for each in commits if each.where not in refused]
        part.append(rows, now_ms=now_ms)
        await part.settled()
        return refused

    async def offsets(self, name: str) -> dict[TopicIdPartition, OffsetValue]:
        """The group's committed offsets; empty if it has none.

        Raises:
            NotCoordinator.
        """
        part = self._part(name)
        found = dict(part.state.of(name))
        await part.settled()
        await self._confirm(part.partition, CONFIRMED_WITHIN_S)
        part.require_ready()
        return found

    # --- groups -----------------------------------------------------------------------------------

    async def group(self, name: str) -> Group | None:
        """The group with its members; None if it has and had none.

        Raises:
            NotCoordinator.
        """
        part = self._part(name)
        found = part.groups.get(name)
        await part.settled()
        return found

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Forgets the group with its offsets.

        Raises:
            GroupNotFound: there is no such group.
            GroupNotEmpty: it has live members (and not `force`: they will notice and join again).
        """
        part = self._part(name)
        group, offsets = part.groups.get(name), part.state.of(name)
        if group is not None and group.members:
            if not force:
                raise GroupNotEmpty(
                    f"group {name!r} has {len(group.members)} live members: stop them first"
                )
            self.expire(part, name, list(group.members))
        if not offsets and group is None:
            raise GroupNotFound(f"there is no group {name!r}: it has no members and no offsets")
        await self._forget(part, [(name, where) for where in offsets])
        self.drop_group(part, name)
        await part.settled()

    def drop_group(self, part: GroupPartition, name: str) -> None:
        """Forgets a group without members."""
        group = part.groups.get(name)
        if group is not None and not group.members:
            part.take(name, machine.delete(group), now_ms=self._clock.now_ms())
            del part.groups[name]
            part.unsettled.discard(name)
            self._targeted_at.pop(name, None)

    def groups(self) -> Iterator[tuple[str, Group, set[TopicId]]]:
        """The groups coordinated here, and the topics they have offsets of or own."""
        for part in self.loaded_parts():
            for name in part.state.groups.keys() | part.groups.keys():
                group = part.groups.get(name) or Group(name)
                topics = {where.topic_id for where in part.state.of(name)}
                topics.update(where.topic_id for where in group.owners)
                yield name, group, topics

    def committed(self) -> Iterator[tuple[str, Mapping[TopicIdPartition, OffsetValue]]]:
        """The committed offsets of all groups coordinated here."""
        for part in self.loaded_parts():
            yield from part.state.groups.items()

    async def forget_topic(self, topic_id: TopicId) -> None:
        """Writes tombstones for the offsets of a topic that is deleted for good (G6)."""
        for part in list(self._parts.values()):
            if part.loaded and (gone := list(part.state.of_topic(topic_id))):
                await self._forget(part, gone)

    async def _forget(
        self, part: GroupPartition, gone: Sequence[tuple[str, TopicIdPartition]]
    ) -> None:
        rows = [
            (records.encode_key(group, where.topic_id, where.partition), None)
            for group, where in gone
        ]
        part.append(rows, now_ms=self._clock.now_ms())
        await part.settled()

    async def forget_offsets(
        self, part: GroupPartition, name: str, gone: Iterable[TopicIdPartition]
    ) -> None:
        """Writes tombstones for offsets of one group that nobody wants any more."""
        await self._forget(part, [(name, where) for where in gone])


def _is_out(part: GroupPartition) -> bool:
    return part.epoch != part.partition.leader_epoch or part.partition.offline is not None


def _told(group: Group, beat: Beat) -> Told:
    step = group.steps.get(beat.member_id)
    if step is None:
        raise UnknownMember(
            f"member {beat.member_id!r} was removed from group {group.name!r}: it must join again"
        )
    timeout_ms = group.members[beat.member_id].session_timeout_ms
    is_known = step.epoch in (beat.epoch, beat.heard_epoch)
    return Told(step.epoch, None if is_known else step, timeout_ms)


def _row(name: str, commit: Commit, now_ms: int) -> records.Row:
    return (
        records.encode_key(name, commit.where.topic_id, commit.where.partition),
        records.encode_value(
            commit.offset,
            leader_epoch=commit.leader_epoch,
            metadata=commit.metadata,
            commit_time_ms=now_ms,
        ),
    )
