"""Random lives of one partition record: no step breaks an invariant, and whoever is elected with
standing has every committed record, as long as one member keeps its log (assumption A1).

The model beside the record is small: `complete` holds the log contents (broker, generation) that
have all committed records. A commit needs a leader and the minimum in the ISR, and is on all of
the ISR; a broker that loses its tail gets a new generation and is complete no more.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.broker.core import election, encoding, moving, transitions
from headrace.broker.core.model import (
    BrokerStatus,
    Generation,
    Leader,
    Member,
    Move,
    PartitionRecord,
    Shard,
)
from headrace.broker.core.transitions import Progress, Refusal, Step
from headrace.protocol.ids import TopicId

BROKERS = (0, 1, 2)
SPARE = 3
EVERYBODY = (*BROKERS, SPARE)
TOPIC = TopicId(b"t" * 16)
broker_ids = st.sampled_from(EVERYBODY)


def status(session: int = 1, *, power_gen: int = 0, live: bool = True) -> BrokerStatus:
    return BrokerStatus(session, Generation(0, power_gen), live)


class RecordLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.brokers = {broker: status() for broker in EVERYBODY}
        created = transitions.create(
            TOPIC, 0, BROKERS, brokers=self.brokers, min_isr=2, unclean=False
        )
        assert isinstance(created, PartitionRecord)
        self.record = created
        self.complete = set(created.isr)

    def take(self, step: Step) -> bool:
        """Goes on with the step unless it was refused; whether it wasn't."""
        if isinstance(step, Refusal):
            return False
        transitions.check_step(self.record, step)
        self.record = step
        return True

    def present(self, broker: int) -> Member:
        return Member(broker, self.brokers[broker].generation)

    def leads(self) -> bool:
        leader = self.record.leader
        return leader is not None and leader.session == self.brokers[leader.broker_id].session

    @rule()
    def commit(self) -> None:
        """All of the ISR must have the record, each with the generation of its entry."""
        enough = len(self.record.isr) >= self.record.min_effective
        if self.leads() and enough and all(self.present(e[0]) == e for e in self.record.isr):
            self.complete = set(self.record.isr)

    @rule(broker=broker_ids)
    def crash(self, broker: int) -> None:
        self.brokers[broker] = replace(self.brokers[broker], live=False)

    @rule(broker=broker_ids)
    def restart(self, broker: int) -> None:
        before = self.brokers[broker]
        self.brokers[broker] = replace(before, session=before.session + 1, live=True)

    @rule(broker=broker_ids)
    def lose_the_tail(self, broker: int) -> None:
        """Only while another valid member of ISR or ELR is left: assumption A1."""
        members = (*self.record.isr, *self.record.elr)
        if not any(self.present(e[0]) == e and e[0] != broker for e in members):
            return
        before = self.brokers[broker]
        generation = Generation(0, before.generation.power_gen + 1)
        self.brokers[broker] = replace(before, session=before.session + 1, generation=generation)

    @rule(broker=broker_ids)
    def break_the_log(self, broker: int) -> None:
        """As `lose_the_tail`, but of this partition only (R23): the entry has to go at once."""
        members = (*self.record.isr, *self.record.elr)
        if not any(self.present(e[0]) == e and e[0] != broker for e in members):
            return
        before = self.record
        if self.take(transitions.remove_broken(before, broker)):
            assert self.record.leader_epoch == before.leader_epoch + 1
        self.complete.discard(self.present(broker))

    @rule(broker=broker_ids)
    def shrink(self, broker: int) -> None:
        if self.record.leader and self.leads():
            self.take(transitions.shrink(self.record, leader=self.record.leader, remove={broker}))

    @rule(broker=broker_ids)
    def remove_dead(self, broker: int) -> None:
        self.take(transitions.remove_dead(self.record, {broker}))

    @rule(broker=broker_ids)
    def expand(self, broker: int) -> None:
        """The follower has fetched all that the leader has, so also all that is committed."""
        if self.record.leader is None or not self.leads():
            return
        leader_entry = self.record.in_isr(self.record.leader.broker_id)
        assert leader_entry is not None
        here = self.brokers[broker]
        progress = Progress(
            leader_epoch=self.record.leader_epoch, generation=here.generation, offset=5
        )
        expanded = self.take(
            transitions.expand(
                self.record,
                leader=self.record.leader,
                follower=broker,
                progress=progress,
                status=here,
                high_watermark=5,
                epoch_start_offset=5,
            )
        )
        if expanded and leader_entry in self.complete:
            self.complete.add(self.present(broker))

    @rule(minimum=st.integers(1, 4))
    def set_min(self, minimum: int) -> None:
        self.take(transitions.set_min(self.record, minimum))

    @rule(wanted=st.lists(broker_ids, unique=True, min_size=1))
    def begin_to_move(self, wanted: list[int]) -> None:
        before = self.record
        if self.take(transitions.begin_reassignment(before, wanted)):
            assert set(before.replicas) | set(wanted) == set(self.record.replicas)
            assert self.record.replicas[: len(wanted)] == tuple(wanted)
            assert (self.record.isr, self.record.leader) == (before.isr, before.leader)

    @rule(wanted=st.lists(broker_ids, unique=True, min_size=1))
    def move_elsewhere(self, wanted: list[int]) -> None:
        before = self.record
        if self.take(transitions.redirect_reassignment(before, wanted)):
            assert set(before.replicas) | set(wanted) == set(self.record.replicas)
            kept = set(self.record.replicas) - set(self.record.removing)
            assert kept == set(wanted)
            assert set(before.adding) <= set(self.record.adding)
            assert transitions.is_moving(self.record)
            assert (self.record.isr, self.record.leader) == (before.isr, before.leader)

    @rule()
    def finish_to_move(self) -> None:
        before = self.record
        if self.take(transitions.finish_reassignment(before, self.brokers)):
            assert not transitions.is_moving(self.record)
            assert {e.broker_id for e in self.record.isr} == set(self.record.replicas)
            self.a_leaving_replica_ends_the_epoch(before)

    @rule(order=st.permutations(BROKERS))
    def cancel_to_move(self, order: list[int]) -> None:
        before = self.record
        if self.take(transitions.cancel_reassignment(before, self.brokers, order=order)):
            assert set(self.record.replicas) == set(before.replicas) - set(before.adding)
            self.a_leaving_replica_ends_the_epoch(before)

    def a_leaving_replica_ends_the_epoch(self, before: PartitionRecord) -> None:
        left = set(before.replicas) - set(self.record.replicas)
        assert self.record.leader_epoch == before.leader_epoch + bool(left)
        assert set(self.record.isr) <= set(before.isr)
        assert before.leader is None or self.record.leader is not None
        assert not before.isr or self.record.isr, "the last copies were taken out"

    @rule()
    def prefer_the_first(self) -> None:
        before = self.record
        step = election.prefer(before, self.brokers)
        if self.take(step):
            assert self.record.leader is not None
            assert self.record.leader.broker_id == self.record.replicas[0]
            assert self.record.isr == before.isr
            assert self.present(self.record.replicas[0]) in before.isr

    @rule()
    def elect(self) -> None:
        decision = election.decide(self.record, self.brokers)
        if not isinstance(decision, election.Elected):
            return
        before = self.record
        assert self.take(decision.record)
        assert self.record.leader is not None
        entry = self.present(self.record.leader.broker_id)
        assert entry in (*before.isr, *before.elr) or self.record.recovery == "possible_loss"
        if self.record.recovery == "none":
            assert entry in self.complete
        else:
            assert not self.anybody_has_standing(before)
            self.complete = {entry}

    def anybody_has_standing(self, record: PartitionRecord) -> bool:
        return any(
            election.has_standing(entry, self.brokers) for entry in (*record.isr, *record.elr)
        )

    @invariant()
    def the_record_is_possible_and_survives_the_store(self) -> None:
        transitions.check_invariants(self.record)
        shard = Shard(TOPIC, 0, (self.record,))
        assert encoding.decode_shard(encoding.encode_shard(shard)) == shard


RecordLife.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_lives_of_a_record = RecordLife.TestCase


def _record(**changes: object) -> PartitionRecord:
    zero = Generation(0, 0)
    record = PartitionRecord(
        topic_id=TOPIC,
        partition=0,
        partition_epoch=5,
        leader_epoch=3,
        leader=Leader(0, 1),
        isr=(Member(0, zero), Member(1, zero)),
        elr=(),
        replicas=BROKERS,
        min_isr=2,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_an_expand_without_each_of_its_conditions_is_refused() -> None:
    good: dict[str, object] = {
        "leader": Leader(0, 1),
        "follower": 2,
        "progress": Progress(leader_epoch=3, generation=Generation(0, 0), offset=10),
        "status": status(),
        "high_watermark": 10,
        "epoch_start_offset": 8,
    }
    assert isinstance(transitions.expand(_record(), **good), PartitionRecord)  # type: ignore[arg-type]
    bad: list[dict[str, object]] = [
        {"leader": Leader(0, 2)},
        {"leader": Leader(1, 1)},
        {"follower": 1},
        {"follower": 7},
        {"progress": Progress(leader_epoch=2, generation=Generation(0, 0), offset=10)},
        {"progress": Progress(leader_epoch=3, generation=Generation(0, 1), offset=10)},
        {"progress": Progress(leader_epoch=3, generation=Generation(0, 0), offset=9)},
        {"epoch_start_offset": 11},
        {"status": status(live=False)},
        {"status": BrokerStatus(1, Generation(0, 0), live=True, state="draining")},
    ]
    for change in bad:
        step = transitions.expand(_record(), **{**good, **change})  # type: ignore[arg-type]
        assert isinstance(step, Refusal), change
    removing = _record(removing=(2,))
    assert isinstance(transitions.expand(removing, **good), Refusal)  # type: ignore[arg-type]


def test_an_election_may_not_add_to_the_isr_nor_pick_from_outside() -> None:
    zero = Generation(0, 0)
    record = _record(isr=(Member(0, zero),), elr=(Member(1, zero),), leader=None)
    for leader, isr in (
        (Leader(2, 1), [Member(2, zero)]),
        (Leader(0, 1), [Member(0, zero), Member(1, zero)]),
        (Leader(1, 1), [Member(1, zero), Member(0, zero)]),
        (Leader(0, 1), [Member(0, Generation(0, 1))]),
        (Leader(0, 1), []),
    ):
        assert isinstance(transitions.elect(record, leader=leader, isr=isr), Refusal)


def test_lowering_the_minimum_empties_the_elr_in_the_same_step() -> None:
    record = _record(isr=(Member(0, Generation(0, 0)),), elr=(Member(1, Generation(0, 0)),))
    lowered = transitions.set_min(record, 1)
    assert isinstance(lowered, PartitionRecord)
    assert (lowered.min_isr, lowered.elr) == (1, ())


def test_impossible_records_are_named_as_such() -> None:
    zero = Generation(0, 0)
    broken = [
        _record(leader=Leader(2, 1)),
        _record(isr=(Member(0, zero), Member(7, zero))),
        _record(isr=(Member(0, zero), Member(0, Generation(0, 1)))),
        _record(elr=(Member(2, zero),)),
        _record(replicas=(0, 0, 1, 2)),
        _record(replicas=(), isr=(), leader=None),
        _record(min_isr=0),
        _record(adding=(9,)),
        _record(adding=(2,), removing=(2,)),
        _record(leader_epoch=6),
    ]
    for record in broken:
        assert len(transitions.violations(record)) >= 1, record
        raw = encoding.encode_shard(Shard(TOPIC, 0, (record, _record(partition=1))))
        decoded = encoding.decode_shard(raw)
        assert isinstance(decoded, Shard)
        assert not isinstance(decoded.records[0], PartitionRecord)
        assert decoded.records[1] == _record(partition=1)
        assert encoding.encode_shard(decoded) == raw


def test_a_move_goes_step_by_step_and_hands_the_leadership_over() -> None:
    zero = Generation(0, 0)
    brokers = {broker: status() for broker in range(4)}
    begun = transitions.begin_reassignment(_record(), (3, 2, 1))
    assert isinstance(begun, PartitionRecord)
    assert (begun.replicas, begun.adding, begun.removing) == ((3, 2, 1, 0), (3,), (0,))
    assert begun.leader_epoch == 3
    waiting = transitions.finish_reassignment(begun, brokers)
    assert waiting == Refusal("waiting for broker 3, 2 to be in sync")
    full = replace(begun, isr=tuple(Member(broker, zero) for broker in range(4)))
    finished = transitions.finish_reassignment(full, brokers)
    assert isinstance(finished, PartitionRecord)
    assert finished.replicas == (3, 2, 1)
    assert (finished.leader, finished.leader_epoch) == (Leader(3, 1), 4)
    stale = {**brokers, 3: status(power_gen=1)}
    assert isinstance(transitions.finish_reassignment(full, stale), Refusal)


def test_a_cancelled_move_restores_the_order_of_before() -> None:
    brokers = {broker: status() for broker in range(4)}
    begun = transitions.begin_reassignment(_record(), (3, 2, 1))
    assert isinstance(begun, PartitionRecord)
    back = transitions.cancel_reassignment(begun, brokers, order=BROKERS)
    assert isinstance(back, PartitionRecord)
    assert (back.replicas, back.adding, back.removing) == (BROKERS, (), ())
    assert back.leader_epoch == 4


def test_a_cancel_that_would_leave_too_few_copies_is_refused() -> None:
    zero = Generation(0, 0)
    brokers = {broker: status(live=broker == 3) for broker in range(4)}
    begun = transitions.begin_reassignment(_record(), (3, 2, 1))
    assert isinstance(begun, PartitionRecord)
    moved = replace(begun, isr=(Member(3, zero),), leader=Leader(3, 1))
    refused = transitions.cancel_reassignment(moved, brokers)
    assert isinstance(refused, Refusal)
    assert "records could be lost" in refused.reason


def alone() -> PartitionRecord:
    """Broker 0 has the only copy."""
    return _record(replicas=(0,), isr=(Member(0, Generation(0, 0)),))


def test_a_drain_of_a_broker_that_dies_while_copies_of_it_are_added_goes_on_without_it() -> None:
    """From one replica to three; all are there when the first is to leave, and it dies."""
    zero = Generation(0, 0)
    live = {broker: status() for broker in range(3)}
    begun = transitions.begin_reassignment(alone(), (0, 1, 2))
    assert isinstance(begun, PartitionRecord)
    members = (Member(1, zero), Member(2, zero))
    led = replace(begun, isr=members, leader=Leader(1, 1), leader_epoch=4, partition_epoch=9)
    dead = {**live, 0: status(live=False)}
    assert isinstance(transitions.cancel_reassignment(led, dead), Refusal)
    drained = Move((2, 1), (0, 1, 2))
    turned = moving.next_step(led, drained, dead, may_begin=False)
    assert isinstance(turned, PartitionRecord)
    assert (turned.replicas, turned.removing) == ((2, 1, 0), (0,))
    over = moving.next_step(turned, drained, dead, may_begin=False)
    assert isinstance(over, PartitionRecord)
    assert (over.replicas, transitions.is_moving(over)) == ((2, 1), False)


def test_a_replica_that_is_no_longer_wanted_is_kept_while_nobody_else_has_the_records() -> None:
    """From 0 to 2, which has all when 0 dies; then 1 is wanted: 2 takes over first."""
    zero = Generation(0, 0)
    brokers = {0: status(live=False), 1: status(), 2: status()}
    begun = transitions.begin_reassignment(alone(), (2,))
    assert isinstance(begun, PartitionRecord)
    led = replace(
        begun, isr=(Member(2, zero),), leader=Leader(2, 1), leader_epoch=4, partition_epoch=9
    )
    step = moving.next_step(led, Move((1,), (0,)), brokers, may_begin=False)
    assert isinstance(step, PartitionRecord)
    assert (step.replicas, step.isr) == ((2,), (Member(2, zero),))


def test_every_point_of_a_move_leads_on_to_the_target() -> None:
    """Whoever comes after a death of the controller finds in the record what is left to do."""
    zero = Generation(0, 0)
    brokers = {broker: status() for broker in range(6)}
    record = _record()
    target = (5, 4, 3)
    seen = [record]
    for _ in range(10):
        step = transitions.begin_reassignment(record, target)
        if isinstance(step, Refusal):
            step = transitions.finish_reassignment(record, brokers)
        if isinstance(step, Refusal) and (
            missing := [b for b in record.replicas if record.in_isr(b) is None]
        ):
            step = replace(
                record,
                isr=(*record.isr, Member(missing[0], zero)),
                partition_epoch=record.partition_epoch + 1,
            )
        if isinstance(step, Refusal):
            break
        record = step
        transitions.check_invariants(record)
        seen.append(record)
    assert record.replicas == target
    assert not transitions.is_moving(record)
    assert len(seen) > 5
