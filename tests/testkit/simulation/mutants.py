"""Rules taken away, one by one (in pairs where replication.md 2.3 says that one alone survives).

Each mutant replaces the function of production that carries the rule, for as long as its context
lasts, and names the trace in `traces` that then breaks an invariant. That is how the simulation
shows that it could have found the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from headrace.broker.api.produce import Outcome, Produce
from headrace.broker.controller import membership
from headrace.broker.controller.updates import StoreWriter
from headrace.broker.core import encoding, fetch_rules, transitions
from headrace.broker.core.fetch_rules import Valid
from headrace.broker.core.groups import machine
from headrace.broker.core.model import Member, PartitionRecord
from headrace.broker.core.replica_set import ReplicaSet
from headrace.broker.core.standing import Standing, next_standing
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.group_partition import GroupPartition
from headrace.broker.groups.leadership import Leadership
from headrace.broker.groups.presence import Presence
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.replication import fetcher, serving
from headrace.broker.replication.fetcher import LeaderLoop
from headrace.broker.replication.following import Followed, Next
from headrace.broker.replication.isr import IsrChanges
from headrace.broker.replication.serving import ReplicaServer
from headrace.broker.store.base import Applied
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import Fenced
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.names import OFFSETS_TOPIC
from headrace.protocol.replication import ReplicaResult
from testkit.simulation import group_traces, traces
from testkit.simulation.groups import READ_TOPIC
from testkit.simulation.stage import Stage

Replacement = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule taken away: what is replaced, and the trace that shows it."""

    rule: str
    trace: Callable[[Stage], None]
    replacements: tuple[Replacement, ...]
    min_isr: int = 1
    topic: str = READ_TOPIC

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Production without the rule."""
        with ExitStack() as stack:
            for owner, name, replacement in self.replacements:
                stack.enter_context(patch.object(owner, name, replacement))
            yield


# --- R7: the union, who counts for the minimum, what a read proves -------------------------------


def _forget_pending(_self: ReplicaSet, _record: PartitionRecord) -> None:
    return


def _minimum_with_pending(self: ReplicaSet) -> bool:
    members = {m.broker_id for m in (*self.record.isr, *self.pending)}
    return len(members) >= self.record.min_effective


_settle = IsrChanges._settle


async def _unchanged_is_failed(self: IsrChanges, pending: Any, outcome: Any) -> None:
    await _settle(self, pending, outcome)
    if not isinstance(outcome, Applied) and pending.change.key in self._pending:
        del self._pending[pending.change.key]
        for replicas in pending.sets.values():
            record = replicas.record
            replicas.withdraw()
            partition = self._find(TopicIdPartition(record.topic_id, record.partition))
            assert partition is not None
            partition.replicas_changed()


# --- R3, R4, R10, R11, R17, R18 ------------------------------------------------------------------


def _elect_anybody(
    record: PartitionRecord, *, leader: Any, isr: Any
) -> PartitionRecord | transitions.Refusal:
    return transitions._led(
        record, leader=leader, isr=tuple(isr), elr=transitions._next_elr(record, isr)
    )


_update_many = StoreWriter.update_many


async def _blindly(self: StoreWriter, writes: Any) -> bool:
    fresh = {}
    for key, (_revision, value) in writes.items():
        item = await self.store.get(key)
        fresh[key] = (item.revision if item else None, value)
    return await _update_many(self, fresh)


def _at_once(self: ReplicaSet, record: PartitionRecord) -> None:
    self.record = record
    self._settle()


_take = ReplicaSet.take


def _take_whatever(self: ReplicaSet, record: PartitionRecord) -> bool:
    taken = _take(self, record)
    self.foreign = frozenset()
    return taken


def _keep_elr(record: PartitionRecord, isr: Any) -> tuple[Member, ...]:
    present = {entry.broker_id for entry in isr}
    return tuple(e for e in (*record.isr, *record.elr) if e.broker_id not in present)


def _lower_only(record: PartitionRecord, min_isr: int) -> PartitionRecord:
    return replace(record, min_isr=min_isr, partition_epoch=record.partition_epoch + 1)


# --- R9, R12, R19, R21, R26 ----------------------------------------------------------------------


def _same_generation(local: Any, registered: Any, **keywords: Any) -> Standing:
    standing = next_standing(local, registered, **keywords)
    known = registered.generation if registered else standing.generation
    return replace(standing, generation=known)


def _leads_whatever_session(self: PartitionManager, _partition: object, record: Any) -> bool:
    return record.leader is not None and record.leader.broker_id == self._broker_id


def _joining_at_high_watermark(
    self: ReplicaSet, brokers: Any, *, log: Any, now_s: float, lag_s: float
) -> list[int]:
    self.epoch_start = 0
    return [
        broker_id
        for broker_id, known in self.followers.items()
        if self.record.in_isr(broker_id) is None
        and broker_id in brokers
        and known.offset >= log.high_watermark
    ]


_finish = transitions.finish_reassignment


def _finish_without_bump(record: PartitionRecord, brokers: Any) -> transitions.Step:
    step = _finish(record, brokers)
    if not isinstance(step, PartitionRecord):
        return step
    return replace(step, leader_epoch=record.leader_epoch)


# --- R14, R15, R28 -------------------------------------------------------------------------------


def _always_valid(*_args: object, **_keywords: object) -> Valid:
    return Valid()


_validated: set[tuple[int, int, int]] = set()
_news, _validate = ReplicaServer._news, fetch_rules.validate
_skips = [False]


async def _news_validated_once(
    self: ReplicaServer, listing: Any, part: Any, partition: Any, result: Any, room: int
) -> Any:
    key = (id(self), listing.session.broker_id, part.leader_epoch)
    _skips[0] = key in _validated
    _validated.add(key)
    return await _news(self, listing, part, partition, result, room)


def _validate_unless_skipped(*args: Any, **keywords: Any) -> Any:
    return Valid() if _skips[0] else _validate(*args, **keywords)


def _never_unfollow(_self: LeaderLoop, _where: object) -> None:
    return


def _is_current_always(self: Followed) -> bool:
    return not self.partition.leading and self.partition.log.failure is None


def _take_any_epoch(
    followed: Followed, result: ReplicaResult, data: Buffer | None, _stats: object
) -> Next:
    partition, log = followed.partition, followed.partition.log
    if result.error is not None:
        return Next.LATER
    if followed.listed_end != log.end_offset:
        return Next.LIST
    if result.diverging_end >= 0:
        log.truncate_to(result.diverging_end)
        return Next.LIST
    if data is not None:
        log.append_replicated(data, may_have_holes=False)
        partition.replica_appended()
    partition.learn_high_watermark(result.high_watermark)
    return Next.NOTHING if data is None else Next.LIST


_follow = LeaderLoop.follow


def _truncate_first(self: LeaderLoop, partition: Partition, leader: Any, epoch: int) -> None:
    partition.log.truncate_to(partition.high_watermark)
    _follow(self, partition, leader, epoch)


_append = Produce.append


async def _duplicate_is_done(self: Produce, where: Any, batch: Any, **keywords: Any) -> Outcome:
    partition = self._manager.get(where)
    before = partition.stats.duplicates if partition else 0
    outcome = await _append(self, where, batch, **keywords)
    if partition is not None and partition.stats.duplicates > before:
        outcome.partition = None
    return outcome


def _no_duplicates(_self: Partition, _header: object) -> None:
    return None


# --- G2, G3, G4, G5 ------------------------------------------------------------------------------

_load = GroupPartition.load
_load_groups = GroupCoordinator._load
_age_s = Leadership.age_s


async def _load_without_waiting(self: GroupPartition) -> None:
    async def at_once(_offset: int) -> None:
        return

    with patch.object(self.partition, "committed", at_once):
        await _load(self)
    self.last_offset = -1


async def _is_settled_at_once(_self: GroupPartition) -> None:
    return


async def _confirmed(_self: Leadership, _partition: Partition, _within_s: float) -> None:
    return


def _age_of_arrival(self: Leadership, partition: Partition) -> float:
    replicas = partition.replicas
    assert replicas is not None
    for known in replicas.followers.values():
        known.confirmed_s = known.seen_s
    return _age_s(self, partition)


async def _load_with_plain_sessions(self: GroupCoordinator, part: GroupPartition) -> None:
    await _load_groups(self, part)
    heard = part.presence.heard
    heard.update(dict.fromkeys(heard, self._clock.monotonic()))


def _session_is_over(self: Presence, key: tuple[str, str]) -> None:
    self.heard[key] = float("-inf")
    self._evicted.add(key)


def _anybody_commits(*_args: object) -> dict[TopicIdPartition, Fenced]:
    return {}


def _no_check(*_args: object) -> None:
    return


_nothing_checked: tuple[Replacement, ...] = (
    (transitions, "check_step", _no_check),
    (transitions, "check_invariants", _no_check),
    (encoding, "violations", lambda record: []),
)

MUTANTS: dict[str, Mutant] = {
    "no_union": Mutant(
        "R7: the high watermark waits for a pending ISR, too", traces.expand_lands_late,
        ((ReplicaSet, "propose", _forget_pending),),
    ),
    "reread_is_failure": Mutant(
        "R7: a read that shows the old revision proves nothing",
        traces.expand_lands_after_rereads, ((IsrChanges, "_settle", _unchanged_is_failed),),
    ),
    "min_counts_pending": Mutant(
        "R7: pending members don't count for the minimum", traces.pending_expand_and_elr,
        ((ReplicaSet, "has_minimum", property(_minimum_with_pending)),), min_isr=2,
    ),
    "elect_any": Mutant(
        "R18: only members of ISR or ELR lead", traces.outsider_elected,
        ((transitions, "elect", _elect_anybody),), min_isr=2,
    ),
    "blind_controller": Mutant(
        "R3: nobody writes but by compare-and-swap", traces.two_controllers,
        ((StoreWriter, "update_many", _blindly),),
    ),
    "no_generation": Mutant(
        "R12, R21: who lost bytes has another generation", traces.old_fetch_after_wipe,
        ((membership, "next_standing", _same_generation),),
    ),
    "session_binding": Mutant(
        "R19: no epoch is resumed by another process", traces.leader_resumes,
        ((PartitionManager, "_leads", _leads_whatever_session),),
    ),
    "shrink_without_cas": Mutant(
        "R4: the ISR is what the store has", traces.shrink_never_lands,
        ((ReplicaSet, "propose", _at_once),),
    ),
    "added_by_hand": Mutant(
        "R4: whoever wasn't added by the leader leaves the ISR at once", traces.added_by_hand,
        ((ReplicaSet, "take", _take_whatever),),
    ),
    "no_min_check": Mutant(
        "R11: nothing is committed below the minimum", traces.minimum_lost_after_append,
        (
            (ReplicaSet, "has_minimum", property(lambda self: True)),
        ), min_isr=2,
    ),
    "elr_not_cleared": Mutant(
        "R10: no ELR while the ISR has the minimum", traces.elr_outlives_minimum,
        ((transitions, "_next_elr", _keep_elr), *_nothing_checked), min_isr=2,
    ),
    "lower_keeps_elr": Mutant(
        "R17: lowering the minimum empties the ELR", traces.minimum_lowered,
        ((transitions, "set_min", _lower_only), *_nothing_checked), min_isr=2,
    ),
    "count_unvalidated": Mutant(
        "R14: a diverging fetch doesn't count", traces.diverging_follower,
        ((serving, "validate", _always_valid),),
    ),
    "validate_once_and_no_follower_fence": Mutant(
        "R14 and R15: validation on each fetch, and no answers of an older epoch",
        traces.old_answer,
        (
            (ReplicaServer, "_news", _news_validated_once),
            (serving, "validate", _validate_unless_skipped),
            (LeaderLoop, "unfollow", _never_unfollow),
            (Followed, "is_current", property(_is_current_always)),
            (fetcher, "take", _take_any_epoch),
        ),
    ),
    "truncate_to_hw": Mutant(
        "R15, R20: a new epoch alone is no reason to truncate",
        traces.committed_but_follower_not_told, ((LeaderLoop, "follow", _truncate_first),),
    ),
    "no_epoch_start": Mutant(
        "R9: nobody joins before the epoch's start", traces.expand_before_epoch_start,
        ((ReplicaSet, "joining", _joining_at_high_watermark),),
    ),
    "reassign_no_bump": Mutant(
        "R26: a replica taken out ends the epoch", traces.moved_away_and_back,
        ((transitions, "finish_reassignment", _finish_without_bump), *_nothing_checked),
    ),
    "duplicate_before_hw": Mutant(
        "R28: a duplicate's answer waits as the original's", traces.retry_before_commit,
        ((Produce, "append", _duplicate_is_done),),
    ),
    "no_dedupe": Mutant(
        "R28: a retry is written once", traces.retry_before_commit,
        ((Partition, "_find_duplicate", _no_duplicates),),
    ),
    "group_answers_before_loaded": Mutant(
        "G2: a coordinator answers once what it loaded is committed", group_traces.loaded_too_early,
        ((GroupPartition, "load", _load_without_waiting),), min_isr=2, topic=OFFSETS_TOPIC,
    ),
    "group_answers_before_committed": Mutant(
        "G3: nothing is told before it is committed", group_traces.commit_of_a_zombie,
        ((GroupPartition, "settled", _is_settled_at_once),), min_isr=2, topic=OFFSETS_TOPIC,
    ),
    "group_zombie_answers": Mutant(
        "G4: a coordinator answers only while its leadership is confirmed",
        group_traces.zombie_tells, ((Leadership, "confirm", _confirmed),),
        min_isr=2, topic=OFFSETS_TOPIC,
    ),
    "group_arrival_confirms": Mutant(
        "G4: a fetch that lay unread says nothing of the present", group_traces.zombie_wakes,
        ((Leadership, "age_s", _age_of_arrival),), min_isr=2, topic=OFFSETS_TOPIC,
    ),
    "group_plain_sessions": Mutant(
        "G4: a new coordinator waits for as long as its predecessor may have told",
        group_traces.zombie_tells, ((GroupCoordinator, "_load", _load_with_plain_sessions),),
        min_isr=2, topic=OFFSETS_TOPIC,
    ),
    "group_removed_at_once": Mutant(
        "G4: who may still think it owns something isn't robbed of it",
        group_traces.stuck_and_cut_off, ((Presence, "evict", _session_is_over),),
        min_isr=2, topic=OFFSETS_TOPIC,
    ),
    "group_commit_not_fenced": Mutant(
        "G5: only the owner commits", group_traces.commit_of_a_former_member,
        ((machine, "check_commit", _anybody_commits),), min_isr=2, topic=OFFSETS_TOPIC,
    ),
}  # fmt: skip
