"""What a leader concludes from its followers' fetches; one test a rule of docs/replication.md."""

from __future__ import annotations

from dataclasses import replace

from headrace.broker.core.fetch_rules import Diverging, TooOld, Valid, cut_at, validate
from headrace.broker.core.model import (
    BrokerStatus,
    Generation,
    Leader,
    Member,
    PartitionRecord,
)
from headrace.broker.core.replica_set import UNKNOWN, LeaderLog, ReplicaSet
from headrace.protocol.ids import TopicId

GEN = Generation(0, 0)
ME = Leader(0, 7)
LAG_S = 10.0


def members(*broker_ids: int) -> tuple[Member, ...]:
    return tuple(Member(each, GEN) for each in broker_ids)


def record(*isr: int, min_isr: int = 1) -> PartitionRecord:
    return PartitionRecord(
        topic_id=TopicId(b"t" * 16), partition=0, partition_epoch=9, leader_epoch=3, leader=ME,
        isr=members(*isr), elr=(), replicas=(0, 1, 2), min_isr=min_isr,
    )  # fmt: skip


def replica_set(*isr: int, min_isr: int = 1, epoch_start: int = 0) -> ReplicaSet:
    return ReplicaSet(record(*isr, min_isr=min_isr), me=ME, epoch_start=epoch_start, now_s=100.0)


def fetch(
    replicas: ReplicaSet,
    broker_id: int,
    offset: int,
    *,
    end: int = 10,
    at_s: float = 100.0,
    generation: Generation = GEN,
    session: int = 1,
) -> None:
    replicas.fetched(
        broker_id, generation=generation, session=session, offset=offset, end_offset=end, now_s=at_s
    )


def brokers(**changes: BrokerStatus) -> dict[int, BrokerStatus]:
    found = {each: BrokerStatus(1, GEN, True) for each in (0, 1, 2)}
    return found | {int(key[1:]): value for key, value in changes.items()}


def wanted(
    replicas: ReplicaSet,
    *,
    now_s: float = 100.0,
    hw: int = 10,
    end: int = 10,
    **changes: BrokerStatus,
) -> PartitionRecord | None:
    return replicas.next_record(
        brokers(**changes),
        log=LeaderLog(high_watermark=hw, end_offset=end),
        now_s=now_s,
        lag_s=LAG_S,
    )


def isr_of(found: PartitionRecord | None) -> set[int] | None:
    return None if found is None else {each.broker_id for each in found.isr}


def test_the_high_watermark_is_the_least_end_of_the_isr() -> None:
    replicas = replica_set(0, 1, 2)
    fetch(replicas, 1, 8)
    fetch(replicas, 2, 5)
    assert replicas.committed_end(10) == 5


def test_the_leaders_own_end_bounds_it_too() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 1, 8)
    assert replicas.committed_end(6) == 6


def test_nothing_is_committed_while_a_member_was_not_heard_of_in_this_epoch() -> None:
    replicas = replica_set(0, 1, 2)
    fetch(replicas, 1, 8)
    assert replicas.committed_end(10) == UNKNOWN


def test_r7_a_pending_expansion_bounds_the_high_watermark_before_its_outcome_is_known() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 1, 10)
    fetch(replicas, 2, 4)
    replicas.propose(replace(replicas.record, isr=members(0, 1, 2)))
    assert replicas.committed_end(10) == 4
    replicas.withdraw()
    assert replicas.committed_end(10) == 10


def test_r7_a_pending_shrink_doesnt_let_the_high_watermark_go() -> None:
    replicas = replica_set(0, 1, 2)
    fetch(replicas, 1, 10)
    fetch(replicas, 2, 4)
    replicas.propose(replace(replicas.record, isr=members(0, 1)))
    assert replicas.committed_end(10) == 4


def test_r7_pending_members_dont_count_for_the_minimum() -> None:
    replicas = replica_set(0, min_isr=2)
    fetch(replicas, 1, 10)
    replicas.propose(replace(replicas.record, isr=members(0, 1)))
    assert not replicas.has_minimum
    assert replicas.committed_end(10) == UNKNOWN


def test_r7_a_newer_record_settles_what_was_pending() -> None:
    replicas = replica_set(0, 1)
    replicas.propose(replace(replicas.record, isr=members(0, 1, 2)))
    assert replicas.take(replace(replicas.record, partition_epoch=10, isr=members(0)))
    assert replicas.committed_end(10) == 10


def test_r8_an_older_record_changes_nothing() -> None:
    replicas = replica_set(0, 1)
    replicas.propose(replace(replicas.record, isr=members(0, 1, 2)))
    assert not replicas.take(replace(replicas.record, isr=members(0)))
    assert replicas.pending


def test_r11_below_the_minimum_nothing_is_committed() -> None:
    replicas = replica_set(0, min_isr=2)
    assert replicas.committed_end(10) == UNKNOWN


def test_r10_the_minimum_is_never_more_than_there_are_replicas() -> None:
    alone = replace(record(0, min_isr=3), replicas=(0,))
    assert ReplicaSet(alone, me=ME, epoch_start=0, now_s=0.0).committed_end(10) == 10


def test_r12_an_end_of_another_generation_is_none() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 1, 10, generation=Generation(0, 1))
    assert replicas.committed_end(10) == UNKNOWN


def test_r12_an_entry_whose_broker_has_other_contents_now_is_taken_out_at_once() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 1, 10, generation=Generation(0, 1))
    changed = wanted(replicas, b1=BrokerStatus(2, Generation(0, 1), True))
    assert isr_of(changed) == {0}


def test_a_late_word_of_a_former_process_counts_for_nothing() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 1, 4, session=2, generation=Generation(0, 1))
    fetch(replicas, 1, 10, session=1)
    assert replicas.committed_end(10) == UNKNOWN


def test_r6_nobody_is_taken_out_in_the_first_lag_period_of_an_epoch() -> None:
    replicas = replica_set(0, 1, 2)
    assert wanted(replicas, now_s=109.0) is None
    assert isr_of(wanted(replicas, now_s=110.5)) == {0}


def test_r6_a_dead_follower_is_left_to_the_controller_for_one_more_period() -> None:
    dead = BrokerStatus(1, GEN, False)
    replicas = replica_set(0, 1)
    assert wanted(replicas, now_s=115.0, b1=dead) is None
    assert isr_of(wanted(replicas, now_s=121.0, b1=dead)) == {0}


def test_a_follower_that_keeps_up_at_a_distance_doesnt_lag() -> None:
    replicas = replica_set(0, 1)
    for place in range(30):
        fetch(replicas, 1, 10 * place, end=10 * place + 10, at_s=100.0 + place)
    assert wanted(replicas, now_s=130.0, hw=0, end=300) is None


def test_a_follower_that_falls_behind_lags_although_it_fetches() -> None:
    replicas = replica_set(0, 1)
    for place in range(30):
        fetch(replicas, 1, place, end=100 * place + 10, at_s=100.0 + place)
    assert isr_of(wanted(replicas, now_s=130.0, hw=0, end=3000)) == {0}


def test_an_idle_follower_that_is_heard_of_doesnt_lag() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 1, 10)
    replicas.still_there(1, seen_s=150.0, end_offset=10)
    assert wanted(replicas, now_s=155.0) is None
    assert isr_of(wanted(replicas, now_s=161.0)) == {0}


def test_r9_a_follower_that_has_all_joins() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 2, 10)
    fetch(replicas, 1, 10)
    assert isr_of(wanted(replicas)) == {0, 1, 2}


def test_r9_not_below_the_high_watermark() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 2, 9, end=9)
    assert wanted(replicas) is None


def test_r9_not_before_the_start_of_the_epoch() -> None:
    replicas = replica_set(0, 1, epoch_start=10)
    fetch(replicas, 2, 5, end=5)
    assert wanted(replicas, hw=0) is None


def test_r9_not_with_a_generation_that_isnt_registered() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 2, 10)
    assert wanted(replicas, b2=BrokerStatus(2, Generation(1, 0), True)) is None


def test_r9_not_while_it_is_draining_or_dead() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 2, 10)
    assert wanted(replicas, b2=BrokerStatus(1, GEN, True, "draining")) is None
    assert wanted(replicas, b2=BrokerStatus(1, GEN, False)) is None


def test_a_follower_on_its_way_isnt_taken_in_to_leave_again() -> None:
    replicas = replica_set(0, 1)
    fetch(replicas, 2, 5, end=100)
    fetch(replicas, 2, 15, end=200, at_s=101.0)
    assert wanted(replicas, hw=10, end=200, now_s=101.0) is None


def test_h4_silence_is_told_only_where_others_could_lead() -> None:
    replicas = replica_set(0, 1)
    assert replicas.is_silent(now_s=111.0, for_s=LAG_S)
    fetch(replicas, 1, 0, at_s=105.0)
    assert not replicas.is_silent(now_s=111.0, for_s=LAG_S)
    alone = ReplicaSet(replace(record(0), replicas=(0,)), me=ME, epoch_start=0, now_s=0.0)
    assert not alone.is_silent(now_s=999.0, for_s=LAG_S)


# --- R14, R15 ---


def epoch_end(*entries: tuple[int, int], end: int, start: int = 0):  # type: ignore[no-untyped-def]
    def find(epoch: int) -> tuple[int, int]:
        place = sum(each <= epoch for each, _ in entries)
        if not place:
            return -1, start
        return entries[place - 1][0], entries[place][1] if place < len(entries) else end

    return find


def judge(offset: int, last_epoch: int, *, start: int = 0) -> Valid | TooOld | Diverging:
    """Against a log from `start` to 20: epoch 1 from 0, epoch 3 from 10."""
    entries = [(1, 0), (3, 10)] if not start else [(3, 10)]
    return validate(
        offset, last_epoch, start_offset=start, end_offset=20,
        epoch_end=epoch_end(*entries, end=20, start=start),
    )  # fmt: skip


def test_r14_a_prefix_is_valid() -> None:
    assert judge(10, 1) == judge(5, 1) == judge(20, 3) == judge(0, -1) == Valid()


def test_r14_a_longer_log_of_an_earlier_epoch_diverges_where_that_epoch_ends() -> None:
    assert judge(15, 1) == Diverging(1, 10)


def test_r14_an_epoch_that_the_leader_never_had_diverges() -> None:
    assert judge(12, 2) == Diverging(1, 10)


def test_r14_a_log_behind_the_leaders_end_diverges() -> None:
    assert judge(25, 3) == Diverging(3, 20)


def test_an_offset_that_is_gone_is_too_old() -> None:
    assert judge(5, 1, start=10) == TooOld()


def test_a_log_that_ends_where_the_leaders_starts_is_valid_though_its_epoch_is_gone() -> None:
    assert judge(10, 1, start=10) == Valid()
    assert judge(11, 1, start=10) == Diverging(-1, 10)


def test_r15_the_cut_is_at_the_smaller_end_of_the_epoch() -> None:
    own = epoch_end((1, 0), (2, 8), end=30)
    assert cut_at(Diverging(1, 10), end_offset=30, epoch_end=own) == 8
    assert cut_at(Diverging(2, 10), end_offset=30, epoch_end=own) == 10


def test_a_member_that_somebody_else_added_is_to_go_and_may_come_back() -> None:
    replicas = replica_set(0, 1)
    for broker_id in (1, 2):
        fetch(replicas, broker_id, 10)
    edited = replace(record(0, 1, 2), partition_epoch=10)
    assert replicas.take(edited)
    assert replicas.foreign == {Member(2, GEN)}
    following = wanted(replicas)
    assert following is not None
    assert following.isr == members(0, 1)
    replicas.propose(following)
    assert replicas.take(following)
    assert not replicas.foreign
    back = wanted(replicas)
    assert back is not None
    assert back.isr == members(0, 1, 2)
    replicas.propose(back)
    assert replicas.take(back)
    assert not replicas.foreign
