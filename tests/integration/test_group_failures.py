"""Groups of real processes: members killed, stopped and restarted, and their coordinator killed.

Each record must be handled at least once, in order within each process' turn at a partition; how
often records come again is bounded by what wasn't committed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.sdk import Admin, Producer
from headrace.sdk.errors import GroupNotFound
from testkit.brokers import BrokerProcess
from testkit.clusters import ClusterProcesses
from testkit.http import eventually

SESSION_S = "2"
TESTS = Path(__file__).parents[1]


class MemberProcess:
    """One member; `lines` is what it has told so far."""

    def __init__(self, url: str, topic: str, group: str, folder: Path, *instance: str) -> None:
        self.file = folder / f"member-{secrets.token_hex(4)}"
        self.file.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testkit.group_member", url, topic, group, str(self.file)]
            + [SESSION_S, *instance],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )

    @property
    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.file.read_text().splitlines()]

    @property
    def records(self) -> list[tuple[int, int]]:
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "record"]

    def said(self, what: str) -> bool:
        return any(line[0] == what for line in self.lines)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(20)


class Members:
    """The processes of one test; all end with it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.topic, self.group = "t-" + secrets.token_hex(4), "g-" + secrets.token_hex(4)
        self.all: list[MemberProcess] = []
        self.sent: Counter[int] = Counter()

    def start(self, *instance: str) -> MemberProcess:
        member = MemberProcess(self.url, self.topic, self.group, self.folder, *instance)
        self.all.append(member)
        return member

    async def send(self, producer: Producer, count: int) -> None:
        for partition in range(6):
            await producer.send_many(self.topic, [b"v"] * count, partition=partition)
            self.sent[partition] += count

    @property
    def missing(self) -> set[tuple[int, int]]:
        wanted = {(p, offset) for p, count in self.sent.items() for offset in range(count)}
        return wanted - {record for member in self.all for record in member.records}

    async def all_handled(self, timeout_s: float = 40) -> None:
        async def holds() -> bool:
            return not self.missing

        await eventually(holds, timeout_s=timeout_s)

    @property
    def repeats(self) -> int:
        counted = Counter(record for member in self.all for record in member.records)
        return sum(count - 1 for count in counted.values())


@pytest.fixture
def members(broker: BrokerProcess, tmp_path: Path) -> Iterator[Members]:
    made = Members(broker.url, tmp_path)
    yield made
    for member in made.all:
        member.end(signal.SIGKILL)


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
        second.process.send_signal(signal.SIGSTOP)
        await members.send(producer, 100)
        await members.all_handled()
        second.process.send_signal(signal.SIGCONT)

        async def noticed() -> bool:
            return second.said("lost")

        await eventually(noticed, timeout_s=10)
        await members.send(producer, 50)
        await members.all_handled()
    for member in members.all:
        check_order(member)
    assert members.repeats < 400, "only what wasn't committed comes again"


async def test_a_rolling_restart_with_instance_ids_disturbs_nobody_else(members: Members) -> None:
    async with Admin(members.url) as admin, Producer(members.url) as producer:
        await admin.create_topic(members.topic, partitions=6)
        await members.send(producer, 20)
        running = [members.start(f"i{number}") for number in range(3)]
        await members.all_handled()

        async def settled() -> bool:
            group = await admin.describe_group(members.group)
            return group.state == "Stable" and len(group.members) == 3

        await eventually(settled, timeout_s=10)
        before = [list(member.lines) for member in running]
        for number in range(3):
            running[number].end()
            others = [each for index, each in enumerate(running) if index != number]
            quiet = [len([line for line in each.lines if line[0] != "record"]) for each in others]
            running[number] = members.start(f"i{number}")
            await members.send(producer, 20)
            await members.all_handled()
            assert quiet == [
                len([line for line in each.lines if line[0] != "record"]) for each in others
            ]
        assert before
        assert members.repeats == 0, "who closes in order commits what it has handled"


async def test_members_go_on_when_their_coordinator_is_killed(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path / "cluster")
    members = Members(cluster.bootstrap, tmp_path)
    try:
        cluster.start()
        async with Admin(members.url) as admin, Producer(members.url) as producer:
            await admin.create_topic(members.topic, partitions=6, replicas=3)
            await members.send(producer, 100)
            for _ in range(3):
                members.start()

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
        assert not any(member.process.poll() for member in members.all), "nobody has died of it"
        for member in members.all:
            check_order(member)
    except BaseException:
        sys.stderr.write(cluster.log_tails)
        raise
    finally:
        for member in members.all:
            member.end(signal.SIGKILL)
        cluster.kill()
