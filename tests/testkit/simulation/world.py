"""One simulated cluster: three machines, a store, clients, and all that befalls them.

A world is its seed: the same seed gives the same steps, on every machine.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headrace.broker.core import encoding, transitions
from headrace.broker.core.model import (
    ClusterObject,
    Generation,
    PartitionRecord,
    Registration,
    Shard,
    TopicObject,
    UnreadableRecord,
)
from headrace.broker.store import keys
from headrace.broker.store.base import Change
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.names import OFFSETS_TOPIC
from testkit.simulation.broker import SimBroker
from testkit.simulation.checker import Checker
from testkit.simulation.clients import Producer
from testkit.simulation.groups import READ_TOPIC, GroupChecker, GroupMember
from testkit.simulation.loop import Process, SimLoop, Stuck
from testkit.simulation.store import SimCluster
from testkit.simulation.wire import Wire

READ_PARTITIONS = 4
"""Of the topic that a group reads."""


@dataclass(slots=True)
class World:
    """Invariant: nothing in it asks the machine for time, chance, files or sockets."""

    seed: int
    brokers_count: int = 3
    min_isr: int = 2
    partitions: int = 1
    topic: str = READ_TOPIC
    """Whose partitions are looked at. `__offsets`: a group reads another topic."""
    config: Mapping[str, str | int] = field(default_factory=dict)
    """The topic's."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Each broker's."""
    disk_s: float = 0.0005
    """The longest that a thread takes."""
    is_verbose: bool = False
    is_scripted: bool = False
    rng: random.Random = field(init=False)
    loop: SimLoop = field(init=False)
    wire: Wire = field(init=False)
    cluster: SimCluster = field(init=False)
    checker: Checker = field(init=False)
    brokers: list[SimBroker] = field(init=False)
    producers: list[Producer] = field(init=False)
    members: list[GroupMember] = field(init=False)
    groups: GroupChecker | None = field(init=False)
    lines: list[str] = field(init=False)
    is_restored: bool = False
    """Whether the store went back in time."""
    tally: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault came."""
    topic_id: TopicId = field(init=False)
    _by_name: dict[str, SimBroker] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.lines = []
        self.loop = SimLoop.make(self.rng)
        self.wire = Wire(self.loop, self.rng, self.trace, tally=self.tally)
        self.checker = Checker(self)
        self.cluster = SimCluster()
        self.cluster.on_write = self.checker.written
        self.brokers = [SimBroker(self, n) for n in range(self.brokers_count)]
        self.producers, self.members = [], []
        self.groups = GroupChecker(self) if self.topic == OFFSETS_TOPIC else None
        self.loop.after_step = self._after_step
        self._by_name = {broker.name: broker for broker in self.brokers}
        self._found()

    def _found(self) -> None:
        """The cluster and its internal topic, small: their making is tested elsewhere."""
        cluster = encoding.encode_cluster(ClusterObject(cluster_id="sim"))
        self.cluster.write(Change(keys.CLUSTER, cluster, None), "nobody")
        config: dict[str, str | int] = {"cleanup.policy": "compact"}
        if self.topic == OFFSETS_TOPIC:
            config |= {"min.insync.replicas": self.min_isr, **self.config}
        topic = TopicObject(
            name=OFFSETS_TOPIC, topic_id=self.new_id(), partition_count=1,
            replicas=self.brokers_count if self.topic == OFFSETS_TOPIC else 1, config=config,
        )  # fmt: skip
        self.topic_id = topic.topic_id
        self.cluster.write(
            Change(keys.topic(topic.name), encoding.encode_topic(topic), None), "nobody"
        )

    def new_id(self) -> TopicId:
        """An id that no other world's chance has."""
        return TopicId(self.rng.randbytes(16))

    def trace(self, text: str) -> None:
        """Notes a step for whoever reads the trace."""
        line = f"{self.loop.now - 1000:9.3f}  {text}"
        self.lines.append(line)
        if self.is_verbose:
            print(line)

    def _after_step(self, process: Process) -> None:
        broker = self._by_name.get(process.name)
        if broker is not None and broker.process is process and broker.is_up:
            self.checker.after_step(broker)
        if self.groups is not None and self.groups.violation is not None:
            raise self.groups.violation

    # --- running ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets (virtual) time pass."""
        self.loop.run(until_s=self.loop.now + seconds)

    def begin(self) -> None:
        """All brokers run, the topic is there with all replicas in sync.

        Raises:
            Stuck: it doesn't come to that.
        """
        for broker in self.brokers:
            broker.start()
        self.until(self._all_know_all, 30.0)
        if self.topic == OFFSETS_TOPIC:
            self._create(READ_TOPIC, partitions=READ_PARTITIONS, replicas=1, config={})
        else:
            config = {"min.insync.replicas": self.min_isr, **self.config}
            self.topic_id = self._create(
                self.topic, partitions=self.partitions, replicas=self.brokers_count, config=config
            )
        for number in range(self.partitions):
            self.checker.watch(TopicIdPartition(self.topic_id, number))
        self.until(self.is_whole, 30.0)

    def _create(
        self, name: str, *, partitions: int, replicas: int, config: Mapping[str, str | int]
    ) -> TopicId:
        broker = self.brokers[0]
        created = broker.live.spawn(
            broker.node.coordination.create_topic(
                name, partitions=partitions, replicas=replicas, config=config
            )
        )
        return self.loop.wait_for(created, within_s=30.0).topic_id

    def _all_know_all(self) -> bool:
        for broker in self.brokers:
            if not broker.is_up or not broker.node.lifecycle.serving:
                return False
            known = broker.node.coordination.broker_statuses().values()
            if sum(s.live and s.state == "running" for s in known) < self.brokers_count:
                return False
        return True

    def until(self, done: Callable[[], object], within_s: float) -> None:
        """Runs until something is so.

        Raises:
            Stuck: it isn't within that (virtual) time.
        """
        if not self.loop.run(until_s=self.loop.now + within_s, stop=done) and not done():
            raise Stuck(f"not within {within_s} s: {self.state()}")

    def is_whole(self) -> bool:
        """Whether every partition has a leader that leads, and all replicas in its ISR."""
        for number in range(self.partitions):
            leader = self.leader(number)
            record = self.record(number)
            if leader is None or record is None or len(record.isr) < self.brokers_count:
                return False
        return True

    def record(self, partition: int = 0) -> PartitionRecord | None:
        """The partition's record in the store."""
        item = self.cluster.objects.get(keys.shard(self.topic, 0))
        shard = encoding.decode_shard(item.value) if item else None
        if not isinstance(shard, Shard) or partition >= len(shard.records):
            return None
        record = shard.records[partition]
        return None if isinstance(record, UnreadableRecord) else record

    def leader(self, partition: int = 0) -> SimBroker | None:
        """The broker that the store says leads, if it does."""
        record = self.record(partition)
        if record is None or record.leader is None:
            return None
        broker = self.brokers[record.leader.broker_id]
        if not broker.is_up:
            return None
        found = broker.node.partitions.get(TopicIdPartition(record.topic_id, partition))
        if found is None or not found.leading or found.leader_epoch != record.leader_epoch:
            return None
        return broker

    @property
    def is_void(self) -> bool:
        """Whether records may have been lost, since A1 was broken."""
        return any(history.is_void for history in self.checker.histories.values())

    def has_keeper(self, record: PartitionRecord) -> bool:
        """Whether a member of ISR or ELR has standing and all its bytes (A1)."""
        for member in (*record.isr, *record.elr):
            _session, generation = self.registered(member.broker_id)
            broker = self.brokers[member.broker_id]
            if generation == member.generation and not broker.has_lost and not broker.is_broken:
                return True
        return False

    def registered(self, broker_id: int) -> tuple[int, Generation | None]:
        """The broker's session and generation as registered; 0 and None if it isn't."""
        item = self.cluster.objects.get(keys.broker(broker_id))
        found = encoding.decode_registration(item.value) if item else None
        return (found.session, found.generation) if isinstance(found, Registration) else (0, None)

    def change_record(
        self, step: Callable[[PartitionRecord], transitions.Step], *, who: str, partition: int = 0
    ) -> bool:
        """Somebody takes a step with the record by compare-and-swap, now; whether it is legal."""
        key = keys.shard(self.topic, 0)
        item = self.cluster.objects.get(key)
        shard = encoding.decode_shard(item.value) if item else None
        record = self.record(partition)
        if item is None or not isinstance(shard, Shard) or record is None:
            return False
        following = step(record)
        if not isinstance(following, PartitionRecord):
            return False
        records = [following if r is shard.records[partition] else r for r in shard.records]
        value = encoding.encode_shard(replace(shard, records=tuple(records)))
        self.cluster.write(Change(key, value, item.revision), who)
        return True

    def is_level(self) -> bool:
        """Whether all is whole, and every replica's log and high watermark are the leader's."""
        if not self.is_whole():
            return False
        for number in range(self.partitions):
            where = TopicIdPartition(self.topic_id, number)
            found = [b.node.partitions.get(where) for b in self.brokers if b.is_up]
            states = {(p.log.end_offset, p.log.high_watermark) if p else None for p in found}
            if len(states) != 1 or len(found) < self.brokers_count:
                return False
            end_offset, high_watermark = states.pop() or (0, -1)
            if end_offset != high_watermark:
                return False
        return True

    def finish(self) -> None:
        """The last look: everything acknowledged is there, all replicas are the same."""
        for number in range(self.partitions):
            leader = self.leader(number)
            assert leader is not None
            self.checker.final(TopicIdPartition(self.topic_id, number), leader)

    # --- groups -----------------------------------------------------------------------------------

    def join(self, *, polls: bool = False, commits: bool = True) -> GroupMember:
        """One more member."""
        member = GroupMember(self, len(self.members), polls=polls, commits=commits)
        self.members.append(member)
        return member

    def is_read(self) -> bool:
        """Whether every partition is read by one member that may hand out."""
        read = [
            where.partition
            for member in self.members
            for where in member.owns()
            if member.may_hand_out(where)
        ]
        return sorted(read) == list(range(READ_PARTITIONS))

    def state(self) -> str:
        """The cluster in a few words."""
        record = self.record()
        return f"record {record}, up {[b.name for b in self.brokers if b.is_up]}"
