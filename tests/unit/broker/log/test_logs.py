"""Logs: what one process leaves, the next one finds, whatever it could not open meanwhile."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.broker.core.model import Generation
from headrace.broker.core.standing import LocalMeta
from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import Disk
from headrace.broker.log.log import Log
from headrace.broker.log.logs import Logs
from headrace.broker.log.recovery import StartKind
from headrace.broker.log.volume import Volume
from testkit.logs import PARTITION, append, read_records, sealed

CONFIG = LogConfig()


class NoDescriptors(Disk):
    """Log files can't be opened: the process has too many files open."""

    def open_to_read(self, path: str) -> int:
        if path.endswith(".log"):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open_to_read(path)


@asynccontextmanager
async def process(
    path: Path, *, clean: bool = False, disk: Disk | None = None
) -> AsyncIterator[Logs]:
    """One life of a broker's logs, as registered as it gets; killed unless `clean`."""
    volume = Volume.open(str(path), broker_id=0, disk=disk)
    logs = Logs(volume, files_max=16, io_threads=1, flush_threads=1)
    session = volume.meta.session + 1
    await logs.prepare(LocalMeta("c", 0, Generation(0, 0), session))
    yield logs
    await logs.close(clean=clean)


async def opened(logs: Logs) -> Log:
    await logs.add([PARTITION])
    return (await logs.open([(PARTITION, CONFIG)]))[0]


async def write_and_die(path: Path) -> None:
    async with process(path) as logs:
        await logs.begin()
        append(await opened(logs), sealed([b"a", b"b"]))


@pytest.mark.parametrize("clean", [False, True])
async def test_a_log_that_is_opened_late_is_recovered_and_not_taken_for_a_new_one(
    tmp_path: Path, clean: bool
) -> None:
    await write_and_die(tmp_path)
    async with process(tmp_path, clean=clean) as logs:  # its record in the store can't be read now
        await logs.begin()
    async with process(tmp_path) as logs:
        await logs.begin()
        log = await opened(logs)
        assert log.end_offset == 2
        append(log, sealed([b"c"]))
        assert [record.value for record in await read_records(log)] == [b"a", b"b", b"c"]


async def test_deleted_records_stay_deleted_when_a_process_could_not_open_the_log(
    tmp_path: Path,
) -> None:
    async with process(tmp_path, clean=True) as logs:
        await logs.begin()
        log = await opened(logs)
        append(log, sealed([b"a"]))
        append(log, sealed([b"b"]))
        log.high_watermark = 2
        await log.advance_start(1)
    for clean in (True, False, True):
        async with process(tmp_path, clean=clean) as logs:
            await logs.begin()
            await logs.checkpoint()
    async with process(tmp_path) as logs:
        assert (await opened(logs)).start_offset == 1


async def test_a_stop_is_not_clean_while_a_log_was_not_recovered(tmp_path: Path) -> None:
    await write_and_die(tmp_path)
    async with process(tmp_path, clean=True) as logs:
        await logs.begin()
    volume = Volume.open(str(tmp_path), broker_id=0)
    assert volume.start is StartKind.SAME_BOOT
    volume.release()


async def test_a_log_that_could_not_be_recovered_for_want_of_room_is_recovered_by_a_later_start(
    tmp_path: Path,
) -> None:
    await write_and_die(tmp_path)
    async with process(tmp_path, disk=NoDescriptors(), clean=True) as logs:
        assert (await opened(logs)).failure is not None
        await logs.begin()
        await logs.checkpoint()
    async with process(tmp_path) as logs:
        log = await opened(logs)
        assert log.failure is None
        assert log.end_offset == 2


class LaterNoDescriptors(Disk):
    """As `NoDescriptors`, once told so, for writers."""

    is_out = False

    def open(self, path: str, *, create: bool = False) -> int:
        if self.is_out and path.endswith(".log"):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, create=create)


async def test_a_log_that_cannot_be_synced_at_the_end_makes_the_stop_unclean_and_no_more(
    tmp_path: Path,
) -> None:
    disk = LaterNoDescriptors()
    async with process(tmp_path, disk=disk, clean=True) as logs:
        await logs.begin()
        log = await opened(logs)
        append(log, sealed([b"a"]))
        log.files.close(log.segments.active.file)
        disk.is_out = True
    volume = Volume.open(str(tmp_path), broker_id=0)
    assert volume.start is StartKind.SAME_BOOT
    volume.release()


class SlowDisk(Disk):
    """Emptying the trash takes its time. `unlocked`: whether it was done when the lock went."""

    is_done = False
    unlocked: bool | None = None
    lock_fd: int | None = None

    def remove_tree(self, path: str) -> None:
        time.sleep(0.2)
        self.is_done = True

    def lock(self, path: str) -> int | None:
        self.lock_fd = super().lock(path)
        return self.lock_fd

    def close(self, fd: int) -> None:
        if fd == self.lock_fd:
            self.unlocked = self.is_done
        super().close(fd)


async def test_the_directory_is_given_up_only_after_the_last_thread_is_done_with_it(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    async with process(tmp_path, disk=disk) as logs:
        await logs.begin()
        await opened(logs)
        removing = asyncio.create_task(logs.remove([PARTITION]))
        await asyncio.sleep(0.05)
        removing.cancel()
    assert disk.unlocked is True
