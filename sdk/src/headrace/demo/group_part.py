"""A group of three over the demo's topic, while a member and the group's coordinator are killed.

Each member is a process that writes down what it has handled (`group_member`). Together they must
have handled every record at least once, and each key's records in the order of sending.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console

from headrace.demo import checks
from headrace.demo.checks import Check, Consumed, Pair, Place
from headrace.demo.group_member import decode
from headrace.sdk import Admin

GROUP = "arrivals"
MEMBERS = 3

LISTS = 120
"""Into so many lists the work is cut: each member handles about 40, which takes some seconds."""

BROKER_DELAY_S = 0.3
"""From the member's death to that of the broker."""

GROUP_S = 120.0
"""Longer than a slow machine needs; then the demo fails instead of waiting on."""

_LOOK_S = 0.05


class Cluster(Protocol):
    """What this part needs of a cluster."""

    @property
    def bootstrap(self) -> str:
        """The addresses for clients."""
        ...

    def kill(self, broker_id: int) -> int:
        """SIGKILL a broker; returns its process id."""
        ...

    async def back(self, broker_id: int, killed_pid: int) -> int:
        """Wait until a new process serves in the place of `killed_pid`; returns its id."""
        ...


@dataclass(slots=True)
class _Member:
    """A member's process and the file in which it writes down what it has handled."""

    process: asyncio.subprocess.Process
    file: Path

    @property
    def handled(self) -> int:
        """About how many records it has handled."""
        return self.file.stat().st_size // 8 if self.file.exists() else 0


@dataclass(slots=True)
class _Group:
    """The members, and what happened. Times are seconds."""

    members: list[_Member] = field(default_factory=list)
    killed_pid: int = 0
    killed_after: int = 0
    broker_id: int = -1
    broker_pid: int = 0
    taken_s: float = 0.0

    @property
    def handled(self) -> int:
        """About how many records were handled by all."""
        return sum(member.handled for member in self.members)


async def run_group(
    cluster: Cluster, topic: str, sent: Sequence[Pair], places: Sequence[Place], console: Console
) -> list[Check]:
    """Lets a group handle the topic and compares with what was sent."""
    source = dict(zip(places, sent, strict=True))
    group = _Group()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-group-") as name:
        began = time.perf_counter()
        try:
            for number in range(MEMBERS):
                file = Path(name) / f"member-{number}"
                group.members.append(await _start(cluster, topic, file, len(sent)))
            async with asyncio.timeout(GROUP_S):
                await _kill_in_the_middle(cluster, group, len(sent))
                await _all_handled(group, set(source))
        except TimeoutError:
            console.print(f"the group wasn't done after {GROUP_S:g} s")
        finally:
            await _end(group)
        group.taken_s = time.perf_counter() - began
        handled = _handled(group)
    if group.broker_pid:
        await cluster.back(group.broker_id, group.broker_pid)
        _tell(console, group, len(sent))
    return _checks(sent, source, handled)


async def _start(cluster: Cluster, topic: str, file: Path, records: int) -> _Member:
    arguments = [cluster.bootstrap, topic, GROUP, str(file), str(records // LISTS + 1)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.demo.group_member", *arguments,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    return _Member(process, file)


async def _kill_in_the_middle(cluster: Cluster, group: _Group, total: int) -> None:
    """Once all three have begun and a third is handled: SIGKILL one member, and shortly afterwards
    the broker that coordinates the group."""
    while group.handled < total / 3 or not all(member.handled for member in group.members):
        await asyncio.sleep(_LOOK_S)
    async with Admin(cluster.bootstrap) as admin:
        group.broker_id = (await admin.describe_group(GROUP)).coordinator
    victim = group.members[0]
    group.killed_pid, group.killed_after = victim.process.pid, group.handled
    victim.process.kill()
    await asyncio.sleep(BROKER_DELAY_S)
    group.broker_pid = cluster.kill(group.broker_id)


async def _all_handled(group: _Group, wanted: set[Place]) -> None:
    while group.handled < len(wanted) or wanted - {place for _, place in _handled(group)}:
        await asyncio.sleep(_LOOK_S)


async def _end(group: _Group) -> None:
    for member in group.members:
        if member.process.returncode is None:
            member.process.terminate()
    for member in group.members:
        try:
            async with asyncio.timeout(10):
                await member.process.wait()
        except TimeoutError:
            member.process.kill()
            await member.process.wait()


def _handled(group: _Group) -> list[tuple[int, Place]]:
    """What was handled, with the times; the members' lists one after another."""
    return [
        each
        for member in group.members if member.file.exists()
        for each in decode(member.file.read_bytes())
    ]  # fmt: skip


def _tell(console: Console, group: _Group, total: int) -> None:
    console.print(
        f"a group of {MEMBERS} processes handled the {total:,} records in {group.taken_s:.1f} s;"
        f" after about {group.killed_after:,} one of them (pid {group.killed_pid}) was killed with"
        f" SIGKILL, and {BROKER_DELAY_S:g} s later broker {group.broker_id}"
        f" (pid {group.broker_pid}), which coordinated the group"
    )


def _checks(
    sent: Sequence[Pair], source: dict[Place, Pair], handled: list[tuple[int, Place]]
) -> list[Check]:
    counted = Counter(place for _, place in handled)
    missing = len(source.keys() - counted.keys())
    strange = len(counted.keys() - source.keys())
    first: Consumed = {}
    for _, place in sorted(handled, key=lambda each: each[0]):  # Stable: a list keeps its order.
        if place in source:
            first.setdefault(place[0], {}).setdefault(place[1], source[place])
    repeats = counted.total() - len(counted)
    order = checks.check_order(sent, first)
    return [
        Check(
            name="group: every record handled",
            passed=not missing and not strange,
            detail=f"{len(source) - missing:,} of {len(source):,} at least once",
        ),
        Check(
            name="group: what was handled twice",
            passed=repeats < len(source) / 3,
            detail=f"{repeats:,} records, the killed member's that it hadn't committed yet",
        ),
        Check(name="group: order within each key", passed=order.passed, detail=order.detail),
    ]
