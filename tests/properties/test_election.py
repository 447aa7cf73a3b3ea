"""Who leads: whatever the record and whoever lives, the choice has standing or says that it
hasn't."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core import transitions
from headrace.broker.core.election import (
    NO_LOG,
    Elected,
    LogEnd,
    Offline,
    Stays,
    by_command,
    decide,
    has_standing,
    leaving,
)
from headrace.broker.core.model import (
    BrokerStatus,
    Generation,
    Leader,
    Member,
    PartitionRecord,
)
from headrace.protocol.ids import TopicId

BROKERS = (0, 1, 2, 3)
generations = st.builds(Generation, st.just(0), st.integers(0, 1))
statuses = st.builds(
    BrokerStatus,
    session=st.integers(1, 2),
    generation=generations,
    live=st.booleans(),
    state=st.sampled_from(["starting", "running", "draining"]),
)
clusters = st.dictionaries(st.sampled_from(BROKERS), statuses)
log_ends = st.dictionaries(
    st.sampled_from(BROKERS), st.builds(LogEnd, st.integers(0, 2), st.integers(0, 5))
)


@st.composite
def records(draw: st.DrawFn) -> PartitionRecord:
    """Any record without a fault."""
    replicas = tuple(draw(st.permutations(BROKERS))[: draw(st.integers(1, 4))])
    places = [draw(st.sampled_from(["isr", "elr", "out"])) for _ in replicas]
    members = [Member(broker, draw(generations)) for broker in replicas]
    isr = tuple(m for m, place in zip(members, places, strict=True) if place == "isr")
    elr = tuple(m for m, place in zip(members, places, strict=True) if place == "elr")
    minimum = draw(st.integers(1, 4))
    leads = st.none() | st.sampled_from(isr) if isr else st.none()
    leader = draw(leads)
    return PartitionRecord(
        topic_id=TopicId(b"t" * 16),
        partition=0,
        partition_epoch=9,
        leader_epoch=4,
        leader=Leader(leader.broker_id, draw(st.integers(1, 2))) if leader else None,
        isr=isr,
        elr=elr if len(isr) < min(minimum, len(replicas)) else (),
        replicas=replicas,
        min_isr=minimum,
        unclean=draw(st.booleans()),
    )


@given(records(), clusters, log_ends)
def test_the_elected_has_standing_or_the_record_says_that_records_may_be_lost(
    record: PartitionRecord, brokers: dict[int, BrokerStatus], ends: dict[int, LogEnd]
) -> None:
    decision = decide(record, brokers, ends)
    if not isinstance(decision, Elected):
        return
    after = decision.record
    transitions.check_step(record, after)
    assert after.leader is not None
    chosen = brokers[after.leader.broker_id]
    assert chosen.live
    assert chosen.state != "starting"
    assert after.leader.session == chosen.session
    assert after.leader_epoch == record.leader_epoch + 1
    entry = Member(after.leader.broker_id, chosen.generation)
    standing = [m for m in (*record.isr, *record.elr) if has_standing(m, brokers)]
    if after.recovery == "none":
        assert entry in standing
        assert entry in record.isr or not [m for m in record.isr if has_standing(m, brokers)]
    else:
        assert not standing
        assert record.unclean or after.recovery == "possible_loss"


@given(records(), clusters, log_ends)
def test_somebody_with_standing_means_somebody_leads(
    record: PartitionRecord, brokers: dict[int, BrokerStatus], ends: dict[int, LogEnd]
) -> None:
    decision = decide(record, brokers, ends)
    if any(has_standing(m, brokers) for m in (*record.isr, *record.elr)):
        assert not isinstance(decision, Offline)
    if isinstance(decision, Offline):
        assert decision.reason


@given(records(), clusters, log_ends)
def test_deciding_again_changes_nothing_and_the_same_input_gives_the_same_answer(
    record: PartitionRecord, brokers: dict[int, BrokerStatus], ends: dict[int, LogEnd]
) -> None:
    decision = decide(record, brokers, ends)
    assert decision == decide(record, brokers, ends)
    if isinstance(decision, Elected):
        assert isinstance(decide(decision.record, brokers, ends), Stays)


@given(records(), clusters)
def test_a_live_running_leader_with_its_log_stays(
    record: PartitionRecord, brokers: dict[int, BrokerStatus]
) -> None:
    if record.leader is None:
        return
    entry = record.in_isr(record.leader.broker_id)
    assert entry is not None
    leader = BrokerStatus(record.leader.session, entry.generation, live=True)
    assert decide(record, {**brokers, record.leader.broker_id: leader}) == Stays()


def _lost_by_all(members: int, unclean: bool = False) -> PartitionRecord:
    isr = tuple(Member(broker, Generation(0, 0)) for broker in range(members))
    return PartitionRecord(
        topic_id=TopicId(b"t" * 16),
        partition=0,
        partition_epoch=2,
        leader_epoch=1,
        leader=Leader(0, 1),
        isr=isr,
        elr=(),
        replicas=tuple(range(members)),
        unclean=unclean,
    )


def _back(*ids: int) -> dict[int, BrokerStatus]:
    return {broker: BrokerStatus(2, Generation(0, 1), live=True) for broker in ids}


def test_after_a_power_cut_of_all_the_longest_log_leads_once_all_are_known() -> None:
    record = _lost_by_all(3)
    assert decide(record, _back(0, 1)) == Offline("waiting for broker 2 to come back")
    asked = decide(record, _back(0, 1, 2), {0: LogEnd(1, 9)})
    assert isinstance(asked, Offline)
    assert asked.ask == (1, 2)
    ends = {0: LogEnd(1, 9), 1: LogEnd(2, 3), 2: LogEnd(2, 4)}
    decision = decide(record, _back(0, 1, 2), ends)
    assert isinstance(decision, Elected)
    assert decision.record.leader == Leader(2, 2)
    assert decision.record.recovery == "possible_loss"
    assert decision.record.isr == (Member(2, Generation(0, 1)),)


def test_a_member_missing_for_good_needs_an_unclean_election() -> None:
    decision = decide(_lost_by_all(3, unclean=True), _back(1), {1: LogEnd(1, 9)})
    assert isinstance(decision, Elected)
    assert decision.record.recovery == "unclean"
    assert isinstance(decide(_lost_by_all(3), _back(1)), Offline)


def test_an_unclean_election_asks_first_who_has_lost_least() -> None:
    asked = decide(_lost_by_all(3, unclean=True), _back(0, 1))
    assert isinstance(asked, Offline)
    assert asked.ask == (0, 1)
    ends = {0: LogEnd(1, 9), 1: LogEnd(2, 3)}
    decision = decide(_lost_by_all(3, unclean=True), _back(0, 1), ends)
    assert isinstance(decision, Elected)
    assert decision.record.leader == Leader(1, 2)


def test_an_unclean_election_passes_over_a_log_that_cant_be_used() -> None:
    record = _lost_by_all(3, unclean=True)
    decision = decide(record, _back(0, 1), {0: NO_LOG, 1: LogEnd(0, 1)})
    assert isinstance(decision, Elected)
    assert decision.record.leader == Leader(1, 2)
    alone = decide(record, _back(0))
    assert isinstance(alone, Offline)
    assert alone.ask == (0,)
    assert isinstance(decide(record, _back(0), {0: NO_LOG}), Offline)


def test_a_broken_log_among_all_members_is_none_that_decides() -> None:
    ends = {0: LogEnd(1, 9), 1: NO_LOG, 2: LogEnd(2, 4)}
    assert isinstance(decide(_lost_by_all(3), _back(0, 1, 2), ends), Offline)


@given(records(), clusters, st.sampled_from(BROKERS))
def test_a_command_elects_only_where_nobody_can_lead_with_all_records(
    record: PartitionRecord, brokers: dict[int, BrokerStatus], chosen: int
) -> None:
    decision = by_command(record, brokers, chosen)
    standing = [m for m in (*record.isr, *record.elr) if has_standing(m, brokers)]
    if isinstance(decision, Offline):
        assert decision.reason
        return
    assert not standing
    transitions.check_step(record, decision.record)
    assert decision.record.recovery == "unclean"
    assert decision.record.leader == Leader(chosen, brokers[chosen].session)
    assert decision.record.isr == (Member(chosen, brokers[chosen].generation),)


def test_a_draining_leader_hands_over_only_if_somebody_else_can_lead() -> None:
    zero = Generation(0, 0)
    record = replace(_lost_by_all(2), leader=Leader(0, 1))
    draining = BrokerStatus(1, zero, live=True, state="draining")
    assert decide(record, {0: draining}) == Stays()
    moved = decide(record, {0: draining, 1: BrokerStatus(1, zero, live=True)})
    assert isinstance(moved, Elected)
    assert moved.record.leader == Leader(1, 1)
    assert moved.record.isr == (Member(1, zero),), "nothing waits for the one that leaves"
    needed = decide(replace(record, min_isr=2), {0: draining, 1: BrokerStatus(1, zero, live=True)})
    assert isinstance(needed, Elected)
    assert len(needed.record.isr) == 2, "the minimum needs it"


def test_followers_that_leave_go_together_or_not_at_all() -> None:
    zero = Generation(0, 0)
    record = replace(_lost_by_all(3), leader=Leader(0, 1), min_isr=2)
    stays = {broker: BrokerStatus(1, zero, live=True) for broker in range(3)}
    leaves = {b: BrokerStatus(1, zero, live=True, state="draining") for b in range(3)}
    assert leaving(record, stays) == set()
    assert leaving(record, {**stays, 2: leaves[2]}) == {2}
    assert leaving(record, {0: stays[0], 1: leaves[1], 2: leaves[2]}) == set()
    assert leaving(replace(record, min_isr=1), leaves) == set(), "the leader leaves as well"


def test_nobody_left_in_isr_and_elr_is_offline_with_a_reason() -> None:
    record = replace(_lost_by_all(1), isr=(), leader=None)
    decision = decide(record, _back(0))
    assert isinstance(decision, Offline)
    assert "no replica is left" in decision.reason
