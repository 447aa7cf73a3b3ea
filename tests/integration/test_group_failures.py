"""Groups of real processes: members killed, stopped and restarted, and their coordinator killed.

Each record must be handled at least once, in order within each process' turn at a partition; how
often records come again is bounded by what wasn't committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.protocol.models import GroupInfo
from headrace.sdk import Admin, Consumer, Producer
from headrace.sdk.errors import GroupNotFound, HeadraceError, TopicNotFound
from testkit.brokers import BrokerProcess
from testkit.clusters import ClusterProcesses
from testkit.http import eventually

TESTS = Path(__file__).parents[1]


class MemberProcess:
    """One or some members; `lines` is what they have told so far."""

    def __init__(self, pid: int, file: Path) -> None:
        self.pid, self.file = pid, file

    @property
    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.file.read_text().splitlines(keepends=True)
                if line.endswith("\n")]  # fmt: skip

    @property
    def records(self) -> list[tuple[int, int]]:
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "record"]

    @property
    def moves(self) -> list[list[str]]:
        return [line for line in self.lines if line[0] != "record"]

    @property
    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, number: int = signal.SIGTERM) -> None:
        self.send(number)
        deadline = time.monotonic() + 20
        while self.is_alive:
            assert time.monotonic() < deadline, f"member {self.pid} doesn't end"
            time.sleep(0.01)


class Members:
    """The processes of one test; all end with it."""

    def __init__(self, url: str, folder: Path, *, partitions: int = 6) -> None:
        self.url, self.folder, self.partitions = url, folder, partitions
        self.topic, self.group = "t-" + secrets.token_hex(4), "g-" + secrets.token_hex(4)
        self.all: list[MemberProcess] = []
        self.sent: Counter[int] = Counter()
        self._forks = subprocess.Popen(
            [sys.executable, "-m", "testkit.group_member"],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(
        self, instance: str | None = None, *, count: int = 1, session_s: float = 2
    ) -> MemberProcess:
        file = self.folder / f"member-{secrets.token_hex(4)}"
        file.touch()
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        wanted = [count, self.url, self.topic, self.group, str(file), session_s, instance]
        self._forks.stdin.write(json.dumps(wanted) + "\n")
        self._forks.stdin.flush()
        member = MemberProcess(int(self._forks.stdout.readline()), file)
        self.all.append(member)
        return member

    def close(self) -> None:
        for member in self.all:
            member.end(signal.SIGKILL)
        self._forks.communicate(timeout=20)

    async def send(self, producer: Producer, count: int) -> None:
        for partition in range(self.partitions):
            await producer.send_many(self.topic, [b"v"] * count, partition=partition)
            self.sent[partition] += count

    @contextlib.asynccontextmanager
    async def traffic(self, producer: Producer) -> AsyncIterator[None]:
        """Records that go on coming."""

        async def go_on() -> None:
            while True:
                await self.send(producer, 5)
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(go_on())
        try:
            yield
        finally:
            sending.cancel()
            # What was under way may have been written.
            await asyncio.gather(sending, return_exceptions=True)

    @property
    def missing(self) -> set[tuple[int, int]]:
        wanted = {(p, offset) for p, count in self.sent.items() for offset in range(count)}
        return wanted - {record for member in self.all for record in member.records}

    async def all_handled(self, timeout_s: float = 40) -> None:
        async def holds() -> bool:
            return not self.missing

        await eventually(holds, timeout_s=timeout_s)

    async def settled(self, admin: Admin, count: int, *, timeout_s: float = 25) -> GroupInfo:
        """The group, once so many members own what they are to own."""
        found: list[GroupInfo] = []

        async def holds() -> bool:
            try:
                found.append(await admin.describe_group(self.group))
            except GroupNotFound:
                return False
            return found[-1].state == "Stable" and len(found[-1].members) == count

        await eventually(holds, timeout_s=timeout_s)
        return found[-1]

    @property
    def repeats(self) -> int:
        counted = Counter(record for member in self.all for record in member.records)
        return sum(count - 1 for count in counted.values())


@pytest.fixture
def members(broker: BrokerProcess, tmp_path: Path) -> Iterator[Members]:
    made = Members(broker.url, tmp_path)
    yield made
    made.close()


def check_order(member: MemberProcess) -> None:
    """Within one turn at its partitions each partition's records come in order."""
    last: dict[int, int] = {}
    for line in member.lines:
        if line[0] == "record":
            partition, offset = int(line[1]), int(line[2])
            assert offset == last.get(partition, offset - 1) + 1
            last[partition] = offset
        elif line[0] in ("assigned", "lost"):
            for each in line[1:]:
                last.pop(int(each), None)


# --- members that end badly ----------------------------------------------------------------------


async def test_a_killed_and_a_stopped_members_records_are_handled_by_the_others(
    members: Members,
) -> None:
    async with Admin(members.url) as admin, Producer(members.url) as producer:
        await admin.create_topic(members.topic, partitions=6)
        await members.send(producer, 100)
        first, second, third = (members.start() for _ in range(3))

        async def share() -> bool:
            return all(member.records for member in (first, second, third))

        await eventually(share, timeout_s=20)
        first.end(signal.SIGKILL)
        second.send(signal.SIGSTOP)
        await members.send(producer, 100)
        await members.all_handled()
        second.send(signal.SIGCONT)

        async def noticed() -> bool:
            return any(line[0] == "lost" for line in second.lines)

        await eventually(noticed, timeout_s=10)
        await members.send(producer, 50)
        await members.all_handled()
    for member in members.all:
        check_order(member)
    assert members.repeats < 400, "only what wasn't committed comes again"


# --- rolling restarts ----------------------------------------------------------------------------

ROLLED = 10


async def test_a_rolling_restart_with_instance_ids_moves_no_partition(members: Members) -> None:
    members.partitions = 2 * ROLLED
    async with Admin(members.url) as admin, Producer(members.url) as producer:
        await admin.create_topic(members.topic, partitions=members.partitions)
        running = [members.start(f"i{number}", session_s=20) for number in range(ROLLED)]
        before = _shares(await members.settled(admin, ROLLED))
        quiet = [member.moves for member in running]
        async with members.traffic(producer):
            for number in range(ROLLED):
                running[number].end()
                running[number] = members.start(f"i{number}", session_s=20)
                after = _shares(await members.settled(admin, ROLLED))
                assert after == before
                for index in range(number + 1, ROLLED):
                    assert running[index].moves == quiet[index], "nobody else is disturbed"
        await members.all_handled()
    for member in members.all:
        check_order(member)
    assert members.repeats == 0, "who closes in order commits what it has handled"


async def test_a_rolling_restart_without_instance_ids_loses_and_repeats_nothing(
    members: Members,
) -> None:
    members.partitions = 2 * ROLLED
    async with Admin(members.url) as admin, Producer(members.url) as producer:
        await admin.create_topic(members.topic, partitions=members.partitions)
        running = [members.start(session_s=20) for _ in range(ROLLED)]
        await members.settled(admin, ROLLED)
        async with members.traffic(producer):
            for number in range(ROLLED):
                running[number].end()
                running[number] = members.start(session_s=20)
                await members.settled(admin, ROLLED)
        await members.all_handled()
    for member in members.all:
        check_order(member)
    assert members.repeats == 0, "what is given up in order is committed first"


async def test_a_killed_member_with_an_instance_id_comes_back_to_what_it_had(
    members: Members,
) -> None:
    """Its session must end first, since it may live; nobody else is disturbed."""
    async with Admin(members.url) as admin, Producer(members.url) as producer:
        await admin.create_topic(members.topic, partitions=6)
        killed, *others = [members.start(f"i{number}", session_s=3) for number in range(3)]
        before = _shares(await members.settled(admin, 3))
        quiet = [member.moves for member in others]
        killed.end(signal.SIGKILL)
        members.start("i0", session_s=3)
        await members.send(producer, 20)
        await members.all_handled()
        assert _shares(await members.settled(admin, 3)) == before
        assert [member.moves for member in others] == quiet


def _shares(group: GroupInfo) -> dict[str | None, list[int]]:
    return {
        each.instance_id: [p for owned in each.assignment for p in owned.partitions]
        for each in group.members
    }


# --- many ----------------------------------------------------------------------------------------


async def test_a_hundred_members_that_storm_in_own_a_partition_each(members: Members) -> None:
    members.partitions = 100
    async with Admin(members.url) as admin, Producer(members.url) as producer:
        await admin.create_topic(members.topic, partitions=100)
        processes = [members.start(count=25, session_s=20) for _ in range(4)]
        group = await members.settled(admin, 100)
        owned = Counter(
            p for each in group.members for found in each.assignment for p in found.partitions
        )
        assert owned == Counter(range(100))
        await members.send(producer, 10)
        await members.all_handled()
        processes.pop().end(signal.SIGTERM)
        group = await members.settled(admin, 75)
        owned = Counter(
            p for each in group.members for found in each.assignment for p in found.partitions
        )
        assert owned == Counter(range(100))
        await members.send(producer, 10)
        await members.all_handled()
        assert members.repeats == 0
    assert all(member.is_alive for member in processes)


# --- topics and coordinators that go -------------------------------------------------------------


async def test_a_topic_made_again_under_a_group_is_read_from_its_beginning(
    members: Members,
) -> None:
    async with Admin(members.url) as admin, Producer(members.url) as producer:
        await admin.create_topic(members.topic, partitions=2)
        await producer.send_many(members.topic, [b"old"] * 50, partition=0)
        async with Consumer(
            members.url, members.topic, group=members.group, metadata_max_age=1
        ) as consumer:
            assert await _values(consumer, 50) == {b"old": 50}
            await consumer.commit()
            await admin.delete_topic(members.topic)
            await admin.create_topic(members.topic, partitions=2)
            async with Producer(members.url) as again:
                await again.send_many(members.topic, [b"new"] * 20, partition=0)
            told: list[TopicNotFound] = []
            assert await _values(consumer, 20, told) == {b"new": 20}
            assert 1 <= len(told) <= 2, "it is told, and not over and over"
            await consumer.commit()
            info = await admin.group_offsets(members.group, topic=members.topic)
            assert {each.partition: each.offset for each in info.offsets}[0] == 20


async def _values(
    consumer: Consumer, count: int, told: list[TopicNotFound] | None = None
) -> Counter[bytes | None]:
    found: Counter[bytes | None] = Counter()
    async with asyncio.timeout(15):
        while found.total() < count:
            try:
                found.update(each.value for each in await consumer.fetch(100, timeout=1))
            except TopicNotFound as error:
                if told is None:
                    raise
                told.append(error)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    made = ClusterProcesses(tmp_path / "cluster")
    try:
        made.start()
        yield made
    except BaseException:
        sys.stderr.write(made.log_tails)
        raise
    finally:
        made.kill()


async def test_members_go_on_when_their_coordinator_is_killed(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    members = Members(cluster.bootstrap, tmp_path)
    try:
        async with Admin(members.url) as admin, Producer(members.url) as producer:
            await admin.create_topic(members.topic, partitions=6, replicas=3)
            await members.send(producer, 100)
            for _ in range(3):
                members.start(session_s=5)

            async def commit_often() -> bool:
                try:
                    group = await admin.describe_group(members.group)
                except GroupNotFound:
                    return False
                return len(group.offsets) == 6 and len(group.members) == 3

            await eventually(commit_often, timeout_s=30)
            coordinator = (await admin.describe_group(members.group)).coordinator
            cluster.brokers[coordinator].kill()
            await members.send(producer, 100)
            await members.all_handled(60)

            async def all_committed() -> bool:
                group = await admin.describe_group(members.group)
                return [each.offset for each in group.offsets] == [200] * 6

            await eventually(all_committed, timeout_s=30)
            assert (await admin.describe_group(members.group)).coordinator != coordinator
        assert all(member.is_alive for member in members.all), "nobody has died of it"
        for member in members.all:
            check_order(member)
    finally:
        members.close()


async def test_no_commit_that_was_answered_is_lost_with_its_coordinator(
    cluster: ClusterProcesses,
) -> None:
    topic, group = "t-" + secrets.token_hex(4), "g-" + secrets.token_hex(4)
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topic(topic, partitions=3, replicas=3)
        for partition in range(3):
            await producer.send_many(topic, [b"v"] * 2_000, partition=partition)
        answered: dict[int, int] = {}
        async with Consumer(
            cluster.bootstrap, topic, group=group, auto_commit=False, session_timeout=10
        ) as consumer:

            async def commit_each(count: int) -> None:
                for _ in range(count):
                    [record] = await consumer.fetch(1, timeout=20)
                    await consumer.commit({(topic, record.partition): record.offset + 1})
                    answered[record.partition] = record.offset + 1

            await commit_each(50)
            coordinator = (await admin.describe_group(group)).coordinator
            committing = asyncio.create_task(commit_each(400))
            while sum(answered.values()) < 60:
                await asyncio.sleep(0.01)
            cluster.brokers[coordinator].kill()
            await committing
            offsets = (await admin.group_offsets(group)).offsets
            found = {each.partition: each.offset for each in offsets}
            assert all(found[partition] >= offset for partition, offset in answered.items())
            assert sum(found.values()) == 450
            with pytest.raises(HeadraceError):
                await admin.alter_group_offsets(group, {(topic, 0): 1})
