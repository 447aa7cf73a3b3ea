"""What an acknowledged record survives, by flush policy, acks and replicas: the table of
docs/durability.md, each of its cells played on simulated disks, at the worst moment for the record.

`lost` is tested like `kept`: a promise that nobody makes is as misleading as one that isn't held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from headrace.protocol.ids import TopicIdPartition
from testkit.simulation.broker import SimBroker
from testkit.simulation.clients import Producer
from testkit.simulation.runs import playing
from testkit.simulation.world import World

Event = Literal["process", "processes", "machine", "machines", "liar", "liars"]
Flush = Literal["none", "interval", "batch"]

PAGE = Path(__file__).parents[2] / "docs" / "durability.md"

EVENTS: dict[Event, str] = {
    "process": "the leader's process dies",
    "processes": "all processes die",
    "machine": "the leader's machine loses power",
    "machines": "all machines lose power",
    "liar": "that machine's disk has lied",
    "liars": "all disks have lied",
}
"""The columns, as the page says them. The last two: a power cut, after disks have called writes
synced that weren't."""

KEPT, LOST = "kept", "lost"

TABLE: dict[tuple[int, str, Flush], str] = {
    (1, "all", "batch"): "kept kept kept kept lost lost",
    (1, "all", "interval"): "kept kept lost lost lost lost",
    (1, "all", "none"): "kept kept lost lost lost lost",
    (1, "1", "batch"): "kept kept lost lost lost lost",
    (1, "1", "interval"): "kept kept lost lost lost lost",
    (1, "1", "none"): "kept kept lost lost lost lost",
    (3, "all", "batch"): "kept kept kept kept kept lost",
    (3, "all", "interval"): "kept kept kept lost kept lost",
    (3, "all", "none"): "kept kept kept lost kept lost",
    (3, "1", "batch"): "lost lost lost lost lost lost",
    (3, "1", "interval"): "lost lost lost lost lost lost",
    (3, "1", "none"): "lost lost lost lost lost lost",
}
"""Replicas, acks, flush.policy → what becomes of a record that was acknowledged a moment ago."""

CELLS = [
    pytest.param(*row, event, outcome, id=f"rf{row[0]}-acks_{row[1]}-{row[2]}-{event}")
    for row, outcomes in TABLE.items()
    for event, outcome in zip(EVENTS, outcomes.split(), strict=True)
]


@contextmanager
def scene_of(replicas: int, flush: Flush) -> Iterator[Scene]:
    """A cluster with one topic."""
    world = World(
        7, brokers_count=replicas, min_isr=2 if replicas == 3 else 1,
        config={"flush.policy": flush}, disk_s=0.02,
    )  # fmt: skip
    with playing(world):
        yield Scene(world)


class Scene:
    """A running cluster; `a` leads its topic."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.world.begin()
        self.world.run(3.0)
        leader = self.world.leader()
        assert leader is not None
        self.a = leader
        self.others = [each for each in self.world.brokers if each is not leader]

    def send(self, acks: int, *, is_alone: bool = False) -> int:
        """A record is acknowledged; its offset. `is_alone`: before a follower has asked for it."""
        if is_alone:
            self.world.wire.isolate(self.a.name, [each.name for each in self.others])
        producer = Producer(self.world, 0, acks=acks)
        told = producer.process.spawn(producer.send_once(self.a))
        assert self.world.loop.wait_for(told, within_s=5.0), "it is acknowledged"
        partition = self.a.node.partitions.get(self.where)
        assert partition is not None
        return partition.log.end_offset - 1

    @property
    def where(self) -> TopicIdPartition:
        """The partition."""
        return TopicIdPartition(self.world.topic_id, 0)

    def befall(self, event: Event) -> None:
        """It happens, to one (the leader's) or to all; all come back, the former leader last."""
        for history in self.world.checker.histories.values():
            history.is_void = True  # records may be lost: which, is what is asked here
        victims = [self.a] if event in ("process", "machine", "liar") else self.world.brokers
        for broker in victims:
            if event in ("process", "processes"):
                broker.kill()
            else:
                broker.power_cut("all")
        self.world.wire.heal()
        for broker in self.others:
            broker.start()
        if self.others:
            self.world.run(12.0)
        self.a.start()
        self.world.until(self.world.is_level, 60.0)

    def has(self, offset: int) -> bool:
        """Whether the record is there for readers."""
        leader = self.world.leader()
        assert leader is not None
        partition = leader.node.partitions.get(self.where)
        assert partition is not None
        return partition.high_watermark > offset


def lie(brokers: list[SimBroker]) -> None:
    """From now on these disks call synced what isn't."""
    for broker in brokers:
        broker.machine.lies = True


@pytest.mark.parametrize(("replicas", "acks", "flush", "event", "outcome"), CELLS)
def test_what_becomes_of_a_record_acknowledged_a_moment_ago(
    replicas: int, acks: str, flush: Flush, event: Event, outcome: str
) -> None:
    with scene_of(replicas, flush) as scene:
        lie({"liar": [scene.a], "liars": scene.world.brokers}.get(event, []))
        code = -1 if acks == "all" else 1
        offset = scene.send(code, is_alone=replicas > 1 and acks == "1")
        scene.befall(event)
        assert scene.has(offset) == (outcome == KEPT)
        record = scene.world.record()
        assert record is not None
        if outcome == LOST and acks == "all":
            assert record.recovery == "possible_loss", "whoever asks is told of it"


@pytest.mark.parametrize("replicas", [1, 3])
def test_flushed_each_second_only_the_last_second_goes(replicas: int) -> None:
    with scene_of(replicas, "interval") as scene:
        early = scene.send(-1)
        scene.world.run(1.5)
        late = scene.send(-1)
        scene.befall("machines")
        assert scene.has(early)
        assert not scene.has(late)


def test_never_flushed_it_is_the_kernels_to_say_how_much_goes() -> None:
    with scene_of(1, "none") as scene:
        offset = scene.send(-1)
        scene.world.run(40.0)
        scene.befall("machines")
        assert not scene.has(offset)


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_in_sync_on_two_of_three_it_survives_either_machine(victim: str) -> None:
    with scene_of(3, "interval") as scene:
        away, follower = scene.others
        away.kill()
        scene.world.run(20.0)
        offset = scene.send(-1)
        (scene.a if victim == "leader" else follower).power_cut("all")
        scene.world.run(5.0)
        for broker in scene.world.brokers:
            broker.start()
        scene.world.until(scene.world.is_level, 60.0)
        assert scene.has(offset)


def test_the_page_has_this_table() -> None:
    head = ["replicas", "`acks`", "`flush.policy`", *EVENTS.values()]
    lines = [f"| {' | '.join(head)} |", "| " + " | ".join("---" for _ in head) + " |"]
    for (replicas, acks, flush), outcomes in TABLE.items():
        cells = [str(replicas), acks, flush, *outcomes.split()]
        shown = [f"**{cell}**" if cell == LOST else cell for cell in cells]
        lines.append(f"| {' | '.join(shown)} |")
    assert "\n".join(lines) in PAGE.read_text(), "write this:\n" + "\n".join(lines)
