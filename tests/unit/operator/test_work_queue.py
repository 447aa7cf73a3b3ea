"""The queue of passes: one at a time for each key, pauses after failures, nothing gets out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.operator.process.work_queue import Expected, Key, Observer, WorkQueue

ONE, TWO = Key("Topic", "q", "one"), Key("Topic", "q", "two")


class Seen(Observer):
    """What happened."""

    def __init__(self) -> None:
        self.began_keys: list[Key] = []
        self.errors: list[str] = []

    def began(self, key: Key) -> None:
        self.began_keys.append(key)

    def ended(self, key: Key, *, error: BaseException | None, seconds: float) -> None:
        if error is not None:
            self.errors.append(type(error).__name__)


@asynccontextmanager
async def running(
    work: Callable[[Key], Awaitable[float | None]], **settings: Any
) -> AsyncIterator[tuple[WorkQueue, Seen]]:
    seen = Seen()
    queue = WorkQueue(work, seen, backoff_s=(0.02, 0.1), concurrency=2)
    for name, value in settings.items():
        setattr(queue, name, value)
    task = asyncio.create_task(queue.run())
    try:
        yield queue, seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.002)


async def test_a_key_that_is_asked_for_while_its_pass_runs_gets_another_one_after_it() -> None:
    running_now: Counter[Key] = Counter()
    gate = asyncio.Event()

    async def work(key: Key) -> None:
        running_now[key] += 1
        assert running_now[key] == 1, "two passes for one key at a time"
        await gate.wait()
        running_now[key] -= 1

    async with running(work) as (queue, seen):
        queue.ask(ONE, delay_s=0)
        await until(lambda: len(seen.began_keys) == 1)
        for _ in range(5):
            queue.ask(ONE, delay_s=0)
        gate.set()
        await until(lambda: queue.keys == [])
        assert seen.began_keys == [ONE, ONE]


async def test_a_pass_says_when_it_wants_the_next_and_is_forgotten_when_it_wants_none() -> None:
    answers = iter([0.01, 0.01, None])

    async def work(key: Key) -> float | None:
        return next(answers)

    async with running(work) as (queue, seen):
        queue.ask(ONE, delay_s=0)
        await until(lambda: queue.keys == [])
        assert len(seen.began_keys) == 3


async def test_one_that_fails_comes_again_and_holds_up_nobody() -> None:
    failures = iter([ValueError("a bug"), Expected("refused"), TimeoutError()])

    async def work(key: Key) -> None:
        if key == ONE:
            error = next(failures, None)
            if error is not None:
                raise error

    async with running(work) as (queue, seen):
        queue.ask(ONE, delay_s=0)
        queue.ask(TWO, delay_s=0)
        await until(lambda: queue.keys == [])
        assert seen.errors == ["ValueError", "Expected", "TimeoutError"]
        assert seen.began_keys.count(TWO) == 1


async def test_a_pass_that_hangs_is_ended_and_others_go_on_meanwhile() -> None:
    async def work(key: Key) -> None:
        if key == ONE:
            await asyncio.Event().wait()

    async with running(work, pass_s=0.1) as (queue, seen):
        queue.ask(ONE, delay_s=0)
        queue.ask(TWO, delay_s=0)
        await until(lambda: TWO not in queue.keys)
        assert seen.errors == []
        await until(lambda: seen.errors[:1] == ["TimeoutError"])


async def test_only_a_person_shortens_the_pause_of_what_fails_again_and_again() -> None:
    async def work(key: Key) -> None:
        raise Expected("refused")

    async with running(work, backoff_s=(60.0, 60.0)) as (queue, seen):
        queue.ask(ONE, delay_s=0)
        await until(lambda: len(seen.errors) == 1)
        queue.ask(ONE, delay_s=0)
        await until(lambda: len(seen.errors) == 2)
        queue.ask(ONE, delay_s=0)
        await asyncio.sleep(0.05)
        assert len(seen.errors) == 2
        queue.ask(ONE, delay_s=0, urgent=True)
        await until(lambda: len(seen.errors) == 3)


async def test_no_more_passes_run_at_once_than_allowed() -> None:
    inside = 0

    async def work(key: Key) -> None:
        nonlocal inside
        inside += 1
        assert inside <= 2
        await asyncio.sleep(0.005)
        inside -= 1

    async with running(work) as (queue, seen):
        for number in range(10):
            queue.ask(Key("Topic", "q", str(number)), delay_s=0)
        await until(lambda: queue.keys == [])
        assert len(seen.began_keys) == 10
        assert seen.errors == []


async def test_ending_the_queue_ends_its_passes() -> None:
    ended = []

    async def work(key: Key) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(key)
            raise

    async with running(work) as (queue, seen):
        queue.ask(ONE, delay_s=0)
        await until(lambda: len(seen.began_keys) == 1)
    assert ended == [ONE]


def test_a_key_reads_as_a_person_would_write_it() -> None:
    assert str(ONE) == "Topic q/one"
    with pytest.raises(AttributeError):
        ONE.name = "other"  # type: ignore[misc]
