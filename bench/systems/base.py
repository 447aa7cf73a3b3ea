"""What a system must offer to be compared: a server, streams, and the five kinds of work.

A system says how the work is done with its client; bench/peers.py holds the clock and
checks counts.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

from own_broker import usage_of

from headrace.cli.bench.workload import POOL_RECORDS, make_values

VALUE_BYTES = 100

VALUES = make_values(POOL_RECORDS, VALUE_BYTES)
"""What everybody sends, made before any clock starts; longer rounds send them again."""

STALLED_S = 30.0
"""Nothing for so long, with records known to be there: the measurement fails."""


class Work(enum.StrEnum):
    """What is measured."""

    BULK = "produce in bulk"
    EACH = "produce one by one"
    LISTS = "consume in lists"
    ITERATE = "consume one by one"
    LATENCY = "end to end at 500/s"


PRODUCING = frozenset({Work.BULK, Work.EACH})
CONSUMING = frozenset({Work.LISTS, Work.ITERATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One way of promising: who has a record when it is acknowledged, and what is on the disk."""

    acks: str
    flush: str
    works: frozenset[Work]
    settings: str = ""


class Missing(Exception):
    """The system can't be had on this machine; the message says what to install."""


class Stalled(Exception):
    """Records that were acknowledged don't come out again."""


Send = Callable[[int], Awaitable[None]]
"""Sends so many records; returns when the last is acknowledged."""

SendOne = Callable[[bytes], object]
"""Sends one value now, without waiting; called on the event loop."""

OnValue = Callable[[bytes], None]

Over = Callable[[], None]
"""Stops the clock: the work is done, what follows is tidying up."""


class System(abc.ABC):
    """A server of its own on loopback, and the usual Python client."""

    name: str
    levels: tuple[Level, ...]
    records: dict[Work, int]
    """A round's records: what the system does in about half a second on a small machine."""

    @abc.abstractmethod
    def check(self) -> None:
        """Find server and client.

        Raises:
            Missing: one isn't there.
        """

    @abc.abstractmethod
    async def start(self, folder: Path) -> None:
        """Start the server with its data in the folder; returns when it serves."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Stop what `start` started."""

    @abc.abstractmethod
    def versions(self) -> str:
        """Of server and client."""

    @abc.abstractmethod
    def server_pid(self) -> int:
        """The process whose CPU time, with that of its children, is the server's."""

    @abc.abstractmethod
    async def new_stream(self, name: str, level: Level) -> None:
        """One partition, empty."""

    @abc.abstractmethod
    async def drop_stream(self, name: str) -> None:
        """Free what the stream holds."""

    @abc.abstractmethod
    async def stored(self, name: str) -> int:
        """How many records the server says that the stream holds."""

    @abc.abstractmethod
    def producer(
        self, stream: str, level: Level, work: Work
    ) -> contextlib.AbstractAsyncContextManager[Send]:
        """A connected producer."""

    @abc.abstractmethod
    async def consume(self, stream: str, records: int, work: Work, over: Over) -> int:
        """Open a consumer, read so many from the beginning, taking every record's value, call
        `over`, close it; returns the bytes of all values, so that none can be left undecoded."""

    @abc.abstractmethod
    def live(
        self, stream: str, level: Level, on_value: OnValue
    ) -> contextlib.AbstractAsyncContextManager[SendOne]:
        """A producer set for latency, and a consumer that hands each value over as it comes."""

    def server_cpu_s(self) -> float:
        """CPU time of the server so far."""
        return sum(usage_of(pid).cpu_s for pid in family(self.server_pid()))


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


class Tasks:
    """Sends under way in the latency work; the first failure is raised at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._failure: BaseException | None = None

    def start(self, work: Coroutine[object, object, object]) -> None:
        """Let it run."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() and not self._failure:
            self._failure = task.exception()

    async def finish(self) -> None:
        """Wait for all; raise what one of them raised."""
        await asyncio.gather(*self._tasks)
        if self._failure is not None:
            raise self._failure


@contextlib.asynccontextmanager
async def background(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Something that runs as long as the block; its failure is raised at the end."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        while not task.done():  # once is not enough: redis-py takes a cancelled read for a retry
            task.cancel()
            await asyncio.wait([task], timeout=0.1)
    if not task.cancelled():
        task.result()
