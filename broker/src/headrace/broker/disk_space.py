"""How much room the data volume has, and whether writes must stop to keep the reserve.

The reserve keeps what a broker needs to go on when producers have filled the disk: deleting,
committing offsets of readers that catch up, checkpoints, and a person's shell.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.log.files import Disk
from headrace.protocol.errors import StorageFull


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """One look at the volume."""

    free_bytes: int
    reserve_bytes: int

    @property
    def is_full(self) -> bool:
        """Whether less than the reserve is free."""
        return self.free_bytes < self.reserve_bytes

    def require_room(self) -> None:
        """Refuses a write while the volume is down to its reserve.

        Raises:
            StorageFull: with what to do.
        """
        if self.is_full:
            raise StorageFull(
                f"{self.free_bytes:,} bytes are free, {self.reserve_bytes:,} are the reserve"
                " (disk.reserve.bytes): writes are refused, reads and deletes go on. Delete"
                " records or topics, lower retention, or enlarge the volume",
                retry_after_ms=5_000,
            )


LOOK_AGAIN_BYTES = 1 << 20
"""Bytes that may be written between two looks, besides the look every second."""


class DiskGuard:
    """Watches the volume for the way in. A look costs a microsecond or two, so it is taken often:
    a fast producer can't eat the reserve between two."""

    def __init__(self, disk: Disk, path: str, *, reserve_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._unseen_bytes = 0
        self.space = self._look()

    def refresh(self) -> None:
        """Looks now."""
        self._unseen_bytes = 0
        self.space = self._look()

    def _look(self) -> DiskSpace:
        return DiskSpace(self._disk.free_bytes(self._path), self._reserve_bytes)

    def require_room(self, size_bytes: int) -> None:
        """Refuses a client's write of so many bytes while the volume is down to its reserve.

        Raises:
            StorageFull: with what to do.
        """
        self._unseen_bytes += size_bytes
        if self.space.is_full or self._unseen_bytes >= LOOK_AGAIN_BYTES:
            self.refresh()
        self.space.require_room()
