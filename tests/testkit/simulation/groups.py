"""Members of a consumer group in a simulated world, and what must hold of them (G1-G6).

A member is the SDK's own `Membership` over the simulated wire, with a reader that counts offsets
up and commits them. `GroupChecker` replays what is committed of `__offsets`, record by record: what
the log says is what happened, whatever coordinators and members believe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from headrace.broker.core.groups.model import Group, Step, StepSet, Subscription
from headrace.broker.core.model import PartitionRecord
from headrace.broker.groups.coordinator import Beat, Commit
from headrace.broker.groups.records import OffsetValue, decode, decode_change
from headrace.broker.log.log import Log
from headrace.protocol import batch
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicId, TopicIdPartition, TopicPartition
from headrace.protocol.models import GroupHeartbeatAnswer, OwnedTopic
from headrace.sdk.reading.group_calls import GRACE_S, LEAVE_TIMEOUT_S, Asked
from headrace.sdk.reading.membership import Membership, Owned
from headrace.sdk.settings import ConsumerSettings
from testkit.simulation.broker import SimBroker, ask
from testkit.simulation.checker import Violation
from testkit.simulation.loop import Process

if TYPE_CHECKING:
    from testkit.simulation.world import World

T = TypeVar("T")

GROUP = "g"
READ_TOPIC = "t"
SESSION_S = 6.0
REBALANCE_S = 10.0
COMMIT_TRIES = 8
CALL_TIMEOUT_S = 3.0
POLL_S = 0.4

Metadata = tuple[str, int]
"""Who wrote a commit, in its metadata: member id and epoch."""


async def read_offsets(broker: SimBroker) -> dict[TopicIdPartition, OffsetValue]:
    """What GET /v1/groups/{group}/offsets does."""
    return await broker.node.groups.offsets(GROUP)


class GroupChecker:
    """What the log of `__offsets` says, and whether everybody keeps to it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next = 0
        self.group = Group(GROUP)
        self.offsets: dict[TopicIdPartition, OffsetValue] = {}
        self.commits = 0
        self.violation: Violation | None = None
        """The first one: what is raised in a member's task is nobody's to see."""
        self._committed: set[str] = set()
        self._starts: dict[tuple[str, int, TopicIdPartition], int] = {}
        self._handed_out: dict[TopicPartition, int] = {}

    # --- the log ----------------------------------------------------------------------------------

    def committed_to(self, log: Log, batches: Callable[[], list[bytes]], end: int) -> None:
        """The log is committed up to `end`: replays what is new."""
        if end <= self._next:
            return
        for raw in batches():
            header = batch.read_header(raw)
            if header.base_offset < self._next or header.base_offset >= end:
                continue
            columns = batch.decode_columns(memoryview(raw), header)
            none: list[bytes | None] = [None] * header.record_count
            for key, value in zip(columns.keys or none, columns.values or none, strict=True):
                self._replay(key, value)
            self._check_owners()
            self._next = header.base_offset + header.last_offset_delta + 1

    def _replay(self, key: bytes | None, value: bytes | None) -> None:
        offset = decode(key, value)
        if offset is not None:
            where = TopicIdPartition(TopicId(offset[0].topic_id), offset[0].partition)
            if offset[1] is not None:
                self._replay_commit(where, offset[1])
            return
        found = decode_change(key, value)
        if found is None:
            return
        self.group = self.group.with_changes([found[1]])
        if isinstance(found[1], StepSet) and found[1].value is not None:
            self._note_starts(found[1].member_id, found[1].value)

    def _replay_commit(self, where: TopicIdPartition, value: OffsetValue) -> None:
        """A commit in the log is one of the partition's owner at that place of the log (G5)."""
        member_id, epoch, _number = value.metadata.rsplit(" ", 2)
        step = self.group.steps.get(member_id)
        given = step.given_at(where) if step is not None else None
        if given is None or given > int(epoch):
            self._fail(
                f"the commit {value.metadata!r} of {where.partition} is in the log, where its"
                f" member was told {step}"
            )
        self.commits += 1
        self._committed.add(value.metadata)
        self.offsets[where] = value

    def _note_starts(self, member_id: str, step: Step) -> None:
        for where, given in step.assigned.items():
            if given == step.epoch:
                known = self.offsets.get(where)
                self._starts.setdefault((member_id, given, where), known.offset if known else 0)

    def _check_owners(self) -> None:
        """At most one owner of each partition, in the coordinator's log."""
        seen: dict[TopicIdPartition, str] = {}
        for member_id, step in self.group.steps.items():
            for where in (*step.assigned, *step.revoking):
                if seen.setdefault(where, member_id) != member_id:
                    self._fail(f"{where.partition} has two owners: {self.group.steps}")

    # --- what members do --------------------------------------------------------------------------

    def _fail(self, text: str) -> NoReturn:
        violation = Violation(text)
        self.violation = self.violation or violation
        raise violation

    def acked(self, metadata: str) -> None:
        """A member was told that its commit is committed."""
        if self._world.is_void:
            return
        if metadata not in self._committed:
            self._fail(f"the commit {metadata!r} was acknowledged, but isn't committed")

    def told(self, values: Iterable[OffsetValue]) -> None:
        """Somebody was told that these are the group's committed offsets."""
        for value in values:
            if value.metadata not in self._committed and not self._world.is_void:
                self._fail(f"the commit {value.metadata!r} was told, but isn't committed")

    def received(self, member: GroupMember, where: TopicIdPartition, start: int) -> None:
        """A member begins with a partition that it was given: where the log says (G5)."""
        if self._world.is_void:
            return
        epoch, member_id = member.membership.heard_epoch, member.membership.member_id
        given = [at for m, at, w in self._starts if (m, w) == (member_id, where) and at <= epoch]
        if not given:
            self._fail(f"{member.name} received {where.partition}, which the log doesn't say")
        wanted = self._starts[member_id, max(given), where]
        if start != wanted:
            self._fail(
                f"{member.name} begins {where.partition} at {start}; {wanted} was committed when"
                " it was given"
            )

    def handed_out(self, member: GroupMember, where: TopicPartition, offset: int) -> None:
        """A member hands a record out: nobody else may do so now (G4), and none was skipped."""
        if self._world.is_void:
            return
        for other in self._world.members:
            if other is not member and other.may_hand_out(where):
                self._fail(f"{member.name} and {other.name} both hand out {where.partition}")
        reached = self._handed_out.get(where, 0)
        if offset > reached:
            self._fail(f"{member.name} hands out {offset} of {where.partition}: {reached} is"
                            " skipped")  # fmt: skip
        self._handed_out[where] = max(reached, offset + 1)


class _Membership(Membership):
    """The SDK's, with ids from the world's chance."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        super().__init__(
            _Calls(member),  # type: ignore[arg-type]
            _Reader(member), member.settings, (READ_TOPIC,), topics_interval=60.0,
        )  # fmt: skip

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.member_id = f"{self._member.name}-{self._member.world.rng.getrandbits(32):08x}"


class GroupMember:
    """A process that reads as a member of the group."""

    def __init__(
        self, world: World, number: int, *, polls: bool = False, commits: bool = True
    ) -> None:
        """`polls`: its heartbeats don't wait for news, as those of a simpler client. `commits`: now
        and then, and not only what it gives up."""
        self.world = world
        self.polls, self.commits = polls, commits
        self.name = f"m{number}"
        self.process = Process(world.loop, self.name)
        self.settings = ConsumerSettings(
            group=GROUP, session_timeout=SESSION_S, rebalance_timeout=REBALANCE_S
        )
        self.is_there = True
        self.is_stuck = False
        """Whether it never finishes what it has of a partition that it is to give up."""
        self.target: SimBroker | None = None
        self._membership: _Membership | None = None
        self.process.spawn(self._run(), self.name)

    @property
    def membership(self) -> Membership:
        """Its place in the group."""
        assert self._membership is not None
        return self._membership

    @property
    def reader(self) -> _Reader:
        """What it reads."""
        found = self.membership._reader
        assert isinstance(found, _Reader)
        return found

    async def _run(self) -> None:
        self._membership = _Membership(self)
        await self._membership.begin()
        await self.reader.work()

    def may_hand_out(self, where: TopicPartition) -> bool:
        """Whether it would hand out a record of the partition now."""
        if not self.is_there or self._membership is None:
            return False
        reader = self.reader
        return where in reader.reading and self._membership.may_hand_out

    def owns(self) -> dict[TopicPartition, str]:
        """The partitions it reads."""
        return self.reader.owned if self.is_there and self._membership else {}

    def kill(self) -> None:
        """SIGKILL."""
        self.is_there = False
        self.process.kill()

    def leave(self) -> None:
        """A close in good order, after which the process ends."""
        if self._membership is not None and self.is_there:
            self.process.spawn(self._leave(), "leave")

    async def _leave(self) -> None:
        await self.membership.end_steps()
        reader = self.reader
        reader.hold()
        await reader.commit(list(reader.owned), tries=1)
        self.is_there = False
        await self.membership.close(leave=True)
        self.world.loop.at(0.0, self.kill)

    async def call(
        self, what: str, serve: Callable[[SimBroker], Awaitable[T]], *, timeout_s: float
    ) -> T:
        """Asks the coordinator, or whoever some broker takes for it after a refusal."""
        target = self.target or self._coordinator()
        try:
            answer: T = await ask(
                self.world, self.process, target, what, serve, timeout_s=timeout_s
            )
        except HeadraceError as error:
            self.world.trace(f"{self.name}: {what} not at {target.name}: {error}")
            self.target = None
            raise
        self.target = target
        return answer

    def _coordinator(self) -> SimBroker:
        """Where a broker that can be reached passes requests on to."""
        world, cut = self.world, self.world.wire.cut
        near = [b for b in world.brokers if b.is_up and (self.name, b.name) not in cut]
        if not near:
            return world.rng.choice(world.brokers)
        via = world.rng.choice(near)
        record = via.node.coordination.view.record(world.topic_id, 0)
        led = record.leader if isinstance(record, PartitionRecord) else None
        return via if led is None else world.brokers[led.broker_id]


class _Calls:
    """`GroupCalls` over the simulated wire."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    async def heartbeat(self, member_id: str, asked: Asked) -> GroupHeartbeatAnswer:
        settings, polls = self._member.settings, self._member.polls
        subscription, wait_s = None, 0.0 if polls else asked.wait
        if asked.topics is not None:
            subscription = Subscription(
                topics=tuple(asked.topics), version=asked.topics_version,
                session_timeout_ms=round(settings.session_timeout * 1000),
                rebalance_timeout_ms=round(settings.rebalance_timeout * 1000),
            )  # fmt: skip
        beat = Beat(
            member_id=member_id, epoch=asked.epoch, heard_epoch=asked.heard_epoch,
            wait_s=wait_s, subscription=subscription,
        )  # fmt: skip

        async def serve(broker: SimBroker) -> GroupHeartbeatAnswer:
            told = await broker.node.groups.heartbeat(GROUP, beat)
            owned = None
            if told.step is not None:
                found: dict[TopicId, list[int]] = {}
                for where in sorted(told.step.assigned):
                    found.setdefault(where.topic_id, []).append(where.partition)
                owned = [OwnedTopic(READ_TOPIC, t.hex(), parts) for t, parts in found.items()]
            return GroupHeartbeatAnswer(member_id, told.epoch, told.session_timeout_ms, owned)

        answer = await self._member.call("heartbeat", serve, timeout_s=wait_s + GRACE_S)
        if polls and answer.assignment is None:
            await asyncio.sleep(POLL_S)
        return answer

    async def leave(self, member_id: str) -> None:
        async def serve(broker: SimBroker) -> None:
            await broker.node.groups.leave(GROUP, member_id, keep=False)

        await self._member.call("leave", serve, timeout_s=LEAVE_TIMEOUT_S)

    async def rest(self, _error: Exception, attempt: int) -> None:
        await asyncio.sleep(self._member.world.rng.random() * 0.05 * 2 ** min(attempt, 5))


class _Reader:
    """`membership.Reader`: hands out offsets, commits them, gives up and receives partitions."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._world = member.world
        self.owned: Owned = {}
        self.reading: set[TopicPartition] = set()
        """Those of `owned` that aren't held."""
        self._positions: dict[TopicPartition, int] = {}
        self._number = 0

    @property
    def _identity(self) -> Metadata:
        membership = self._member.membership
        return membership.member_id, membership.heard_epoch

    async def work(self) -> None:
        """Hands out and commits, for ever."""
        rng, checker = self._world.rng, self._world.groups
        assert checker is not None
        while True:
            await asyncio.sleep(rng.random() * 0.6)
            for where in sorted(self.reading):
                if self._member.may_hand_out(where):
                    checker.handed_out(self._member, where, self._positions[where])
                    self._positions[where] += 1
            if self._member.commits and rng.random() < 0.4:
                await self.commit(sorted(self.reading), tries=1)

    async def commit(self, wanted: Sequence[TopicPartition], *, tries: int) -> None:
        """Commits where these are, if that can be done."""
        checker, world = self._world.groups, self._world
        assert checker is not None
        member_id, epoch = self._identity
        rows = []
        for where in wanted:
            if where in self.owned:
                self._number += 1
                key = TopicIdPartition(TopicId(bytes.fromhex(self.owned[where])), where.partition)
                metadata = f"{member_id} {epoch} {self._number}"
                rows.append(Commit(key, self._positions[where], -1, metadata))
        if not rows:
            return

        async def serve(broker: SimBroker) -> list[TopicIdPartition]:
            return list(
                await broker.node.groups.commit(
                    GROUP, rows, member_id=member_id, member_epoch=epoch
                )
            )

        for _ in range(tries):
            try:
                refused = await self._member.call("commit", serve, timeout_s=CALL_TIMEOUT_S)
            except HeadraceError as error:
                if not error.retriable:
                    return
                await asyncio.sleep(world.rng.random() * 0.3)
                continue
            for row in rows:
                if row.where not in refused:
                    checker.acked(row.metadata)
            return

    async def give_up(self, partitions: Sequence[TopicPartition], timeout: float) -> None:
        self.reading.difference_update(partitions)
        await asyncio.sleep(self._world.rng.random() * 0.2)
        if self._member.is_stuck:
            await asyncio.Event().wait()
        await self.commit(partitions, tries=COMMIT_TRIES)
        for where in partitions:
            self._forget(where)

    def _forget(self, where: TopicPartition) -> None:
        self.owned.pop(where, None)
        self.reading.discard(where)
        self._positions.pop(where, None)

    async def receive(self, partitions: Owned) -> None:
        checker = self._world.groups
        assert checker is not None
        starts = await self._offsets()
        for where, topic_id in partitions.items():
            key = TopicIdPartition(TopicId(bytes.fromhex(topic_id)), where.partition)
            start = starts.get(key, 0)
            checker.received(self._member, key, start)
            self._world.trace(f"{self._member.name} reads {where.partition} from {start}")
            self.owned[where], self._positions[where] = topic_id, start
            self.reading.add(where)

    async def _offsets(self) -> dict[TopicIdPartition, int]:
        assert self._world.groups is not None
        while True:
            try:
                found = await self._member.call("offsets", read_offsets, timeout_s=CALL_TIMEOUT_S)
                self._world.groups.told(found.values())
                return {where: value.offset for where, value in found.items()}
            except HeadraceError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(self._world.rng.random() * 0.5)

    def hold(self) -> None:
        self.reading.clear()

    async def lose(self) -> None:
        for where in list(self.owned):
            self._forget(where)

    def fail(self, error: Exception) -> None:
        self._world.loop.errors.append(f"{self._member.name} can't be a member: {error!r}")
