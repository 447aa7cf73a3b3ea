"""The store as one process reaches it: each call travels there and back, or not.

The cluster of objects is `store.memory.MemoryCluster`; a compare-and-swap is applied when it
arrives, whether its sender still waits, has given up, or is dead. Watches may be late, break off
and begin anew, also with an older state than they ended with (H9).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar, cast

from headrace.broker.store.base import (
    Change,
    Gone,
    Item,
    Outcome,
    Outcomes,
    Put,
    Unknown,
    WatchEvent,
)
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from headrace.broker.store.watcher import Mailbox
from headrace.protocol.errors import StoreUnavailable
from testkit.simulation.loop import Process
from testkit.simulation.wire import CAS, NEWS, READ, TOLD, Message, Wire

T = TypeVar("T")

STORE = "store"

TIMEOUT_S = 3.0
"""A call without an answer for so long has an unknown outcome."""


REPAIR_S = 10.0
"""A watch whose next event hasn't come for so long begins anew."""


class SimCluster(MemoryCluster):
    """The objects, with every version there ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[str] = []
        self.past: list[dict[str, Item]] = []
        self.on_write: Callable[[str, Item | None, Item], None] = lambda who, before, after: None

    def write(self, change: Change, who: str) -> Outcome:
        """One compare-and-swap by somebody."""
        before = self.objects.get(change.key)
        past = dict(self.objects) if not change.key.startswith("leases/") else None
        outcome = self.apply(change)
        after = self.objects.get(change.key)
        if after is not before:
            if past is not None:
                self.past.append(past)
            if after is not None:
                self.on_write(who, before, after)
        return outcome

    def go_back(self, writes: int) -> None:
        """Somebody restored a backup: all is as it was so many writes ago, revisions too (H10). The
        leases go on: they are written every second."""
        leases = {key: item for key, item in self.objects.items() if key.startswith("leases/")}
        past = self.past[-writes]
        del self.past[-writes:]
        self.objects = {k: i for k, i in past.items() if not k.startswith("leases/")} | leases
        self.counter = max(int(item.revision) for item in self.objects.values())
        for store in self.stores:
            cast(SimStore, store).drop_watches()


class SimStore:
    """`base.Store` for one process."""

    def __init__(self, cluster: SimCluster, process: Process, wire: Wire) -> None:
        self._cluster = cluster
        self._process = process
        self._wire = wire
        self._name = process.name
        self._streams: dict[Mailbox, _Stream] = {}
        self.is_out = False
        """Whether every call fails at once and watches hear nothing."""
        cluster.stores.append(cast(MemoryStore, self))

    async def get(self, key: str) -> Item | None:
        return await self._read(key, lambda: self._cluster.objects.get(key))

    async def list(self, prefix: str) -> list[Item]:
        return await self._read(prefix + "*", lambda: self._cluster.listed(prefix))

    async def cas(self, change: Change) -> Outcome:
        return (await self.cas_many([change]))[0]

    async def cas_many(self, changes: Sequence[Change]) -> Outcomes:
        what = " ".join(change.key for change in changes)
        await self._require_answer()
        try:
            return await self._call(
                CAS, what, lambda: [self._cluster.write(each, self._name) for each in changes]
            )
        except StoreUnavailable as error:
            return [Unknown(error.message) for _ in changes]

    async def _read(self, what: str, job: Callable[[], T]) -> T:
        await self._require_answer()
        return await self._call(READ, what, job)

    async def _require_answer(self) -> None:
        if self.is_out:
            self._wire.tally["store away"] += 1
            await asyncio.sleep(0.01)
            raise StoreUnavailable("the store doesn't answer (simulated)")

    async def _call(self, kind: str, what: str, job: Callable[[], T]) -> T:
        loop = self._process.loop
        future: asyncio.Future[T] = loop.create_future()
        has_arrived = False

        def arrive() -> None:
            nonlocal has_arrived
            has_arrived = True
            result = job()
            self._wire.send(Message(TOLD, STORE, self._name, what, lambda: answer(result)))

        def answer(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def give_up() -> None:
            if not future.done():
                if kind == CAS:
                    is_done = "done" if has_arrived else "not done (yet)"
                    self._wire.tally[f"write of unknown outcome, {is_done}"] += 1
                future.set_exception(StoreUnavailable(f"no answer about {what} (simulated)"))

        self._wire.send(Message(kind, self._name, STORE, what, arrive))
        timer = loop.call_later(TIMEOUT_S, give_up)
        try:
            return await future
        finally:
            timer.cancel()

    # --- watches ----------------------------------------------------------------------------------

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        mailbox = Mailbox(prefix)
        stream = self._streams[mailbox] = _Stream(self, mailbox)
        try:
            stream.begin(self._cluster.objects)
            async for event in mailbox.events():
                yield event
        finally:
            self._streams.pop(mailbox, None)

    def tell(self, event: Put | Gone) -> None:
        """From the cluster: something changed."""
        key = event.item.key if isinstance(event, Put) else event.key
        if not self.is_out and not key.startswith("leases/"):
            for stream in self._streams.values():
                stream.add(event)

    def drop_watches(self, *, back: int = 0) -> None:
        """The connections broke: what was on its way is lost, all is told anew. With `back`, by
        somebody who is that many writes behind, and catches up (H9)."""
        self._wire.tally["watch went back" if back else "watch broke off"] += 1
        past, objects = self._cluster.past, self._cluster.objects
        then = past[-back] if 0 < back <= len(past) else objects
        for stream in self._streams.values():
            stream.begin(then)
            for key in sorted(then.keys() | objects.keys()):
                now = objects.get(key)
                if now is not then.get(key) and not key.startswith("leases/"):
                    stream.add(Gone(key) if now is None else Put(now))

    @property
    def objects(self) -> dict[str, Item]:
        """All there is in the store."""
        return self._cluster.objects

    def send(self, what: str, arrive: Callable[[], None]) -> None:
        """Sends something to the process."""
        self._wire.send(Message(NEWS, STORE, self._name, what, arrive))

    def call(self, job: Callable[..., None], argument: object) -> None:
        """Runs a function in the process, if there is one."""
        if self._process.is_alive:
            self._process.call(job, argument)

    def at(self, delay_s: float, job: Callable[..., None], *args: object) -> None:
        """Something that the connection does later, whatever the process does."""
        if self._process.is_alive:
            self._process.loop.at(delay_s, job, *args)

    async def close(self) -> None:
        for mailbox in self._streams:
            mailbox.close()
        self.forget()

    def forget(self) -> None:
        """The process is gone."""
        others = [each for each in self._cluster.stores if each is not cast(MemoryStore, self)]
        self._cluster.stores[:] = others


class _Stream:
    """One watch's connection: events arrive in order, or it breaks and begins anew."""

    def __init__(self, store: SimStore, mailbox: Mailbox) -> None:
        self._store = store
        self._mailbox = mailbox
        self._sent: deque[_Event] = deque()

    def begin(self, objects: dict[str, Item]) -> None:
        """Tells everything anew."""
        self._sent.clear()
        prefix = self._mailbox.prefix
        self.add([objects[key] for key in sorted(objects) if key.startswith(prefix)])

    def add(self, content: Put | Gone | list[Item]) -> None:
        """Tells one more thing."""
        event = _Event(content)
        self._sent.append(event)
        self._store.send("watch", lambda: self._arrived(event))
        self._store.at(REPAIR_S, self._repair, event)

    def _arrived(self, event: _Event) -> None:
        event.is_there = True
        while self._sent and self._sent[0].is_there:
            content = self._sent.popleft().content
            if isinstance(content, list):
                self._store.call(self._mailbox.put_snapshot, content)
            else:
                self._store.call(self._mailbox.put_change, content)

    def _repair(self, event: _Event) -> None:
        """What was told hasn't come: the connection is broken."""
        if event in self._sent:
            self.begin(self._store.objects)


class _Event:
    """Something on its way."""

    __slots__ = ("content", "is_there")

    def __init__(self, content: Put | Gone | list[Item]) -> None:
        self.content = content
        self.is_there = False
