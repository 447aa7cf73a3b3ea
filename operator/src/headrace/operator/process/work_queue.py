"""What is to be looked at, and when: each key at most once at a time.

A key that is asked for while its pass runs gets another one after it. A pass says when it wants the
next; one that fails comes again after a pause that doubles, with jitter. A pass that hangs is ended
at its deadline. Nothing that a pass raises gets out of here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.operator.kube.errors import KubernetesError

log = logging.getLogger("headrace.operator")

PASS_S = 180.0
"""The longest pass, in seconds: more means that something hangs in spite of its own deadline."""

BACKOFF_S = (0.5, 60.0)
"""Pause after the first failure, and the longest."""

SETTLE_S = 0.05
"""What comes within this time is looked at together."""


class Key(NamedTuple):
    """A resource (or, for Topics and ConsumerGroups, all of one cluster's)."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


Pass = Callable[[Key], Awaitable[float | None]]
"""One pass; answers in how many seconds it wants the next, None: not before it is asked for."""


class Observer:
    """Told about passes; see `metrics`."""

    def began(self, key: Key) -> None:
        """A pass begins."""

    def ended(self, key: Key, *, error: BaseException | None, seconds: float) -> None:
        """A pass is over."""


@dataclass(slots=True)
class _Entry:
    at: float
    failures: int = 0
    task: asyncio.Task[None] | None = None
    asked_again: float | None = None
    forgotten: bool = False


@dataclass(slots=True)
class WorkQueue:
    """Runs passes. `run` works until it is cancelled, and ends all passes with it."""

    work: Pass
    observer: Observer
    concurrency: int = 8
    pass_s: float = PASS_S
    backoff_s: tuple[float, float] = BACKOFF_S
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self, key: Key, *, delay_s: float = SETTLE_S, urgent: bool = False) -> None:
        """A pass for the key, no later than that. One that waits after failures waits on, unless it
        is `urgent`: what failed may be right now that a person has changed it."""
        at = asyncio.get_running_loop().time() + delay_s
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(at)
        elif entry.task is not None:
            entry.asked_again = at if entry.asked_again is None else min(at, entry.asked_again)
        elif urgent or entry.failures <= 1:
            entry.at = min(entry.at, at)
        if entry is not None and urgent:
            entry.failures = 0
        self._woken.set()

    def forget(self, key: Key) -> None:
        """No more passes, unless asked for again."""
        entry = self._entries.get(key)
        if entry is not None and entry.task is None:
            del self._entries[key]
        elif entry is not None:
            entry.forgotten = True

    @property
    def keys(self) -> list[Key]:
        """All that is known."""
        return list(self._entries)

    async def run(self) -> None:
        """Works for ever."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._woken.clear()
                self._start_due(loop.time())
                waiting = [each.at for each in self._entries.values() if each.task is None]
                pause = None
                if waiting and self._running < self.concurrency:
                    pause = max(0.0, min(waiting) - loop.time())
                try:
                    # Not wait_for, which swallows a cancellation now and then (Python 3.11).
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            await self._end_all()

    @property
    def _running(self) -> int:
        return sum(each.task is not None for each in self._entries.values())

    def _start_due(self, now: float) -> None:
        free = self.concurrency - self._running
        due = [(each.at, key) for key, each in self._entries.items() if each.task is None]
        for at, key in sorted(due)[: max(0, free)]:
            if at <= now:
                entry = self._entries[key]
                entry.task = asyncio.create_task(self._pass(key, entry), name=str(key))

    async def _pass(self, key: Key, entry: _Entry) -> None:
        loop = asyncio.get_running_loop()
        began, error = loop.time(), None
        again: float | None = None
        self.observer.began(key)
        try:
            async with asyncio.timeout(self.pass_s):
                again = await self.work(key)
        except asyncio.CancelledError:
            raise
        except Exception as caught:
            error = caught
            log.warning("%s: %s: %s", key, type(caught).__name__, caught, exc_info=_trace(caught))
        finally:
            self.observer.ended(key, error=error, seconds=loop.time() - began)
            self._put_back(key, entry, again, failed=error is not None)

    def _put_back(self, key: Key, entry: _Entry, again: float | None, *, failed: bool) -> None:
        now = asyncio.get_running_loop().time()
        entry.task = None
        entry.failures = entry.failures + 1 if failed else 0
        times = [] if again is None else [now + again]
        if failed:
            times = [now + self._pause_s(entry.failures)]
        elif entry.asked_again is not None:
            times.append(entry.asked_again)
        if entry.forgotten or not times:
            is_wanted = entry.asked_again is not None and not failed
            if not is_wanted:
                self._entries.pop(key, None)
                times = []
        if times:
            entry.at = min(times)
        entry.asked_again, entry.forgotten = None, False
        self._woken.set()

    def _pause_s(self, failures: int) -> float:
        low, high = self.backoff_s
        return random.uniform(0.5, 1.0) * min(high, low * 2.0 ** min(failures - 1, 16))

    async def _end_all(self) -> None:
        tasks = [each.task for each in self._entries.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _trace(error: Exception) -> bool:
    """Whether the trace says more than the message: not for what others refuse."""
    return not isinstance(error, Expected | KubernetesError | TimeoutError)


class Expected(Exception):
    """A failure that the pass has already told about in status; only the pause is wanted."""
