"""Read, compute, compare-and-swap, again: the only way in which coordination writes.

An unknown outcome (replication.md R7) needs no special case here, because what is written is
always computed from what was just read: either the lost write was applied, and the next read shows
it, or it wasn't and is made again from the same revision, so that at most one of them can apply.
(The one who may not simply go on is a partition's leader; that is the partition's own matter.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ClusterView
from headrace.broker.store.base import Applied, Change, Gone, Item, Put, Store
from headrace.protocol.errors import Conflict, StoreUnavailable

ATTEMPTS_MAX = 12
"""Tries of one update before the caller is told to come back."""

BACKOFF_S = 0.01
"""Pause after the first failed try; it doubles up to `BACKOFF_MAX_S`."""

BACKOFF_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class Write:
    """What an object should hold; None removes it."""

    value: bytes | None


BATCH_MAX = 500
"""Writes in one call of the store: bounds how long one transaction keeps others waiting."""

Compute = Callable[[Item | None], Write | None]
"""From the object as read to what it should become; None: it is right as it is."""


class StoreWriter:
    """Updates objects and shows the view what was read and written."""

    def __init__(self, store: Store, view: ClusterView, clock: TimeSource) -> None:
        self.store = store
        self._view = view
        self._clock = clock

    async def read(self, key: str) -> Item | None:
        """An object, fresh from the store."""
        item = await self.store.get(key)
        self._view.apply([Gone(key) if item is None else Put(item)])
        return item

    def shows(self, key: str) -> bool:
        """Whether the object was there when it was last looked at, and nothing was wrong with it;
        asks nobody."""
        return self._view.item(key) is not None and key not in self._view.faults

    async def update(self, key: str, compute: Compute) -> Item | None:
        """Makes an object what `compute` says of it and returns it as it is then.

        Raises:
            Conflict: others kept changing it. StoreUnavailable: no answer; what `compute` raises.
        """
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._clock.sleep(min(BACKOFF_S * 2**attempt, BACKOFF_MAX_S))
            item = await self.read(key)
            write = compute(item)
            if write is None:
                return item
            outcome = await self.store.cas(
                Change(key, write.value, item.revision if item else None)
            )
            if isinstance(outcome, Applied):
                return self._show(key, write.value, outcome)
            reason = getattr(outcome, "reason", "")
        if reason:
            raise StoreUnavailable(f"the store didn't confirm the change of {key}: {reason}")
        raise Conflict(f"others keep changing {key}: try again")

    async def update_many(self, writes: Mapping[str, tuple[str | None, bytes | None]]) -> bool:
        """Writes many objects from the revisions given (None: not there yet), one try each;
        whether all succeeded. What didn't is read again, so that the next try starts from it."""
        wanted = [Change(key, value, revision) for key, (revision, value) in writes.items()]
        done = True
        for first in range(0, len(wanted), BATCH_MAX):
            part = wanted[first : first + BATCH_MAX]
            for change, outcome in zip(part, await self.store.cas_many(part), strict=True):
                if isinstance(outcome, Applied):
                    self._show(change.key, change.value, outcome)
                else:
                    done = False
                    await self.read(change.key)
        return done

    def _show(self, key: str, value: bytes | None, outcome: Applied) -> Item | None:
        if value is None:
            self._view.apply([Gone(key)])
            return None
        item = Item(key, value, outcome.revision)
        self._view.apply([Put(item)])
        return item
