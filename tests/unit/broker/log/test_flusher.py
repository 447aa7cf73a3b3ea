"""Flusher: producers share a sync, intervals are kept, and a failed sync is never retried."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.broker.log.config import FlushPolicy, LogConfig
from headrace.broker.log.files import Workers
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.log import Log
from headrace.protocol.errors import PartitionOffline
from testkit.logs import Bench, OddDisk, append, sealed


class Setup:
    """A log under a flusher with real threads and a slow disk."""

    def __init__(self, path: Path, config: LogConfig) -> None:
        self.disk, self.workers = OddDisk(), Workers(2)
        self.disk.sync_seconds = 0.01
        self.flushed: list[int] = []
        self.failed: list[Log] = []
        self.flusher = Flusher(
            self.disk,
            self.workers,
            on_flushed=lambda log: self.flushed.append(log.flushed_offset),
            on_failed=self.failed.append,
        )
        bench = Bench(str(path), config, self.disk, self.workers)
        bench.context.events = self.flusher
        self.log, _ = bench.open()


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    found = Setup(tmp_path, LogConfig(flush=FlushPolicy.BATCH, flush_ms=100))
    yield found
    await found.flusher.flush_all([])
    found.workers.close()


async def test_waiting_producers_share_one_sync(setup: Setup) -> None:
    async def produce() -> None:
        done = append(setup.log, sealed([b"x"]))
        await setup.flusher.flushed(setup.log, done.last_offset)
        assert setup.log.flushed_offset > done.last_offset

    await asyncio.gather(*(produce() for _ in range(200)))
    assert setup.flusher.syncs <= 2
    assert setup.flushed[-1] == 200


async def test_those_who_come_during_a_sync_wait_for_the_next(setup: Setup) -> None:
    append(setup.log, sealed([b"x"]))
    first = asyncio.create_task(setup.flusher.flushed(setup.log, 0))
    await asyncio.sleep(0.002)
    append(setup.log, sealed([b"y"]))
    second = asyncio.create_task(setup.flusher.flushed(setup.log, 1))
    await first
    assert not second.done()
    await second
    assert setup.flushed == [1, 2]


async def test_the_interval_starts_with_the_first_byte_that_is_not_synced(setup: Setup) -> None:
    setup.log.configure(LogConfig(flush=FlushPolicy.INTERVAL, flush_ms=100))
    append(setup.log, sealed([b"x"]))
    for now_ms in (1000, 1050, 1099):
        setup.flusher.tick(now_ms)
    assert setup.flusher.syncs == 0
    setup.flusher.tick(1100)
    await setup.flusher.flush_all([])
    assert setup.log.flushed_offset == 1
    assert not setup.log.needs_sync


async def test_policy_none_syncs_rolled_segments_only(tmp_path: Path) -> None:
    setup = Setup(tmp_path, LogConfig(flush=FlushPolicy.NONE, segment_bytes=300))
    append(setup.log, sealed([b"x"]))
    setup.flusher.tick(0)
    setup.flusher.tick(10**9)
    await setup.flusher.flush_all([])
    assert setup.disk.syncs == 0
    for _ in range(5):
        append(setup.log, sealed([b"x"]))
    await setup.flusher.flush_all([])
    assert setup.log.flushed_offset > 0
    setup.workers.close()


async def test_a_failed_sync_takes_the_log_offline_and_is_not_tried_again(setup: Setup) -> None:
    append(setup.log, sealed([b"x"]))
    setup.disk.sync_error = errno.EIO
    with pytest.raises(PartitionOffline):
        await setup.flusher.flushed(setup.log, 0)
    setup.disk.sync_error = None
    syncs = setup.disk.syncs
    with pytest.raises(PartitionOffline):
        await setup.flusher.flushed(setup.log, 0)
    assert setup.disk.syncs == syncs
    assert setup.failed == [setup.log]
    assert setup.log.flushed_offset == 0


async def test_a_truncation_during_a_sync_voids_it(setup: Setup) -> None:
    append(setup.log, sealed([b"x"]))
    append(setup.log, sealed([b"y"]))
    waiting = asyncio.create_task(setup.flusher.flushed(setup.log, 1))
    await asyncio.sleep(0.002)
    setup.log.truncate_to(1)
    with pytest.raises(PartitionOffline):
        await waiting
    assert setup.log.flushed_offset <= 1


async def test_a_sync_that_never_ran_counts_as_none(setup: Setup) -> None:
    append(setup.log, sealed([b"x"]))
    setup.workers.close()  # as when no thread can be started: the job is refused, with RuntimeError
    setup.flusher.request(setup.log)
    await setup.flusher.flush_all([])
    assert setup.log.flushed_offset == 0
    assert setup.flushed == []
    assert setup.log.failure is not None


async def test_a_cancelled_sync_counts_as_none(setup: Setup) -> None:
    append(setup.log, sealed([b"x"]))
    setup.flusher.request(setup.log)
    await asyncio.sleep(0)
    for task in setup.flusher._running.values():
        task.cancel()
    await setup.flusher.flush_all([])
    assert setup.log.flushed_offset == 0
