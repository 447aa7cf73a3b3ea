"""What must hold at every step, whatever happens: design.md's invariants, seen from outside.

After each callback the logs and high watermarks of the broker it was of are compared with what was
seen before. What was ever below somebody's high watermark is *exposed*: it may never change, and
every leader of this or a later epoch has it. What a producer was told is committed is exposed.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from headrace.broker.core import encoding
from headrace.broker.core.model import PartitionRecord, Shard
from headrace.broker.log.log import Log
from headrace.broker.partition.partition import Partition
from headrace.broker.store.base import Item
from headrace.protocol import batch
from headrace.protocol.ids import TopicIdPartition

if TYPE_CHECKING:
    from testkit.simulation.broker import SimBroker
    from testkit.simulation.disk import File
    from testkit.simulation.world import World


NO_ROLE = -1
"""Epoch of a replica that has just been opened and doesn't know yet whom to follow."""


class Violation(AssertionError):
    """An invariant is broken; the message says which and how."""


class Entry(NamedTuple):
    """A record as a log holds it: the epoch, and what tells it from all others."""

    epoch: int
    seal: int
    producer_id: int
    sequence: int

    def __str__(self) -> str:
        return f"r{self.sequence}@{self.epoch}"


@dataclass(slots=True)
class Replica:
    """One broker's copy of one partition, as last seen."""

    log: Log
    state: tuple[object, ...] = ()
    entries: list[Entry] = field(default_factory=list)
    high_watermark: int = 0
    epoch: int = -1
    is_leading: bool = False


@dataclass(slots=True)
class Exposed:
    """A record that was below a high watermark, and the lowest epoch it was so in."""

    entry: Entry
    epoch: int


@dataclass(slots=True)
class History:
    """What was seen of one partition on all brokers."""

    exposed: dict[int, Exposed] = field(default_factory=dict)
    written: dict[tuple[int, int], Entry] = field(default_factory=dict)
    """By offset and epoch."""
    holders: dict[tuple[int, Entry], set[int]] = field(default_factory=dict)
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Broker and session, by epoch."""
    replicas: dict[int, Replica] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    """Seal by offset, of acks=all."""
    is_void: bool = False
    """Whether A1 was broken: then records may be lost."""


class Checker:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.histories: dict[TopicIdPartition, History] = {}
        self.checks = 0
        self.commits = 0

    def watch(self, where: TopicIdPartition) -> None:
        """Checks this partition from now on."""
        self.histories[where] = History()

    def forget(self, broker: SimBroker) -> None:
        """The broker's process is gone: what it knew, too."""
        for history in self.histories.values():
            history.replicas.pop(broker.id, None)

    def after_step(self, broker: SimBroker) -> None:
        """Looks at what a callback of this broker has changed."""
        partitions = broker.node.partitions
        for where, history in self.histories.items():
            partition = partitions.get(where)
            if partition is None or partition.log.failure is not None:
                continue  # What a log says whose disk refuses is nothing.
            log = partition.log
            state = (
                log.end_offset, log.high_watermark, partition.leader_epoch, partition.leading,
                log.segments.generation, log.truncations,
            )  # fmt: skip
            replica = history.replicas.get(broker.id)
            if replica is not None and replica.state == state and replica.log is log:
                continue
            self.checks += 1
            self._look(broker, where, history, partition, state)

    def _look(
        self,
        broker: SimBroker,
        where: TopicIdPartition,
        history: History,
        partition: Partition,
        state: tuple[object, ...],
    ) -> None:
        log, groups = partition.log, self._world.groups
        before = history.replicas.get(broker.id)
        if before is None or before.log is not log:
            before = None
        now = Replica(
            log, state, self._entries(broker, log), log.high_watermark, partition.leader_epoch,
            partition.leading,
        )  # fmt: skip
        history.replicas[broker.id] = now
        self._tell(broker, before, now)
        self._check_log(broker, history, before, now)
        self._check_exposed(broker, history, now)
        if groups is not None and not history.is_void:
            groups.committed_to(log, lambda: self._batches(broker, log), now.high_watermark)
        if now.is_leading:
            self._check_leader(broker, history, partition, now)
        self._check_leaders_have_all(history)

    def _batches(self, broker: SimBroker, log: Log) -> list[bytes]:
        """The log's batches, as they lie in its files."""
        return [
            bytes(file.data[position : position + header.length])
            for file in self._files(broker, log)
            for position, header in batch.walk(file.data)
        ]

    def _files(self, broker: SimBroker, log: Log) -> list[File]:
        files = broker.machine.tree.files
        paths = sorted(
            p for p in files if os.path.dirname(p) == log.directory and p.endswith(".log")
        )
        return [files[path] for path in paths]

    def _entries(self, broker: SimBroker, log: Log) -> list[Entry]:
        found: list[Entry] = []
        for file in self._files(broker, log):
            for _position, header in batch.walk(file.data):
                if header.base_offset >= log.end_offset:
                    break
                if header.base_offset != len(found):
                    if header.base_offset < len(found):
                        del found[header.base_offset :]
                    else:
                        self._fail(broker, f"a hole in the log before {header.base_offset}")
                for place in range(header.last_offset_delta + 1):
                    found.append(
                        Entry(
                            header.leader_epoch, header.sealed_crc, header.producer_id,
                            header.base_sequence + place,
                        )
                    )  # fmt: skip
        if len(found) != log.end_offset:
            self._fail(
                broker, f"the log says it ends at {log.end_offset}, its files at {len(found)}"
            )
        return found

    def _tell(self, broker: SimBroker, before: Replica | None, now: Replica) -> None:
        if not self._world.is_verbose:
            return
        role = "leads" if now.is_leading else "follows"
        entries = " ".join(map(str, now.entries))
        self._world.trace(
            f"{broker.name} {role} epoch {now.epoch}: [{entries}] hw {now.high_watermark}"
        )

    def _check_log(
        self, broker: SimBroker, history: History, before: Replica | None, now: Replica
    ) -> None:
        if now.high_watermark > len(now.entries):
            self._fail(broker, "its high watermark is above its log's end")
        kept = 0
        if before is not None:
            for kept, (old, new) in enumerate(
                zip(before.entries, now.entries, strict=False), start=1
            ):
                if old != new:
                    kept -= 1
                    break
            if kept < before.high_watermark:
                self._lost(
                    history, broker,
                    f"it truncated to {kept}, below its own high watermark {before.high_watermark}",
                )  # fmt: skip
            if now.high_watermark < before.high_watermark:
                self._lost(history, broker, "its high watermark went back")
        epoch = -1
        for offset, entry in enumerate(now.entries):
            if entry.epoch < epoch:
                self._fail(broker, f"epochs fall at offset {offset}")
            epoch = entry.epoch
            if offset < kept:
                continue
            other = history.written.setdefault((offset, entry.epoch), entry)
            if other != entry:
                self._lost(
                    history, broker,
                    f"log matching: offset {offset} of epoch {entry.epoch} is {entry}, was {other}",
                )  # fmt: skip
            history.holders.setdefault((offset, entry), set()).add(broker.id)
        ids = [(e.producer_id, e.sequence) for e in now.entries if e.producer_id >= 0]
        if len(set(ids)) != len(ids):
            self._fail(broker, "a producer's record is twice in its log")

    def _check_exposed(self, broker: SimBroker, history: History, now: Replica) -> None:
        for offset in range(now.high_watermark):
            entry = now.entries[offset]
            known = history.exposed.get(offset)
            if known is None:
                history.exposed[offset] = Exposed(entry, max(now.epoch, now.entries[-1].epoch))
                self.commits += 1
            elif known.entry != entry:
                self._lost(
                    history, broker,
                    f"two records were visible at offset {offset}: {known.entry}, then {entry}",
                )  # fmt: skip
            elif NO_ROLE < now.epoch < known.epoch:
                known.epoch = now.epoch

    def _check_leader(
        self, broker: SimBroker, history: History, partition: Partition, now: Replica
    ) -> None:
        record = partition.record
        session = record.leader.session if record is not None and record.leader else -1
        known = history.leaders.setdefault(now.epoch, (broker.id, session))
        if known != (broker.id, session):
            self._fail(broker, f"two leaders in epoch {now.epoch}: {known}, and session {session}")

    def _check_leaders_have_all(self, history: History) -> None:
        for broker_id, replica in history.replicas.items():
            if not replica.is_leading:
                continue
            for offset, exposed in history.exposed.items():
                if exposed.epoch > replica.epoch:
                    continue
                if offset >= len(replica.entries) or replica.entries[offset] != exposed.entry:
                    self._lost(
                        history, self._world.brokers[broker_id],
                        f"it leads epoch {replica.epoch} without {exposed.entry} at {offset},"
                        f" which was committed in epoch {exposed.epoch}",
                    )  # fmt: skip

    # --- what others tell -------------------------------------------------------------------------

    def acked(self, where: TopicIdPartition, offset: int, seal: int, *, acks: int) -> None:
        """A producer was told that its record is at this offset."""
        history = self.histories[where]
        if acks != -1:
            return
        known = history.exposed.get(offset)
        if known is None or known.entry.seal != seal:
            self._lost(history, None, f"offset {offset} was acknowledged, but isn't committed")
            return
        history.acked[offset] = seal
        holders = history.holders.get((offset, known.entry), set())
        if len(holders) < self._world.min_isr:
            self._lost(
                history, None,
                f"offset {offset} was acknowledged, but only {holders} ever wrote it,"
                f" min.insync.replicas is {self._world.min_isr}",
            )  # fmt: skip

    def written(self, who: str, before: Item | None, after: Item) -> None:
        """Something changed in the store."""
        if not after.key.startswith("partitions/"):
            return
        new = encoding.decode_shard(after.value)
        old = encoding.decode_shard(before.value) if before else None
        if not isinstance(new, Shard):
            self._fail(None, f"{who} wrote a record that can't be read: {new}")
        earlier = (
            {r.partition: r for r in old.records}
            if isinstance(old, Shard) and old.topic_id == new.topic_id
            else {}
        )
        for record in new.records:
            if not isinstance(record, PartitionRecord):
                continue
            was = earlier.get(record.partition)
            if record == was:
                continue
            self._world.trace(f"{who} wrote {_text(record)}")
            if isinstance(was, PartitionRecord):
                self._check_step(who, was, record)
                self._note_zombie(was, record)
            self.judge(record)

    def _check_step(self, who: str, was: PartitionRecord, record: PartitionRecord) -> None:
        added = {m for m in record.isr if m not in was.isr and m not in was.elr}
        by_leader = was.leader is not None and who == f"b{was.leader.broker_id}"
        is_last_resort = record.recovery != "none" and record.leader_epoch > was.leader_epoch
        is_free = self._world.is_scripted or self._world.is_restored
        if added and not by_leader and not is_last_resort and not is_free:
            self._fail(None, f"{who} added {added} to the ISR, which isn't the leader (R4)")

    def _note_zombie(self, was: PartitionRecord, record: PartitionRecord) -> None:
        """Counts leaders that are replaced although they live: their lease ran out, or somebody
        believed so."""
        led = was.leader
        if led is not None and led != record.leader:
            broker = self._world.brokers[led.broker_id]
            session, _generation = self._world.registered(led.broker_id)
            is_there = broker.is_up and broker.is_listening and session == led.session
            self._world.tally["live leader replaced"] += is_there

    def judge(self, record: PartitionRecord) -> None:
        """Notes when nobody is left of those who must have the records (A1)."""
        history = self.histories.get(TopicIdPartition(record.topic_id, record.partition))
        if history is None:
            return
        if not self._world.has_keeper(record):
            if not history.is_void:
                self._world.trace("nobody has standing and all its bytes (A1): losses are allowed")
            history.is_void = True

    def final(self, where: TopicIdPartition, leader: SimBroker) -> None:
        """After everything has healed: all that was acknowledged is there, replicas agree."""
        history = self.histories[where]
        if history.is_void:
            return
        entries = history.replicas[leader.id].entries
        for offset, seal in history.acked.items():
            if offset >= len(entries) or entries[offset].seal != seal:
                self._fail(leader, f"the acknowledged record at {offset} is gone")
        for broker_id, replica in history.replicas.items():
            if replica.entries != entries:
                self._fail(self._world.brokers[broker_id], f"its log isn't {leader.name}'s")

    def _lost(self, history: History, broker: SimBroker | None, text: str) -> None:
        """A violation, unless the assumption on failures (A1) doesn't hold any more."""
        if not history.is_void:
            self._fail(broker, text)

    def _fail(self, broker: SimBroker | None, text: str) -> NoReturn:
        raise Violation(f"{broker.name}: {text}" if broker else text)


def _text(record: PartitionRecord) -> str:
    def members(of: tuple[tuple[int, tuple[int, int]], ...]) -> str:
        return " ".join(f"b{b}.{g[0]}.{g[1]}" for b, g in of) or "-"

    leader = f"b{record.leader.broker_id}#{record.leader.session}" if record.leader else "nobody"
    text = (
        f"pe {record.partition_epoch}: leader {leader} epoch {record.leader_epoch},"
        f" isr {members(record.isr)}, elr {members(record.elr)}, min {record.min_isr}"
    )
    return text + (f", {record.recovery}" if record.recovery != "none" else "")
