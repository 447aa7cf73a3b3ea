"""A store in memory, for simulation and tests: deterministic, with faults on demand.

`MemoryCluster` is the state that several brokers share; each broker has its own `MemoryStore`, so
that one of them can be slow or cut off while the others aren't. Faults are decided call by call by
a function (`fate`), or switched on (`outage`). Not for production: nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.broker.store.base import (
    Applied,
    Change,
    Gone,
    Item,
    Outcome,
    Outcomes,
    Put,
    Refused,
    Unknown,
    WatchEvent,
)
from headrace.broker.store.watcher import Mailbox
from headrace.protocol.errors import StoreUnavailable

Verb = Literal["get", "list", "cas"]
Ending = Literal["ok", "unavailable", "lost_before", "lost_after", "late"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call about to be made: the `number`th of this store client (from 0)."""

    number: int
    verb: Verb
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a call. `delay_s` passes before it reaches the store. Endings: `unavailable`
    never reaches it; `lost_before` and `lost_after` look the same to the caller of a `cas`
    (`Unknown`), but only the second was applied; `late` is `Unknown` at once and applied `late_s`
    later, if the revision is still the expected one. A read that is lost is unavailable."""

    ending: Ending = "ok"
    delay_s: float = 0.0
    late_s: float = 0.0


OK = Fate()


@dataclass(slots=True)
class MemoryCluster:
    """What all stores of one simulated cluster share."""

    objects: dict[str, Item] = field(default_factory=dict)
    counter: int = 0
    stores: list[MemoryStore] = field(default_factory=list)

    def listed(self, prefix: str) -> list[Item]:
        """All objects under a prefix, by key."""
        return [self.objects[key] for key in sorted(self.objects) if key.startswith(prefix)]

    def apply(self, change: Change) -> Outcome:
        """One compare-and-swap, now."""
        present = self.objects.get(change.key)
        if (present.revision if present else None) != change.expected:
            return Refused()
        if change.value is None:
            return self._remove(change.key, present)
        self.counter += 1
        item = Item(change.key, change.value, str(self.counter))
        self.objects[change.key] = item
        self._tell(Put(item))
        return Applied(item.revision)

    def _remove(self, key: str, present: Item | None) -> Outcome:
        if present is not None:
            self.counter += 1
            del self.objects[key]
            self._tell(Gone(key))
        return Applied("")

    def _tell(self, event: Put | Gone) -> None:
        for store in self.stores:
            store.tell(event)


class MemoryStore:
    """One broker's way to a `MemoryCluster`; see `base.Store` for the verbs.

    `outage`: every call raises `StoreUnavailable` and watches hear nothing; when it ends they get
    a new `Snapshot`.
    """

    def __init__(
        self,
        cluster: MemoryCluster | None = None,
        *,
        fate: Callable[[Call], Fate] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.cluster = cluster or MemoryCluster()
        self.cluster.stores.append(self)
        self.fate = fate or (lambda _call: OK)
        self.calls = 0
        self._sleep = sleep
        self._outage = False
        self._mailboxes: set[Mailbox] = set()

    @property
    def outage(self) -> bool:
        """Whether this client is cut off from the store."""
        return self._outage

    @outage.setter
    def outage(self, value: bool) -> None:
        ended = self._outage and not value
        self._outage = value
        if ended:
            self.drop_watches()

    async def get(self, key: str) -> Item | None:
        """See `base.Store.get`."""
        await self._read("get", (key,))
        return self.cluster.objects.get(key)

    async def list(self, prefix: str) -> list[Item]:
        """See `base.Store.list`."""
        await self._read("list", (prefix,))
        return self.cluster.listed(prefix)

    async def cas(self, change: Change) -> Outcome:
        """See `base.Store.cas`."""
        return (await self.cas_many([change]))[0]

    async def cas_many(self, changes: Sequence[Change]) -> Outcomes:
        """See `base.Store.cas_many`; one fate for all of them."""
        fate = await self._arrive("cas", tuple(change.key for change in changes))
        if fate.ending == "ok":
            return [self.cluster.apply(change) for change in changes]
        if fate.ending == "lost_after":
            self._apply_all(changes)
        if fate.ending == "late":
            asyncio.get_running_loop().call_later(fate.late_s, self._apply_all, changes)
        return [Unknown("the answer was lost") for _ in changes]

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        """See `base.Store.watch`."""
        mailbox = Mailbox(prefix)
        self._mailboxes.add(mailbox)
        try:
            if not self._outage:
                mailbox.put_snapshot(self.cluster.listed(prefix))
            async for event in mailbox.events():
                yield event
        finally:
            self._mailboxes.discard(mailbox)

    def drop_watches(self) -> None:
        """As after a broken connection: what waits is lost, and every watch begins anew."""
        for mailbox in self._mailboxes:
            mailbox.put_snapshot(self.cluster.listed(mailbox.prefix))

    async def close(self) -> None:
        """See `base.Store.close`."""
        for mailbox in self._mailboxes:
            mailbox.close()
        if self in self.cluster.stores:
            self.cluster.stores.remove(self)

    def tell(self, event: Put | Gone) -> None:
        """Hands an event of the cluster to the watches, unless cut off."""
        if not self._outage:
            for mailbox in self._mailboxes:
                mailbox.put_change(event)

    def _apply_all(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.cluster.apply(change)

    async def _read(self, verb: Verb, keys: tuple[str, ...]) -> None:
        if (await self._arrive(verb, keys)).ending != "ok":
            raise StoreUnavailable("the store's answer was lost (simulated)")

    async def _arrive(self, verb: Verb, keys: tuple[str, ...]) -> Fate:
        fate = self.fate(Call(self.calls, verb, keys))
        self.calls += 1
        await self._sleep(fate.delay_s)
        if self._outage or fate.ending == "unavailable":
            raise StoreUnavailable("the store doesn't answer (simulated)")
        return fate
