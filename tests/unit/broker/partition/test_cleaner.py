"""The cleaner over real logs and its real process: order, faults, and an end in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.broker.clock import SystemClock
from headrace.broker.core.compaction import CleaningPolicy
from headrace.broker.core.quota import Rates
from headrace.broker.core.topic_config import resolve
from headrace.broker.log.compaction_process import CompactionError, CompactionProcess, Throttle
from headrace.broker.log.compactor import Done, Group, Job
from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import Workers
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.recovery import StartKind
from headrace.broker.partition.cleaner import RETRY_S, Cleaner
from headrace.broker.partition.partition import Partition
from headrace.protocol import batch
from headrace.protocol.ids import TopicId, TopicIdPartition
from testkit.logs import Bench, append, read_records

CONFIG = LogConfig(segment_bytes=4000, cleaning=CleaningPolicy(compact=True, min_dirty_ratio=0.0))


class PushedClock(SystemClock):
    """Runs, and may be put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Seen:
    """The real process, with a note of the directories it worked in."""

    def __init__(self) -> None:
        self.process = CompactionProcess()
        self.directories: list[str] = []

    async def run(self, job: Job) -> AsyncIterator[Group | Done]:
        self.directories.append(job.directory)
        async for step in self.process.run(job):
            yield step

    async def stop(self) -> int | None:
        return await self.process.stop()


def partition(folder: Path, values: int, *, number: int = 0) -> Partition:
    """A log where one key has so many values, in closed and committed segments."""
    folder.mkdir()
    bench = Bench(str(folder), CONFIG, workers=Workers(1))
    log, _ = bench.open(StartKind.NEW)
    log.partition_id = TopicIdPartition(TopicId(bytes(16)), number)
    for value in range(values):
        append(log, batch.encode_records([(b"k", b"%d" % value, 0, None)]))
    log.roll()
    log.segments.rolled = []
    log.high_watermark = log.flushed_offset = log.end_offset
    return Partition(
        "t", log, config=resolve({}, {}, replicas=1), flusher=Flusher(bench.disk, bench.workers),
        rates=Rates.unlimited(), now_ms=lambda: 0,
    )  # fmt: skip


def cleaner(
    partitions: list[Partition], seen: Seen, *, rate: int = -1, free_bytes: int = 1 << 30
) -> Cleaner:
    return Cleaner(
        partitions, seen, clock=PushedClock(), memory_bytes=1 << 20, bytes_per_second=rate,
        free_bytes=lambda: free_bytes,
    )  # fmt: skip


async def values(of: Partition) -> list[bytes | None]:
    return [record.value for record in await read_records(of.log)]


async def test_each_dirty_log_is_cleaned_once_and_the_process_ends(tmp_path: Path) -> None:
    parts = [partition(tmp_path / str(n), 200, number=n) for n in range(3)]
    seen = Seen()
    cleans = cleaner(parts, seen)
    await cleans.work()
    assert [await values(part) for part in parts] == [[b"199"]] * 3
    assert cleans.stats.passes == 3
    assert cleans.stats.records_removed == 3 * 199
    assert cleans.stats.bytes_read > 3 * parts[0].log.size_bytes
    assert cleans.stats.dirty_ratio_max == 1.0
    assert seen.process.pid is None
    await cleans.work()
    assert len(seen.directories) == 3
    assert cleans.stats.dirty_ratio_max == 0.0


async def test_the_dirtiest_log_comes_first(tmp_path: Path) -> None:
    parts = [partition(tmp_path / str(n), 200, number=n) for n in range(2)]
    seen = Seen()
    cleans = cleaner(parts, seen)
    await cleaner(parts[:1], seen).work()
    log = parts[0].log
    append(log, batch.encode_records([(b"k", b"last", 0, None)]))
    log.roll()
    log.segments.rolled = []
    log.high_watermark = log.flushed_offset = log.end_offset
    await cleans.work()
    assert seen.directories[1:] == [parts[1].log.directory, parts[0].log.directory]


async def test_a_fault_leaves_the_log_in_service_and_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = partition(tmp_path / "0", 200)
    path = part.log.older_segments()[1].file.path
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:50] + bytes(len(whole) - 50))
    seen = Seen()
    cleans = cleaner([part], seen)
    await cleans.work()
    assert cleans.stats.failures == 1
    assert part.log.failure is None
    assert not list((tmp_path / "0").glob("cleaned-*"))
    Path(path).write_bytes(whole)
    await cleans.work()
    assert len(seen.directories) == 1
    monkeypatch.setattr(PushedClock, "ahead_s", RETRY_S)
    await cleans.work()
    assert await values(part) == [b"199"]


async def test_no_pass_begins_without_room(tmp_path: Path) -> None:
    part = partition(tmp_path / "0", 200)
    seen = Seen()
    cleans = cleaner([part], seen, free_bytes=100)
    await cleans.work()
    assert seen.directories == []
    assert cleans.stats.failures == 1


async def begun(process: CompactionProcess) -> int:
    async with asyncio.timeout(20):
        while process.pid is None:
            await asyncio.sleep(0.01)
    return process.pid


async def test_a_process_that_is_killed_costs_the_pass_only(tmp_path: Path) -> None:
    part = partition(tmp_path / "0", 2000)
    seen = Seen()
    cleans = cleaner([part], seen, rate=20_000)
    working = asyncio.create_task(cleans.work())
    pid = await begun(seen.process)
    await asyncio.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    await working
    assert cleans.stats.failures == 1
    assert (await values(part))[-1] == b"1999"
    assert not list((tmp_path / "0").glob("cleaned-*"))


async def test_a_stop_in_the_middle_leaves_whole_segments(tmp_path: Path) -> None:
    part = partition(tmp_path / "0", 2000)
    seen = Seen()
    working = asyncio.create_task(cleaner([part], seen, rate=300_000).work())
    await begun(seen.process)
    await asyncio.sleep(0.8)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert seen.process.pid is None
    assert not list((tmp_path / "0").glob("cleaned-*"))
    assert not (tmp_path / "0" / "swap").exists()
    assert (await values(part))[-1] == b"1999"
    assert part.log.size_bytes == sum(
        path.stat().st_size for path in (tmp_path / "0").glob("*.log")
    )


async def test_a_job_of_a_directory_that_is_gone_fails(tmp_path: Path) -> None:
    part = partition(tmp_path / "0", 200)
    job = await part.log.cleaning.job(0, memory_bytes=1 << 20, bytes_per_second=0)
    assert job is not None
    (tmp_path / "0").rename(tmp_path / "1")
    process = CompactionProcess()
    with pytest.raises(CompactionError, match="No such file"):
        async for _step in process.run(job):
            pass
    await process.stop()


def test_the_throttle_lets_its_rate_through(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = Throttle(1_000_000)
    waited: list[float] = []
    monkeypatch.setattr(throttle._sleeping, "wait", waited.append)
    for _ in range(10):
        throttle.pace(100_000)
    assert 0.9 < max(waited) <= 1.0
