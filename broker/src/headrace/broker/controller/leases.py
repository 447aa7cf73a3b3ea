"""What stands in leases: a broker's sign of life, and the lock of the controller.

Only that the content moves counts for others (core.liveness); what it says serves its own holder,
who reads in it that somebody newer has come.
"""

from __future__ import annotations

import msgspec

from headrace.broker.core import liveness
from headrace.broker.core.liveness import LeaseSight


class Lease(msgspec.Struct, frozen=True):
    """`beat` moves with each renewal. `released`: the holder left in good order. `term` is the
    controller's (0 in a broker's lease), `disk_beat` the last one on a broker's volume (H27)."""

    broker_id: int
    session: int
    beat: int
    released: bool = False
    term: int = 0
    disk_beat: int = 0

    def encode(self) -> bytes:
        """The lease's bytes."""
        return msgspec.json.encode(self)


def decode(raw: bytes) -> Lease | None:
    """The lease, or None if it can't be read: then only its standing still counts."""
    try:
        return msgspec.json.decode(raw, type=Lease)
    except msgspec.MsgspecError:
        return None


class LeaseWatch:
    """The sights of many leases, by key."""

    def __init__(self) -> None:
        self._sights: dict[str, LeaseSight] = {}

    def saw(self, key: str, content: bytes, *, now_s: float) -> LeaseSight:
        """Notes one successful read (b"" for a lease that isn't there)."""
        sight = liveness.after_read(self._sights.get(key), content, now_s=now_s)
        self._sights[key] = sight
        return sight

    def sight(self, key: str) -> LeaseSight | None:
        """What was seen of a lease."""
        return self._sights.get(key)

    def released(self, key: str, session: int) -> bool:
        """Whether the holder of that session said that it left."""
        sight = self._sights.get(key)
        lease = decode(sight.content) if sight else None
        return lease is not None and lease.released and lease.session >= session

    def stood_still(self, key: str, *, for_s: float = liveness.DEAD_AFTER_S) -> bool:
        """Whether the lease stood still for so long; False for one never seen."""
        sight = self._sights.get(key)
        return sight is not None and sight.stood_still(for_s=for_s)
