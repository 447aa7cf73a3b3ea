"""A loop that fails goes on, and it shows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.broker import tasks
from headrace.broker.tasks import TaskGroup
from headrace.protocol.errors import StoreUnavailable


async def test_a_loop_that_fails_starts_again_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "RESTART_DELAY_S", 0.001)
    group, done = TaskGroup(), asyncio.Event()
    faults: list[Exception] = [KeyError("x"), StoreUnavailable("away")]

    async def loop() -> None:
        if faults:
            raise faults.pop()
        done.set()

    with caplog.at_level(logging.WARNING):
        group.forever(loop, name="looper")
        await asyncio.wait_for(done.wait(), 5)
    assert group.failures == {"looper": 2}
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    await group.stop()


async def test_a_loop_that_is_over_stays_so() -> None:
    group, runs = TaskGroup(), 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    group.forever(work, name="short")
    await asyncio.sleep(0.01)
    assert runs == 1
    await group.stop()


async def test_what_is_begun_after_the_end_ends_at_once() -> None:
    group, runs = TaskGroup(), 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    await group.stop()
    group.forever(work, name="late")
    group.once(work(), name="late")
    await asyncio.sleep(0.01)
    assert runs == 0
