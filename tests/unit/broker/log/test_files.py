"""Files: descriptors are bounded, whoever uses one keeps it, thousands of logs open fast."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

import pytest

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.files import Disk, FileCache, LogFile
from headrace.broker.log.journal import Journal
from headrace.broker.log.log import Log
from headrace.broker.log.recovery import StartKind, open_log
from headrace.protocol.ids import TopicId, TopicIdPartition
from testkit.logs import Bench, InlineWorkers, append, sealed


def test_the_least_recently_used_are_closed_first(tmp_path: Path) -> None:
    cache = FileCache(Disk(), InlineWorkers(), capacity=20)
    files = [LogFile(str(tmp_path / str(number))) for number in range(100)]
    pinned = cache.fd(files[0], create=True)
    cache.pin(files[0])
    for file in files[1:]:
        cache.fd(file, create=True)
        assert cache.open_count <= 21
    assert files[0].fd == pinned
    assert files[-1].fd is not None
    assert files[1].fd is None
    cache.unpin(files[0])
    assert cache.fd(files[1]) >= 0


def test_a_discarded_file_lives_until_its_last_reader_and_pin(tmp_path: Path) -> None:
    cache = FileCache(Disk(), InlineWorkers(), capacity=2)
    file = LogFile(str(tmp_path / "a.log"))
    fd = cache.fd(file, create=True)
    os.write(fd, b"bytes")
    cache.pin(file)
    cache.add_reader(file)
    cache.discard(file)
    cache.unpin(file)
    cache.close(file)
    assert os.pread(cache.fd(file), 5, 0) == b"bytes"
    cache.drop_reader(file)
    assert list(tmp_path.iterdir()) == []


async def test_two_thousand_partitions_open_and_close_with_few_descriptors(tmp_path: Path) -> None:
    count = 2000
    context = LogContext(FileCache(Disk(), InlineWorkers(), capacity=100))
    config = LogConfig()
    before = len(os.listdir("/proc/self/fd"))
    checkpoints: dict[int, Checkpoint] = {}

    def opened(number: int, start: StartKind) -> Log:
        key = TopicIdPartition(TopicId(bytes(16)), number)
        directory = str(tmp_path / str(number))
        os.makedirs(directory, exist_ok=True)
        return open_log(
            key, directory, start=start, checkpoint=checkpoints.get(number), config=config,
            context=context,
        )[0]  # fmt: skip

    logs = [opened(number, StartKind.NEW) for number in range(count)]
    data = sealed([b"x"])
    for log in logs:
        append(log, data)
    assert len(os.listdir("/proc/self/fd")) - before <= 100 + 5
    for number, log in enumerate(logs):
        if number % 20 == 0:
            checkpoints[number] = await log.close()
        else:
            log._release()
            checkpoints[number] = log.checkpoint()
    begun = time.perf_counter()
    logs = [opened(number, StartKind.CLEAN) for number in range(count)]
    assert time.perf_counter() - begun < 1
    assert context.files.open_count == 0
    assert all(log.end_offset == 1 for log in logs)


async def test_a_cleanly_closed_log_opens_without_touching_its_files(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    for _ in range(30):
        append(log, sealed([b"x"] * 5))
    checkpoint = await log.close()
    hidden = tmp_path.with_name("hidden")
    tmp_path.rename(hidden)
    log, report = bench.open(StartKind.CLEAN, checkpoint)
    assert (log.end_offset, report.scanned_bytes) == (150, 0)
    hidden.rename(tmp_path)


def test_a_full_disk_leaves_no_half_entry_in_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(Disk(), str(path), str)
    journal.append(["first"], sync=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.append(["cut short"], sync=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.append(["later"], sync=True)
    assert journal.load() == ["first", "later"]


def test_a_directory_can_be_listed_while_another_thread_removes_its_files(tmp_path: Path) -> None:
    for number in range(3_000):
        (tmp_path / f"{number}").touch()

    def remove() -> None:
        for number in range(2_999):
            (tmp_path / f"{number}").unlink()

    removing = threading.Thread(target=remove)
    removing.start()
    while removing.is_alive():
        Disk().list_directory(str(tmp_path))
    removing.join()
    assert [entry.name for entry in Disk().list_directory(str(tmp_path))] == ["2999"]
