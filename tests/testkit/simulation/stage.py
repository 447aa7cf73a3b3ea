"""Worlds that follow a script: the traces of replication.md 2.2, step by step, on real nodes.

The brokers' own controllers never get their lock (somebody else holds it), so that the script alone
elects and removes, as any controller might. Everything else is production's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from headrace.broker.controller.leases import Lease
from headrace.broker.core import transitions
from headrace.broker.core.election import has_standing
from headrace.broker.core.model import BrokerStatus, Leader, Member, PartitionRecord
from headrace.broker.groups.records import OffsetValue
from headrace.broker.partition.partition import Partition
from headrace.broker.store import keys
from headrace.broker.store.base import Change
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.replication import FETCH
from testkit.simulation.broker import SimBroker, ask
from testkit.simulation.clients import Producer
from testkit.simulation.groups import READ_TOPIC, GroupMember, read_offsets
from testkit.simulation.loop import Process
from testkit.simulation.wire import ANSWER, ASK, CAS, NEWS, Message, Verdict
from testkit.simulation.world import World

STEP_S = 30.0
"""How long a step of a script may take."""


class Hold:
    """Messages that are kept back since it was made."""

    def __init__(self, stage: Stage, rule: Callable[[Message], bool], verdict: Verdict) -> None:
        self._wire = stage.world.wire
        self._rule = rule
        self._verdict = verdict
        self.messages: list[Message] = []
        self._wire.rules.append(self._judge)

    def _judge(self, message: Message) -> Verdict | None:
        if not self._rule(message):
            return None
        self.messages.append(message)
        return self._verdict

    def release_first(self) -> None:
        """The first of them arrives."""
        self._wire.release(self.messages[0])

    def end(self) -> None:
        """What comes now passes; what is held stays so."""
        self._wire.rules.remove(self._judge)


class Stage:
    """A world of three brokers with the topic led by `a`; `b` and `c` follow, all in sync."""

    def __init__(
        self, *, min_isr: int, seed: int = 1, topic: str = READ_TOPIC, is_verbose: bool = False
    ) -> None:
        """The seed decides what the script leaves open."""
        self.world = World(
            seed, min_isr=min_isr, topic=topic, is_verbose=is_verbose, is_scripted=True
        )

    def begin(self) -> None:
        """All run, and nobody but the script is the controller."""
        if self.world.groups is None:
            self._hold_lock(0)
        self.world.begin()
        if self.world.groups is not None:  # a controller has made `__offsets`
            self._hold_lock(0)
        self.world.run(2.0)
        leader = self.world.leader()
        assert leader is not None
        self.a = leader
        self.b, self.c = [each for each in self.world.brokers if each is not leader]

    def _hold_lock(self, beat: int) -> None:
        """Somebody else is the controller."""
        cluster, key = self.world.cluster, keys.CONTROLLER_LEASE
        item = cluster.objects.get(key)
        lease = Lease(99, 1, beat, term=1).encode()
        cluster.write(Change(key, lease, item.revision if item else None), "the script")
        self.world.loop.at(1.0, self._hold_lock, beat + 1)

    # --- looking ----------------------------------------------------------------------------------

    def partition(self, broker: SimBroker) -> Partition:
        """The topic's partition on a broker."""
        found = broker.node.partitions.get(TopicIdPartition(self.world.topic_id, 0))
        assert found is not None
        return found

    def end(self, broker: SimBroker) -> int:
        """Where the broker's log ends."""
        return self.partition(broker).log.end_offset

    @property
    def record(self) -> PartitionRecord:
        """The record in the store."""
        found = self.world.record()
        assert found is not None
        return found

    def in_isr(self, broker: SimBroker) -> bool:
        """Whether the store says so."""
        return self.record.in_isr(broker.id) is not None

    def leads(self, broker: SimBroker) -> bool:
        """Whether the broker leads under the record in the store."""
        return self.world.leader() is broker

    def hears(self, leader: SimBroker, follower: SimBroker) -> bool:
        """Whether the leader knows how far the follower is."""
        replicas = self.partition(leader).replicas
        return replicas is not None and follower.id in replicas.followers

    # --- time -------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        self.world.run(seconds)

    def until(self, done: Callable[[], object]) -> None:
        """Lets time pass until something is so."""
        self.world.until(done, STEP_S)

    # --- messages ---------------------------------------------------------------------------------

    def hold(
        self,
        kind: str,
        source: SimBroker | None,
        target: SimBroker | None,
        what: str,
        *,
        once: Callable[[], bool] = lambda: True,
    ) -> Hold:
        """Keeps messages back from now on, or from the first one that is sent `once` something is
        so; `what` is a part of what they are about."""
        rule = _rule(kind, source, target, what)
        held = Hold(self, lambda each: rule(each) and bool(held.messages or once()), "hold")
        return held

    def lose(
        self, kind: str, source: SimBroker | None, target: SimBroker | None, what: str
    ) -> Hold:
        """Loses messages from now on."""
        return Hold(self, _rule(kind, source, target, what), "drop")

    def hold_writes(self, broker: SimBroker) -> Hold:
        """Keeps back what a leader writes about its ISR."""
        return self.hold(CAS, broker, None, keys.shard(self.world.topic, 0))

    def lose_answers(self, source: SimBroker, target: SimBroker) -> Hold:
        """Loses what a leader answers a follower."""
        return self.lose(ANSWER, source, target, FETCH)

    def lose_news(self, broker: SimBroker) -> Hold:
        """The broker hears nothing from the store's watch."""
        return self.lose(NEWS, None, broker, "")

    def cut(self, one: SimBroker, other: SimBroker) -> None:
        """Nothing passes between two brokers any more."""
        self.world.wire.isolate(one.name, [other.name])

    def leave_behind(self, broker: SimBroker) -> None:
        """Cuts a follower off from the leader, until it is too late to join the ISR at once."""
        self.cut(self.a, broker)
        self.run(6.0)

    def is_waiting(self, follower: SimBroker, leader: SimBroker) -> bool:
        """Whether a fetch of the follower waits at the leader."""
        return any(e.source == follower.name and e.what == FETCH for e in leader.asked.values())

    def replicate_to_b(self) -> Hold:
        """A record goes to a's log and to b's; b's next fetch, which says so, is held."""
        held = self.hold(ASK, self.b, self.a, FETCH, once=lambda: self.end(self.b) == 1)
        self.produce(self.a)
        self.until(lambda: self.end(self.b) == 1 and held.messages)
        return held

    # --- members of a group -----------------------------------------------------------------------

    def join(self, *, polls: bool = False, commits: bool = True) -> GroupMember:
        """One more member, which has got its share."""
        member = self.world.join(polls=polls, commits=commits)
        self.until(lambda: self.world.is_read() and member.owns())
        return member

    def read_offsets(self, broker: SimBroker) -> None:
        """Somebody asks that broker what is committed."""
        world, groups = self.world, self.world.groups
        assert groups is not None
        process = Process(world.loop, "somebody")

        async def read() -> None:
            try:
                found: dict[TopicIdPartition, OffsetValue] = await ask(
                    world, process, broker, "offsets", read_offsets, timeout_s=STEP_S
                )
            except HeadraceError as error:
                world.trace(f"no offsets at {broker.name}: {error}")
            else:
                groups.told(found.values())

        process.spawn(read()).add_done_callback(_raise)
        self.run(1.0)

    def part(self, name: str, *others: str) -> None:
        """Nothing passes between one and others any more, by their names."""
        self.world.wire.isolate(name, list(others))

    # --- clients ----------------------------------------------------------------------------------

    def produce(self, broker: SimBroker, *, acks: int = 1) -> Producer:
        """Somebody sends a record to that broker, once."""
        producer = Producer(self.world, len(self.world.producers), acks=acks)
        self.world.producers.append(producer)
        self._spawn(producer, producer.send_once(broker))
        self.run(0.05)
        return producer

    def again(self, producer: Producer, broker: SimBroker) -> None:
        """The producer sends the same record once more."""
        self._spawn(producer, producer.send_once(broker))
        self.run(0.05)

    def _spawn(self, producer: Producer, work: Coroutine[None, None, object]) -> None:
        task: asyncio.Task[object] = producer.process.spawn(work)
        task.add_done_callback(_raise)

    # --- what a controller does -------------------------------------------------------------------

    def status(self, broker: SimBroker) -> BrokerStatus:
        """The broker as it registered, believed to live."""
        session, generation = self.world.registered(broker.id)
        assert generation is not None
        return BrokerStatus(session, generation, live=True)

    def elect(self, broker: SimBroker, *, keep: tuple[SimBroker, ...] = ()) -> bool:
        """Elects one with standing, by core's own rules, keeping these in the ISR; whether it has
        been, and then leads."""
        status = {broker.id: self.status(broker)}

        def step(record: PartitionRecord) -> transitions.Step:
            members = {m.broker_id: m for m in (*record.isr, *record.elr)}
            entry = members.get(broker.id)
            if entry is not None and not has_standing(entry, status):
                return transitions.Refusal("no standing")
            isr = [entry or Member(broker.id, status[broker.id].generation)]
            isr += [members[each.id] for each in keep if each.id in members]
            leader = Leader(broker.id, status[broker.id].session)
            return transitions.elect(record, leader=leader, isr=isr)

        return self.change(step)

    def remove(self, *brokers: SimBroker) -> bool:
        """Takes brokers out of the ISR, one after another."""
        done = [self.change(partial(transitions.remove_dead, dead=[b.id])) for b in brokers]
        return all(done)

    def change(self, step: Callable[[PartitionRecord], transitions.Step]) -> bool:
        """Takes a step with the record in the store; whether it is legal."""
        return self.world.change_record(step, who="the script")


def _rule(
    kind: str, source: SimBroker | None, target: SimBroker | None, what: str
) -> Callable[[Message], bool]:
    def matches(message: Message) -> bool:
        return (
            message.kind == kind
            and (source is None or message.source == source.name)
            and (target is None or message.target == target.name)
            and (what == message.what or (what != FETCH and what in message.what))
        )

    return matches


def _raise(task: asyncio.Task[object]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, AssertionError):
        raise error
