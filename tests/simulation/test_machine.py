"""The ports themselves: a simulation is worth as much as its disk and its loop are true."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from testkit.simulation.disk import Machine, SimDisk
from testkit.simulation.loop import Process, SimLoop, Stuck


def _disk() -> tuple[Machine, SimDisk]:
    machine = Machine("m")
    disk = SimDisk(machine)
    disk.make_directory("/d")
    machine.change(lambda tree: None, "/")
    disk.sync_directory("/")
    return machine, disk


def test_a_power_cut_takes_what_was_not_synced() -> None:
    machine, disk = _disk()
    fd = disk.open("/d/a", create=True)
    disk.writev(fd, [b"kept"], 0)
    disk.sync(fd)
    disk.sync_directory("/d")
    disk.writev(fd, [b"lost"], 4)
    disk.truncate(fd, 2)
    disk.replace_file("/d/b", b"never synced", sync=False)
    machine.power_cut("all", random.Random(0))
    after = SimDisk(machine)
    assert after.read_file("/d/a") == b"kept"
    assert after.read_file("/d/b") is None
    assert after.boot_id() == "boot-m-1"


def test_a_synced_file_is_gone_if_its_name_was_not() -> None:
    machine, disk = _disk()
    fd = disk.open("/d/a", create=True)
    disk.writev(fd, [b"bytes"], 0)
    disk.sync(fd)
    machine.power_cut("all", random.Random(0))
    assert not SimDisk(machine).exists("/d/a")


def test_some_of_the_unsynced_may_be_there_and_torn() -> None:
    found = set()
    for seed in range(300):
        machine, disk = _disk()
        fd = disk.open("/d/a", create=True)
        disk.sync_directory("/d")
        disk.writev(fd, [b"abcd"], 0)
        disk.writev(fd, [b"efgh"], 4)
        machine.power_cut("some", random.Random(seed))
        found.add(SimDisk(machine).read_file("/d/a"))
    assert {b"", b"abcd", b"abcdefgh"} <= found
    assert any(data and data.startswith(b"\0\0\0\0") for data in found)
    assert any(data and 0 < len(data) < 4 for data in found)


def test_a_process_crash_loses_nothing_but_the_lock() -> None:
    machine, disk = _disk()
    fd = disk.open("/d/a", create=True)
    disk.writev(fd, [b"bytes"], 0)
    assert disk.lock("/d/lock") is not None
    assert SimDisk(machine).lock("/d/lock") is None
    disk.kill()
    with pytest.raises(OSError):
        disk.writev(fd, [b"more"], 5)
    after = SimDisk(machine)
    assert after.lock("/d/lock") is not None
    assert after.read_file("/d/a") == b"bytes"


def test_a_full_disk_refuses_what_needs_room_and_nothing_else() -> None:
    machine, disk = _disk()
    fd = disk.open("/d/a", create=True)
    disk.writev(fd, [b"bytes"], 0)
    machine.error = errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        disk.writev(fd, [b"more"], 5)
    disk.truncate(fd, 1)
    disk.sync(fd)
    disk.unlink("/d/a")


def test_a_renamed_directory_has_one_of_its_names_after_a_power_cut() -> None:
    for cut, name in (("all", "/d/old/a"), ("none", "/d/new/a")):
        machine, disk = _disk()
        disk.make_directory("/d/old")
        disk.append_file("/d/old/a", b"bytes", sync=True)
        disk.sync_directory("/d")
        disk.sync_directory("/d/old")
        disk.rename("/d/old", "/d/new")
        machine.power_cut(cut, random.Random(0))  # type: ignore[arg-type]
        assert SimDisk(machine).read_file(name) == b"bytes"


def test_a_paused_process_goes_on_where_it_was_and_a_killed_one_never() -> None:
    loop = SimLoop.make(random.Random(0))
    seen: list[str] = []

    async def work(name: str) -> None:
        try:
            for step in range(3):
                await asyncio.sleep(1.0)
                seen.append(f"{name}{step}")
        finally:
            seen.append(f"{name} ends")

    paused, killed = Process(loop, "p"), Process(loop, "k")
    paused.spawn(work("p"))
    killed.spawn(work("k"))
    loop.run(until_s=loop.now + 1.5)
    paused.pause()
    killed.kill()
    loop.run(until_s=loop.now + 10)
    assert sorted(seen) == ["k0", "p0"]
    paused.resume()
    loop.run(until_s=loop.now + 10)
    assert seen[2:] == ["p1", "p2", "p ends"]
    loop.close()


def test_callbacks_of_one_process_keep_their_order_and_those_of_two_need_not() -> None:
    orders = set()
    for seed in range(20):
        loop = SimLoop.make(random.Random(seed))
        seen: list[str] = []
        one, two = Process(loop, "1"), Process(loop, "2")
        for letter in "ab":
            one.call_soon(seen.append, letter)
            two.call_soon(seen.append, letter.upper())
        loop.run(until_s=loop.now + 1)
        assert [x for x in seen if x.islower()] == ["a", "b"]
        orders.add("".join(seen))
    assert len(orders) > 3


def test_what_spins_without_time_going_on_is_told() -> None:
    loop = SimLoop.make(random.Random(0))

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    Process(loop, "s").spawn(spin())
    with pytest.raises(Stuck, match="spins"):
        loop.run(until_s=loop.now + 1)
    loop.close()
