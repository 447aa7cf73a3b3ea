"""The store as one process reaches it: each call travels there and back, or not.

The cluster of objects is `store.memory.MemoryCluster`; a compare-and-swap is applied when it
arrives, whether its sender still waits, has given up, or is dead. Watches may be late, break off and
begin anew, also with an older state than they ended with (H9).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

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
from headrace.broker.store.memory import MemoryCluster
from headrace.broker.store.watcher import Mailbox
from headrace.protocol.errors import StoreUnavailable
from testkit.simulation.loop import Process
from testkit.simulation.wire import CAS, NEWS, READ, TOLD, Message, Wire

T = TypeVar("T")

STORE = "store"

TIMEOUT_S = 3.0
"""A call without an answer for so long has an unknown outcome."""


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


class SimStore:
    """`base.Store` for one process."""

    def __init__(self, cluster: SimCluster, process: Process, wire: Wire) -> None:
        self._cluster = cluster
        self._process = process
        self._wire = wire
        self._name = process.name
        self._watches: dict[int, Mailbox] = {}
        self._next = 0
        self.is_out = False
        """Whether every call fails at once and watches hear nothing."""
        cluster.stores.append(self)  # type: ignore[arg-type]

    async def get(self, key: str) -> Item | None:
        return await self._read(key, lambda: self._cluster.objects.get(key))

    async def list(self, prefix: str) -> list[Item]:
        return await self._read(prefix + "*", lambda: self._cluster.listed(prefix))

    async def cas(self, change: Change) -> Outcome:
        return (await self.cas_many([change]))[0]

    async def cas_many(self, changes: Sequence[Change]) -> Outcomes:
        what = " ".join(change.key for change in changes)
        if self.is_out:
            await asyncio.sleep(0.01)
            raise StoreUnavailable("the store doesn't answer (simulated)")
        try:
            return await self._call(
                CAS, what, lambda: [self._cluster.write(each, self._name) for each in changes]
            )
        except StoreUnavailable as error:
            return [Unknown(error.message) for _ in changes]

    async def _read(self, what: str, job: Callable[[], T]) -> T:
        if self.is_out:
            await asyncio.sleep(0.01)
            raise StoreUnavailable("the store doesn't answer (simulated)")
        return await self._call(READ, what, job)

    async def _call(self, kind: str, what: str, job: Callable[[], T]) -> T:
        loop = self._process.loop
        future: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            result = job()
            self._wire.send(
                Message(TOLD, STORE, self._name, what, lambda: future.done() or answer(result))
            )

        def answer(result: T) -> None:
            future.set_result(result)

        def give_up() -> None:
            if not future.done():
                future.set_exception(StoreUnavailable(f"no answer about {what} (simulated)"))

        self._wire.send(Message(kind, self._name, STORE, what, arrive))
        timer = loop.call_later(TIMEOUT_S, give_up)
        try:
            return await future
        finally:
            timer.cancel()

    # --- watches ----------------------------------------------------------------------------------

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        self._next += 1
        number = self._next
        mailbox = self._watches[number] = Mailbox(prefix)
        try:
            self._tell_all(mailbox, self._cluster.objects)
            async for event in mailbox.events():
                yield event
        finally:
            self._watches.pop(number, None)

    def tell(self, event: Put | Gone) -> None:
        """From the cluster: something changed."""
        key = event.item.key if isinstance(event, Put) else event.key
        if self.is_out or not self._process.is_alive or key.startswith("leases/"):
            return

        def arrive() -> None:
            if self._process.is_alive:
                for mailbox in self._watches.values():
                    self._process.call(mailbox.put_change, event)

        self._wire.send(Message(NEWS, STORE, self._name, key, arrive))

    def drop_watches(self, *, back: int = 0) -> None:
        """The connection broke: what was on its way may come or not, then all is told anew, as it
        was `back` writes ago."""
        past = self._cluster.past
        objects = past[-back] if 0 < back <= len(past) else self._cluster.objects
        for mailbox in self._watches.values():
            self._tell_all(mailbox, objects)

    def _tell_all(self, mailbox: Mailbox, objects: dict[str, Item]) -> None:
        items = [objects[key] for key in sorted(objects)]

        def arrive() -> None:
            if self._process.is_alive:
                self._process.call(mailbox.put_snapshot, [i for i in items if i.key.startswith(mailbox.prefix)])

        self._wire.send(Message(NEWS, STORE, self._name, "all", arrive))

    async def close(self) -> None:
        for mailbox in self._watches.values():
            mailbox.close()
        self.forget()

    def forget(self) -> None:
        """The process is gone."""
        if self in self._cluster.stores:
            self._cluster.stores.remove(self)  # type: ignore[arg-type]
