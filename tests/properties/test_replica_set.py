"""Random lives of three replicas under the leader's rules: nothing that was committed is lost.

The decisions are production's (ReplicaSet, fetch_rules, transitions); logs, messages and the store
are lists. Messages are delivered late, again or never, a compare-and-swap is applied long after it
was sent or never, brokers stand still, lose the tail of their log, and are elected by anybody.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.broker.core import transitions
from headrace.broker.core.fetch_rules import NO_EPOCH, Diverging, Valid, cut_at, validate
from headrace.broker.core.model import (
    BrokerStatus,
    Generation,
    Leader,
    Member,
    PartitionRecord,
)
from headrace.broker.core.replica_set import LeaderLog, ReplicaSet
from headrace.protocol.ids import TopicId

BROKERS = (0, 1, 2)
TOPIC = TopicId(b"t" * 16)
LAG_S = 10.0
Entry = tuple[int, int]
"""Epoch and value of a record."""

WALKS = 500
"""Lives in one test; uniform steps of a general tool find the same faults a hundred times later."""

STEPS = 60


@dataclass
class Replica:
    broker_id: int
    power_gen: int = 0
    log: list[Entry] = field(default_factory=list)
    high_watermark: int = 0
    record: PartitionRecord | None = None
    leading: ReplicaSet | None = None

    @property
    def generation(self) -> Generation:
        return Generation(0, self.power_gen)

    @property
    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else NO_EPOCH

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """As `EpochCache.end_offset`."""
        earlier = [place for place, entry in enumerate(self.log) if entry[0] <= epoch]
        if not earlier:
            return NO_EPOCH, 0
        return self.log[earlier[-1]][0], earlier[-1] + 1


@dataclass(frozen=True)
class Request:
    sender: int
    generation: Generation
    epoch: int
    offset: int
    last_epoch: int


@dataclass(frozen=True)
class Response:
    receiver: int
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int
    data: tuple[Entry, ...] = ()
    diverging: Diverging | None = None


class Life:
    def __init__(self, min_isr: int) -> None:
        self.replicas = [Replica(broker_id) for broker_id in BROKERS]
        self.now_s = 0.0
        self.value = 0
        self.requests: list[Request] = []
        self.responses: list[Response] = []
        self.sent: list[tuple[Replica, PartitionRecord, PartitionRecord]] = []
        self.committed: list[Entry] = []
        created = transitions.create(
            TOPIC, 0, BROKERS, brokers=self.statuses(), min_isr=min_isr, unclean=False
        )
        assert isinstance(created, PartitionRecord)
        self.store = created
        for broker_id in BROKERS:
            self.take_role(broker_id)

    def statuses(self) -> dict[int, BrokerStatus]:
        return {each.broker_id: BrokerStatus(1, each.generation, True) for each in self.replicas}

    # --- the store ---

    def learn(self, broker_id: int) -> None:
        """A broker hears of the record."""
        self.take_role(broker_id)

    def take_role(self, broker_id: int) -> None:
        replica, record = self.replicas[broker_id], self.store
        before, replica.record = replica.record, record
        if (
            record.leader != Leader(broker_id, 1)
            or Member(broker_id, replica.generation) not in record.isr
        ):
            replica.leading = None
        elif (
            replica.leading is None
            or before is None
            or (before.leader_epoch != record.leader_epoch)
        ):
            replica.leading = ReplicaSet(
                record, me=record.leader, epoch_start=len(replica.log), now_s=self.now_s
            )
            self.advance(replica)
        else:
            replica.leading.take(record)
            self.advance(replica)

    def elect(self, broker_id: int, keep: set[int]) -> None:
        """Anybody elects anybody with standing, keeping any of the ISR."""
        statuses, record = self.statuses(), self.store
        standing = [e for e in record.isr if statuses[e.broker_id].generation == e.generation]
        isr = [e for e in standing if e.broker_id in keep or e.broker_id == broker_id]
        if broker_id not in {e.broker_id for e in standing}:
            elr = [
                e for e in record.elr if e == Member(broker_id, self.replicas[broker_id].generation)
            ]
            isr = elr if not standing else []
        if isr:
            step = transitions.elect(record, leader=Leader(broker_id, 1), isr=isr)
            if isinstance(step, PartitionRecord):
                self.store = step

    def bury(self, broker_id: int) -> None:
        """Somebody takes a follower out that seems dead."""
        step = transitions.remove_dead(self.store, {broker_id})
        if isinstance(step, PartitionRecord):
            self.store = step

    # --- the leader ---

    def append(self, broker_id: int) -> None:
        replica = self.replicas[broker_id]
        if replica.leading is not None:
            self.value += 1
            replica.log.append((replica.leading.record.leader_epoch, self.value))
            self.advance(replica)

    def advance(self, replica: Replica) -> None:
        assert replica.leading is not None
        end = replica.leading.committed_end(len(replica.log))
        if end > replica.high_watermark:
            replica.high_watermark = end
            self.expose(replica)

    def expose(self, replica: Replica) -> None:
        """What lies below a high watermark is told to readers, and must never change."""
        for offset, entry in enumerate(replica.log[: replica.high_watermark]):
            if offset < len(self.committed):
                assert self.committed[offset] == entry, "two records at one offset"
            else:
                self.committed.append(entry)

    def change_isr(self, broker_id: int) -> None:
        replica = self.replicas[broker_id]
        if replica.leading is None or replica.leading.pending:
            return
        wanted = replica.leading.next_record(
            self.statuses(),
            log=LeaderLog(high_watermark=replica.high_watermark, end_offset=len(replica.log)),
            now_s=self.now_s,
            lag_s=LAG_S,
        )
        if wanted is not None:
            base = replica.leading.record
            replica.leading.propose(wanted)
            self.sent.append((replica, base, wanted))

    def swap(self, pick: int) -> None:
        """A compare-and-swap reaches the store; its answer may get lost."""
        if not self.sent:
            return
        _sender, base, wanted = self.sent[-1 - pick % len(self.sent)]
        if self.store == base:
            self.store = wanted

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    # --- messages ---

    def ask(self, broker_id: int) -> None:
        replica = self.replicas[broker_id]
        if replica.record is not None and replica.leading is None:
            self.requests.append(
                Request(
                    broker_id, replica.generation, replica.record.leader_epoch,
                    len(replica.log), replica.last_epoch,
                )
            )  # fmt: skip

    def copy(self, broker_id: int, rounds: int) -> None:
        """All goes well for a while: what uniform steps hardly ever reach."""
        leader = self.store.leader
        if leader is None or leader.broker_id == broker_id:
            return
        self.take_role(leader.broker_id)
        self.take_role(broker_id)
        for _round in range(rounds):
            before = len(self.requests)
            self.ask(broker_id)
            if len(self.requests) > before:
                answers = len(self.responses)
                self.answer(0, leader.broker_id, again=True)
                if len(self.responses) > answers:
                    self.take(0, again=True)

    def answer(self, pick: int, broker_id: int, again: bool) -> None:
        """A leader gets a request, perhaps an old one."""
        if not self.requests:
            return
        request = self.requests[-1 - pick % len(self.requests)]
        if not again:
            self.requests.remove(request)
        leader = self.replicas[broker_id]
        if leader.leading is None or leader.leading.record.leader_epoch != request.epoch:
            return
        verdict = validate(
            request.offset, request.last_epoch, start_offset=0, end_offset=len(leader.log),
            epoch_end=leader.epoch_end,
        )  # fmt: skip
        if isinstance(verdict, Diverging):
            self.responses.append(
                Response(
                    request.sender,
                    request.epoch,
                    request.offset,
                    request.last_epoch,
                    0,
                    diverging=verdict,
                )
            )
            return
        assert isinstance(verdict, Valid)
        leader.leading.fetched(
            request.sender, generation=request.generation, session=1, offset=request.offset,
            end_offset=len(leader.log), now_s=self.now_s,
        )  # fmt: skip
        self.advance(leader)
        self.responses.append(
            Response(
                request.sender, request.epoch, request.offset, request.last_epoch,
                leader.high_watermark,
                tuple(leader.log[request.offset :][:2]),
            )
        )  # fmt: skip

    def take(self, pick: int, again: bool) -> None:
        """A follower gets an answer, perhaps an old one."""
        if not self.responses:
            return
        response = self.responses[-1 - pick % len(self.responses)]
        if not again:
            self.responses.remove(response)
        replica = self.replicas[response.receiver]
        if replica.record is None or replica.leading is not None:
            return
        if response.epoch != replica.record.leader_epoch:
            return
        if (response.offset, response.last_epoch) != (len(replica.log), replica.last_epoch):
            return
        if response.diverging is not None:
            end = cut_at(
                response.diverging, end_offset=len(replica.log), epoch_end=replica.epoch_end
            )
            assert end >= replica.high_watermark, "cut below its own high watermark"
            assert end < len(replica.log), "no progress"
            del replica.log[end:]
            return
        replica.log.extend(response.data)
        replica.high_watermark = max(
            replica.high_watermark, min(response.high_watermark, len(replica.log))
        )
        self.expose(replica)

    def lose_the_tail(self, broker_id: int, left: int) -> None:
        """A machine crash, as long as another member with standing is left (A1)."""
        others = [
            e
            for e in (*self.store.isr, *self.store.elr)
            if e.broker_id != broker_id and e.generation == self.replicas[e.broker_id].generation
        ]
        if not others:
            return
        replica = self.replicas[broker_id]
        replica.log = replica.log[:left]
        replica.high_watermark = min(replica.high_watermark, left)
        replica.power_gen += 1
        replica.leading, replica.record = None, None

    # --- what must hold ---

    def every_leader_of_the_newest_epoch_has_all_that_was_committed(self) -> None:
        for replica in self.replicas:
            if (
                replica.leading is not None
                and replica.leading.record.leader_epoch == self.store.leader_epoch
            ):
                assert replica.log[: len(self.committed)] == self.committed, "committed lost"

    def one_offset_and_epoch_is_one_record(self) -> None:
        logs = [replica.log for replica in self.replicas]
        for one in logs:
            for other in logs:
                for mine, theirs in zip(one, other, strict=False):
                    assert mine == theirs or mine[0] != theirs[0]


def step(life: Life, chance: random.Random) -> None:
    """One thing happens; what goes well is likelier than in life, as faults need it first."""
    broker_id = chance.choice(BROKERS)
    recent = chance.choice([0, 0, 1, 5])
    again = chance.random() < 0.5
    some = {each for each in BROKERS if chance.random() < 0.5}
    steps: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: life.copy(broker_id, chance.randrange(1, 4))),
        (3, lambda: life.append(broker_id)),
        (3, lambda: life.change_isr(broker_id)),
        (2, lambda: life.swap(recent)),
        (2, lambda: life.learn(broker_id)),
        (1, lambda: life.elect(broker_id, some)),
        (1, lambda: life.bury(broker_id)),
        (1, lambda: life.pass_time(chance.choice([1.0, 4.0, 11.0]))),
        (1, lambda: life.ask(broker_id)),
        (1, lambda: life.answer(recent, broker_id, again)),
        (1, lambda: life.take(recent, again)),
        (1, lambda: life.lose_the_tail(broker_id, chance.randrange(4))),
    ]
    chance.choices([do for _, do in steps], [weight for weight, _ in steps])[0]()
    life.every_leader_of_the_newest_epoch_has_all_that_was_committed()
    life.one_offset_and_epoch_is_one_record()


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize("first_seed", range(0, 4 * WALKS, WALKS))
def test_nothing_that_was_committed_is_lost_in_any_life(min_isr: int, first_seed: int) -> None:
    committed = 0
    for seed in range(first_seed, first_seed + WALKS):
        life, chance = Life(min_isr), random.Random(seed)
        try:
            for _ in range(STEPS):
                step(life, chance)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, min {min_isr}: {error}") from error
        committed += len(life.committed)
    assert committed > WALKS / 4, "the lives have to get somewhere"
