"""The timer that benchmarks keep their schedule with."""

from __future__ import annotations

import asyncio
import time

from headrace.cli.bench.precise_timer import PreciseTimer


async def test_it_fires_once_for_each_set_and_not_before_its_time() -> None:
    fired: list[int] = []
    timer = PreciseTimer(lambda: fired.append(time.perf_counter_ns()))
    due = time.perf_counter_ns() + 5_000_000
    timer.set(due)
    await asyncio.sleep(0.05)
    assert len(fired) == 1
    assert fired[0] >= due
    timer.set(0)  # long over
    await asyncio.sleep(0.02)
    assert len(fired) == 2
    timer.close()


async def test_a_timer_that_is_closed_or_set_anew_does_not_fire_for_the_old_instant() -> None:
    fired: list[int] = []
    timer = PreciseTimer(lambda: fired.append(1))
    timer.set(time.perf_counter_ns() + 5_000_000)
    timer.set(time.perf_counter_ns() + 60_000_000_000)
    await asyncio.sleep(0.03)
    timer.set(time.perf_counter_ns() + 5_000_000)
    timer.close()
    await asyncio.sleep(0.03)
    assert fired == []
