"""Who of the members was heard when: what the coordinator knows and no log holds.

Times are the coordinator's own monotonic seconds. A new coordinator gives every member its whole
session again (G4), and every step its whole time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

DEPARTED_MAX = 10_000
"""Members that left and are remembered, so that a request of theirs that arrives late doesn't make
them members again."""

CLAIM_S = 5.0
"""A static member that was refused is taken to be waiting still for so long."""

Key = tuple[str, str]
"""Group and member id."""


class Presence:
    """One `__offsets` partition's members."""

    def __init__(self) -> None:
        self.heard: dict[Key, float] = {}
        """When each member was heard last."""
        self.told: dict[Key, tuple[int, float]] = {}
        """The step that a member hasn't confirmed yet, and since when."""
        self._evicted: set[Key] = set()
        self._claims: dict[Key, float] = {}
        self._departed: OrderedDict[Key, None] = OrderedDict()
        self._parked: dict[Key, asyncio.Future[bool]] = {}

    # --- waiting ----------------------------------------------------------------------------------

    async def park(self, key: Key, seconds: float) -> bool:
        """Waits until `wake`; False when the time is over, or a newer request came."""
        self.dismiss(key)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._parked[key] = future
        timer = loop.call_later(seconds, _answer, future, False)
        try:
            return await future
        finally:
            timer.cancel()
            if self._parked.get(key) is future:
                del self._parked[key]

    def dismiss(self, key: Key) -> None:
        """Ends the wait of the member's earlier request."""
        before = self._parked.pop(key, None)
        if before is not None:
            _answer(before, False)

    def wake(self, key: Key) -> None:
        """There is something to tell the member."""
        future = self._parked.get(key)
        if future is not None:
            _answer(future, True)

    def wake_all(self) -> None:
        """Lets everybody look again."""
        for future in list(self._parked.values()):
            _answer(future, True)

    def is_parked(self, key: Key) -> bool:
        """Whether a request of the member waits here."""
        return key in self._parked

    # --- coming and going -------------------------------------------------------------------------

    def forget(self, key: Key) -> None:
        """The member is gone."""
        self.heard.pop(key, None)
        self.told.pop(key, None)
        self._evicted.discard(key)
        self._departed[key] = None
        if len(self._departed) > DEPARTED_MAX:
            self._departed.popitem(last=False)
        self.wake(key)

    def evict(self, key: Key) -> None:
        """The member is to go: it is told so and not that all is well any more. It owns what it
        owns until its session is over, since it may not hear of it (G4)."""
        self._evicted.add(key)
        self.wake(key)

    def is_evicted(self, key: Key) -> bool:
        """Whether the member is to go."""
        return key in self._evicted

    def has_departed(self, key: Key) -> bool:
        """Whether the member was here and is gone."""
        return key in self._departed

    def claim(self, group: str, instance_id: str, now: float) -> None:
        """Somebody waits for the place of a static member."""
        self._claims[group, instance_id] = now

    def is_claimed(self, group: str, instance_id: str | None, now: float) -> bool:
        """Whether somebody waits for the place of a static member now."""
        at = None if instance_id is None else self._claims.get((group, instance_id))
        return at is not None and now - at < CLAIM_S

    def drop_claims(self, now: float) -> None:
        """Forgets who waits no longer."""
        self._claims = {key: at for key, at in self._claims.items() if now - at < CLAIM_S}

    def silent(self, now: float) -> Iterator[tuple[Key, float]]:
        """Each member with the seconds since it was heard."""
        for key, at in self.heard.items():
            yield key, now - at


def _answer(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
