"""The store: the few verbs that coordination needs, and what each outcome promises.

Cluster state is a set of small objects, each a key and bytes, changed only by compare-and-swap.
Backends: `memory` (simulation and tests), `sqlite` (brokers of one machine), `kubernetes` (brokers
in a cluster); one contract suite tests them all. Nothing above this package knows which is in use.

Keys are paths; the first part says what it is:

    cluster                     the cluster object
    brokers/<id>                a broker's registration
    topics/<name>               a topic
    partitions/<name>/<shard>   the records of up to 64 of its partitions
    leases/<name>               a lease: only that its content moves counts (replication.md H6, H13)

A lease is an ordinary object under `leases/`, renewed by compare-and-swap; watches on other
prefixes never see it.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Item:
    """An object as read. `revision` changes with every write; compared for equality only."""

    key: str
    value: bytes
    revision: str


@dataclass(frozen=True, slots=True)
class Change:
    """One compare-and-swap: make `key` hold `value` (None: remove it), if its revision still is
    `expected` (None: if there is no such key)."""

    key: str
    value: bytes | None
    expected: str | None


@dataclass(frozen=True, slots=True)
class Applied:
    """Done. `revision` is the new one ("" after a removal)."""

    revision: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Not done and never will be: the revision was another. Read again and compute again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Perhaps done, perhaps done later. Only a read that shows **another** revision than the one
    expected, or one's own further compare-and-swap from the same revision, settles it
    (replication.md R7)."""

    reason: str


Outcome = Applied | Refused | Unknown
Outcomes = list[Outcome]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All objects under the watched prefix. The first event of every watch, and again whenever
    events may have been missed: what isn't in it isn't there."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """An object was written; writes between two events of one key may be merged into the last."""

    item: Item


@dataclass(frozen=True, slots=True)
class Gone:
    """An object was removed."""

    key: str


WatchEvent = Snapshot | Put | Gone


class Store(Protocol):
    """What every backend does. All methods may raise `StoreUnavailable` (retriable), which for a
    read means "ask again" and never that something is absent."""

    async def get(self, key: str) -> Item | None:
        """The newest version of one object (linearizable), or None if it isn't there."""

    async def list(self, prefix: str) -> list[Item]:
        """All objects whose key starts with `prefix`, by key (linearizable)."""

    async def cas(self, change: Change) -> Outcome:
        """One compare-and-swap. Never raises for a doubtful outcome: that is `Unknown`."""

    async def cas_many(self, changes: Sequence[Change]) -> builtins.list[Outcome]:
        """Independent compare-and-swaps, an outcome for each: some may be refused and the others
        done. Not atomic over the whole."""

    def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        """A `Snapshot`, then changes as they come, without end; reconnects by itself. Close the
        iterator to stop. Level-triggered: each key's last event is its newest state."""

    async def close(self) -> None:
        """Ends all watches and releases what is held."""
