"""What befalls a world: the kinds of worlds, the faults, and how often each comes.

Uniform chance misses the deadliest faults (replication.md 2.3), so the worlds are tiny and the
schedules biased: answers of the store held over the next append, requests held over crashes and
wipes, elections of the newest ISR member, power cuts that take the whole un-synced tail.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.core import encoding, transitions
from headrace.broker.core.model import Leader, PartitionRecord, Shard, TopicObject
from headrace.broker.store import keys
from headrace.broker.store.base import Change, Item
from headrace.protocol.errors import HeadraceError
from headrace.protocol.names import OFFSETS_TOPIC
from testkit.simulation.broker import SimBroker
from testkit.simulation.clients import Producer
from testkit.simulation.disk import Cut
from testkit.simulation.groups import READ_TOPIC, GroupMember
from testkit.simulation.loop import Stuck
from testkit.simulation.wire import ASK, CAS, TOLD, Message, Verdict, Weather

if TYPE_CHECKING:
    from testkit.simulation.world import World

HEALED_WITHIN_S = 90.0
"""Virtual seconds after which everything must be as before, once nothing befalls it any more."""


KINDS = (
    "clock off by an hour", "controlled stop", "cut off both ways", "cut off one way",
    "disk error EIO", "disk error ENOSPC", "disk replaced", "election by another controller",
    "live leader replaced", "machine rebooted", "message cut off", "message doubled",
    "message held back", "message late", "message lost", "message overtaken", "minimum lowered",
    "process killed", "process paused", "removal by another controller", "store away",
    "store restored", "member killed", "member left", "member paused",
    "un-synced names lost", "un-synced writes lost", "watch broke off", "watch went back",
    "write of unknown outcome, done", "write of unknown outcome, not done (yet)", "write torn",
)  # fmt: skip
"""What befalls worlds, each counted where it happens."""


COPIED_WITHIN_S = 3.0
"""After which every broker has copies of the store's records on its disk."""

RECOVERIES_MAX = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A kind of world. `acts`: names of faults (methods of `Fate`) with their weights."""

    acts: dict[str, float]
    brokers: int = 3
    mins: tuple[int, ...] = (2, 2, 1)
    partitions: int = 1
    """All in one object of the store."""
    records: int = 3
    producers: int = 1
    members: int = 0
    """Of a group; then the partition that all happens to is one of `__offsets`."""
    acts_count: int = 6
    pause_s: float = 2.0
    """The longest time between two faults, and between two records."""
    weathers: tuple[Weather, ...] = (Weather(),)
    config: dict[str, str | int] = field(default_factory=dict)
    biased: bool = False
    restores: bool = False
    """Whether the store is restored from a backup half-way (R27), and put right at the end."""
    skew: bool = False


CRASHES = {"kill": 3.0, "power_cut": 3.0, "wipe": 1.0, "start": 6.0, "stop": 1.0}
CUTS = {"isolate": 3.0, "mend": 3.0, "pause": 2.0, "resume": 3.0}
STORE = {"store_away": 1.5, "store_back": 2.0, "watch_breaks": 1.0, "watch_goes_back": 1.0}
ROUGH = Weather(slow=0.1, slow_s=3.0, loss=0.03, double=0.05, hold=0.03)
FAIR = Weather()
SLOW = Weather(delay_s=0.3, slow=0.1, slow_s=5.0)

PLANS: dict[str, Plan] = {
    "alone": Plan(
        {"kill": 2.0, "power_cut": 3.0, "start": 6.0, "stop": 1.0, "full": 1.0},
        brokers=1, mins=(1,), records=6, config={"flush.policy": "batch", "segment.ms": 1},
    ),
    "tiny": Plan(
        {**CRASHES, **CUTS, "elect": 2.0, "let_go": 3.0, "shrink": 4.0, "broken": 1.5},
        weathers=(FAIR, ROUGH), biased=True,
    ),
    "many": Plan(
        {**CRASHES, **CUTS, **STORE, "elect": 3.0, "let_go": 3.0, "shrink": 3.0, "broken": 0.5},
        partitions=3, producers=3, weathers=(FAIR, ROUGH), biased=True,
    ),
    "store": Plan({**STORE, **CUTS, "kill": 1.0, "start": 3.0, "let_go": 2.0, "elect": 1.0},
                  weathers=(ROUGH, SLOW), biased=True),
    "group": Plan(
        {**CUTS, "kill": 3.0, "start": 6.0, "stop": 1.0, "power_cut": 1.0, "elect": 3.0,
         "let_go": 2.0, "store_away": 0.5, "store_back": 2.0, "member_joins": 2.0,
         "member_leaves": 2.0, "member_killed": 2.0, "member_paused": 2.0},
        mins=(2,), producers=0, members=3, acts_count=8, pause_s=4.0,
        weathers=(FAIR, ROUGH), biased=True,
    ),
    "restored": Plan(
        {**CUTS, "kill": 3.0, "start": 6.0, "stop": 1.0, "watch_breaks": 2.0, "let_go": 2.0},
        mins=(2, 1), acts_count=8, records=6, weathers=(FAIR, ROUGH), restores=True,
    ),
    "rough": Plan(
        {**CRASHES, **CUTS, **STORE, "elect": 1.0, "let_go": 2.0, "full": 1.0, "broken": 2.5,
         "lower": 1.5},
        records=8, producers=2, acts_count=15, weathers=(ROUGH, SLOW, FAIR), skew=True,
        config={"segment.ms": 1},
    ),
}  # fmt: skip


class Fate:
    """Does to a world what its plan and chance say."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self._rng = world.rng

    def prepare(self) -> None:
        """Before the first step."""
        if self.plan.skew:
            for broker in self.world.brokers:
                broker.skew_ms = self._rng.choice((0, 0, 3_600_000, -3_600_000))
                self.world.tally["clock off by an hour"] += broker.skew_ms != 0

    def begin(self) -> None:
        """From now on things go wrong."""
        world, rng = self.world, self._rng
        world.wire.weather = replace(rng.choice(self.plan.weathers))
        if self.plan.biased:
            world.wire.rules.append(self._bias)
            world.cluster.on_write = self._on_write
        if "power_cut" in self.plan.acts:
            for broker in world.brokers:
                broker.machine.on_name = partial(self._on_name, broker)

    def act(self) -> None:
        """One fault, or the end of one."""
        names = list(self.plan.acts)
        name = self._rng.choices(names, [self.plan.acts[each] for each in names])[0]
        getattr(self, name)(self._rng.choice(self.world.brokers))

    def heal(self) -> None:
        """Nothing befalls the world any more; whoever was down starts again."""
        world = self.world
        world.trace("everything heals")
        world.cluster.on_write = world.checker.written
        world.wire.heal()
        for broker in world.brokers:
            broker.machine.on_name = lambda: None
            broker.machine.error = None
            broker.resume()
            if broker.is_up:
                self.store_back(broker)
            broker.start()
        for member in world.members:
            member.process.resume()
        if self.plan.members and not any(member.is_there for member in world.members):
            world.join()

    # --- biases -----------------------------------------------------------------------------------

    def _bias(self, message: Message) -> Verdict | None:
        """Holds back what the deadliest traces hold back."""
        kind, chance = message.kind, self._rng.random()
        is_record = keys.shard(self.world.topic, 0) in message.what
        if kind in (CAS, TOLD) and is_record and chance < 0.25:
            return self._held(message)
        if kind == ASK and "fetch" in message.what and chance < 0.02:
            return self._held(message)
        return None

    def _held(self, message: Message) -> Verdict:
        self.world.loop.at(self._rng.random() * 15.0, self.world.wire.release, message)
        return "hold"

    def _on_write(self, who: str, before: Item | None, after: Item) -> None:
        """An expand: its newest member is elected at once, sometimes."""
        self.world.checker.written(who, before, after)
        if before is None or after.key != keys.shard(self.world.topic, 0):
            return
        old, new = encoding.decode_shard(before.value), encoding.decode_shard(after.value)
        if not isinstance(old, Shard) or not isinstance(new, Shard):
            return
        number = self._rng.randrange(min(len(old.records), len(new.records)))
        was, record = old.records[number], new.records[number]
        if not isinstance(was, PartitionRecord) or not isinstance(record, PartitionRecord):
            return
        added = [m.broker_id for m in record.isr if m not in was.isr]
        if added and self._rng.random() < 0.3:
            self.world.loop.at(0.0, self._elect, added[-1], number)

    def _on_name(self, broker: SimBroker) -> None:
        """A name that isn't on the disk yet: the power is cut now, or a little later."""
        if self._rng.random() < 0.01:
            self.world.loop.at(self._rng.choice((0.0, 0.001)), self.power_cut, broker)

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, broker: SimBroker) -> None:
        broker.kill()
        self._comes_back(broker)

    def start(self, broker: SimBroker) -> None:
        broker.start()

    def stop(self, broker: SimBroker) -> None:
        broker.stop()
        self._comes_back(broker)

    def power_cut(self, broker: SimBroker) -> None:
        cuts: tuple[Cut, ...] = ("all", "all", "some", "none")
        cut = self._rng.choice(cuts)
        broker.power_cut(cut if self._may_lose(broker) else "none")
        self._comes_back(broker)

    def wipe(self, broker: SimBroker) -> None:
        if self._may_lose(broker):
            broker.wipe()
            self._comes_back(broker)

    def _comes_back(self, broker: SimBroker) -> None:
        self.world.loop.at(self._rng.random() * 8.0, broker.start)

    def _may_lose(self, victim: SimBroker) -> bool:
        """A1: another member of ISR or ELR has standing and all its bytes."""
        records = [self.world.record(number) for number in range(self.plan.partitions)]
        if None in records or self.plan.brokers == 1:
            return "flush.policy" in self.plan.config
        was, victim.has_lost = victim.has_lost, True
        may = all(self.world.has_keeper(each) for each in records if each is not None)
        victim.has_lost = was
        return may

    def pause(self, broker: SimBroker) -> None:
        broker.pause()
        self.world.loop.at(self._rng.random() * 25.0, broker.resume)

    def resume(self, broker: SimBroker) -> None:
        broker.resume()

    def isolate(self, broker: SimBroker) -> None:
        others = [b.name for b in self.world.brokers if b is not broker]
        others += [p.process.name for p in self.world.producers]
        others += [m.name for m in self.world.members if m.is_there]
        what = self._rng.choice(("brokers", "store", "all", "one"))
        if what == "one":
            others = [self._rng.choice(others)]
        if what in ("store", "all"):
            others = [*others, "store"] if what == "all" else ["store"]
        ways = self._rng.choice(("both", "in", "out"))
        self.world.trace(f"{broker.name} is cut off ({ways}) from {' '.join(others)}")
        self.world.wire.isolate(broker.name, others, ways=ways)

    def mend(self, broker: SimBroker) -> None:
        self.world.wire.cut.clear()

    def store_away(self, broker: SimBroker) -> None:
        everybody = self._rng.random() < 0.4
        for each in self.world.brokers if everybody else [broker]:
            if each.is_up:
                self.world.trace(f"{each.name} can't reach the store")
                each.store.is_out = True

    def store_back(self, broker: SimBroker) -> None:
        for each in self.world.brokers:
            if each.is_up and each.store.is_out:
                each.store.is_out = False
                each.store.drop_watches()

    def watch_breaks(self, broker: SimBroker) -> None:
        if broker.is_up:
            broker.store.drop_watches()

    def watch_goes_back(self, broker: SimBroker) -> None:
        if broker.is_up:
            broker.store.drop_watches(back=self._rng.randint(1, 4))
            self.world.loop.at(self._rng.random() * 5.0, self.watch_breaks, broker)

    def full(self, broker: SimBroker) -> None:
        self._disk_error(broker, errno.ENOSPC)

    def broken(self, broker: SimBroker) -> None:
        """Writes and syncs fail for a while. Only where the minimum is 2: a sole holder of records
        whose disk refuses them is for a person."""
        if self.world.min_isr > 1 and self._may_lose(broker):
            self._disk_error(broker, errno.EIO)

    def _disk_error(self, broker: SimBroker, error: int) -> None:
        machine = broker.machine
        machine.error = error
        self.world.trace(f"{broker.name}: the disk says {errno.errorcode[error]}")

        def works() -> None:
            machine.error = None

        self.world.loop.at(self._rng.random() * 5.0, works)

    def let_go(self, broker: SimBroker) -> None:
        self.world.wire.let_go(chance=0.7)

    def elect(self, broker: SimBroker) -> None:
        self._elect(broker.id, self._rng.randrange(self.plan.partitions))

    def _elect(self, broker_id: int, partition: int) -> None:
        """A controller that believes what it likes elects somebody who has standing."""

        self.world.tally["election by another controller"] += 1

        def step(record: PartitionRecord) -> transitions.Step:
            session, generation = self.world.registered(broker_id)
            isr = [m for m in record.isr if m.broker_id == broker_id]
            if not isr or isr[0].generation != generation:
                return transitions.Refusal("no standing")
            kept = [m for m in record.isr if m not in isr and self._rng.random() < 0.5]
            return transitions.elect(record, leader=Leader(broker_id, session), isr=[*isr, *kept])

        self.world.change_record(step, who="another controller", partition=partition)

    def shrink(self, broker: SimBroker) -> None:
        """A controller believes that a follower is dead."""
        self.world.tally["removal by another controller"] += 1
        self.world.change_record(
            lambda record: transitions.remove_dead(record, [broker.id]), who="another controller",
            partition=self._rng.randrange(self.plan.partitions),
        )  # fmt: skip

    def lower(self, broker: SimBroker) -> None:
        """min.insync.replicas becomes 1."""
        key = keys.topic(self.world.topic)
        item = self.world.cluster.objects.get(key)
        topic = encoding.decode_topic(item.value) if item else None
        if item is None or not isinstance(topic, TopicObject):
            return
        config = {**topic.config, "min.insync.replicas": 1}
        changed = replace(topic, config=config, version=topic.version + 1)
        self.world.min_isr = 1
        self.world.tally["minimum lowered"] += 1
        self.world.cluster.write(
            Change(key, encoding.encode_topic(changed), item.revision), "an admin"
        )

    # --- members of a group -----------------------------------------------------------------------

    def member_joins(self, broker: SimBroker) -> None:
        if sum(member.is_there for member in self.world.members) <= self.plan.members:
            self.world.join(polls=self._rng.random() < 0.3)

    def member_leaves(self, broker: SimBroker) -> None:
        self.world.tally["member left"] += 1
        self._a_member().leave()

    def member_killed(self, broker: SimBroker) -> None:
        self.world.tally["member killed"] += 1
        self._a_member().kill()

    def member_paused(self, broker: SimBroker) -> None:
        member = self._a_member()
        self.world.trace(f"{member.name} is paused")
        self.world.tally["member paused"] += 1
        member.process.pause()
        self.world.loop.at(self._rng.random() * 12.0, member.process.resume)

    def _a_member(self) -> GroupMember:
        return self._rng.choice(self.world.members)


def make(kind: str, seed: int, make_world: Callable[..., World], *, is_verbose: bool) -> Fate:
    """The world of a seed, and its fate."""
    plan = PLANS[kind]
    world = make_world(
        seed, brokers_count=plan.brokers, partitions=plan.partitions, config=plan.config,
        is_verbose=is_verbose,
        topic=OFFSETS_TOPIC if plan.members else READ_TOPIC,
        min_isr=random.Random(~seed).choice(plan.mins),
    )  # fmt: skip
    return Fate(world, plan)


def live(fate: Fate) -> None:
    """A whole life: begins, suffers, heals, and must be as good as new.

    Raises:
        Violation, Stuck: it isn't.
    """
    world, plan, rng = fate.world, fate.plan, fate.world.rng
    fate.prepare()
    world.begin()
    fate.begin()
    for _ in range(plan.members):
        world.join(polls=rng.random() < 0.3)
    tasks = []
    for number in range(plan.producers):
        acks = -1 if number or rng.random() < 0.8 else 1
        partition = number % plan.partitions
        producer = Producer(world, number, acks=acks, partition=partition)
        world.producers.append(producer)
        tasks.append(producer.process.spawn(producer.run(plan.records, pause_s=plan.pause_s)))
    for number in range(plan.acts_count):
        if plan.restores and number == plan.acts_count // 2:
            _restore_store(fate)
        world.run(rng.random() * plan.pause_s)
        fate.act()
    world.run(rng.random() * 10.0)
    fate.heal()
    if plan.restores:
        _put_store_right(world)
    if world.is_void and any(broker.is_broken for broker in world.brokers):
        return  # The only copies may be behind disks that failed: that is for a person.
    world.until(world.is_whole, HEALED_WITHIN_S)
    for task in tasks:
        world.loop.wait_for(task, within_s=HEALED_WITHIN_S)
    world.until(world.is_whole, HEALED_WITHIN_S)
    if plan.members:
        _settle_group(world)
        return
    last = Producer(world, plan.producers)
    sent = last.process.spawn(last.send())
    assert world.loop.wait_for(sent, within_s=HEALED_WITHIN_S), "nothing can be sent any more"
    world.until(world.is_level, HEALED_WITHIN_S)
    world.finish()


def _restore_store(fate: Fate) -> None:
    """All is well for a moment, so that every broker has copies of what there is; then the store is
    as it was some writes ago."""
    world = fate.world
    fate.heal()
    world.until(world.is_whole, HEALED_WITHIN_S)
    world.run(COPIED_WITHIN_S)
    writes = world.rng.randint(1, min(12, len(world.cluster.past)))
    world.trace(f"the store goes back by {writes} writes")
    world.tally["store restored"] += 1
    world.is_restored = True
    world.cluster.go_back(writes)
    fate.begin()


def _put_store_right(world: World) -> None:
    """Somebody runs `headrace cluster recover` until it is done."""

    async def recover(broker: SimBroker) -> bool:
        try:
            await broker.node.coordination.recover(execute=True)
        except HeadraceError as error:
            world.trace(f"{broker.name} can't put the store right: {error}")
            return False
        return True

    def is_ready() -> bool:
        return all(b.is_up and b.node.lifecycle.serving for b in world.brokers)

    world.until(is_ready, HEALED_WITHIN_S)
    for _ in range(RECOVERIES_MAX):
        broker = world.rng.choice(world.brokers)
        process = broker.live
        done = process.spawn(recover(broker))
        world.until(lambda: done.done() or not process.is_alive, HEALED_WITHIN_S)  # noqa: B023
        if done.done() and done.result():
            return
        world.run(2.0)
        world.until(is_ready, HEALED_WITHIN_S)
    raise Stuck("the store can't be put right")


def _settle_group(world: World) -> None:
    """The group comes to rest: every partition has one reader, who commits, and no replica has
    anything else to say."""
    groups = world.groups
    assert groups is not None
    world.until(world.is_read, HEALED_WITHIN_S)
    before = groups.commits
    if not world.is_void:
        world.until(lambda: groups.commits > before, HEALED_WITHIN_S)
    for member in world.members:
        member.kill()
    world.until(world.is_level, HEALED_WITHIN_S)
    world.finish()
