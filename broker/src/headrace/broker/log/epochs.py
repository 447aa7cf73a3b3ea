"""The epoch cache: at which offset each leader epoch of a log begins (Kafka's KIP-101).

One small file a partition, appended before the first batch of an epoch, synced with the log, so
that what lies before the recovery point is always in it; the rest can be told from batch headers.
"""

from __future__ import annotations

import os
from bisect import bisect_right

from headrace.broker.log.files import Disk
from headrace.broker.log.journal import Journal

EPOCHS_FILE = "epochs"
NO_EPOCH = -1


class EpochCache:
    """Invariant: epochs and start offsets grow (starts not strictly: an epoch may stay empty)."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._journal: Journal[tuple[int, int]] = Journal(
            disk, os.path.join(directory, EPOCHS_FILE), tuple[int, int]
        )
        self._entries: list[tuple[int, int]] | None = None
        self.is_dirty = False
        """Whether entries wait for a sync."""

    @property
    def path(self) -> str:
        """The file, for syncing."""
        return self._journal.path

    def entries(self) -> list[tuple[int, int]]:
        """`(epoch, start offset)` ascending; reads the small file at first use."""
        if self._entries is None:
            kept: list[tuple[int, int]] = []
            for epoch, start in self._journal.load():
                if not kept or (epoch > kept[-1][0] and start >= kept[-1][1]):
                    kept.append((epoch, start))
            self._entries = kept
        return self._entries

    def begin(self, epoch: int, start_offset: int) -> None:
        """Notes that batches of `epoch` follow from `start_offset` on.

        Crash after: process - an epoch without batches, which changes no answer. Machine - it may
        be missing together with its batches; recovery takes it from the headers that are left.
        """
        self._journal.append([(epoch, start_offset)], sync=False)
        self.is_dirty = True
        if self._entries is not None:
            self._entries.append((epoch, start_offset))

    def end_offset(self, epoch: int, *, start_offset: int, end_offset: int) -> tuple[int, int]:
        """`(greatest epoch <= epoch, where it ends)`; `(-1, start_offset)` when there is none."""
        entries = self.entries()
        place = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if place == 0:
            return NO_EPOCH, start_offset
        end = entries[place][1] if place < len(entries) else end_offset
        return entries[place - 1][0], max(end, start_offset)

    def epoch_at(self, offset: int) -> int:
        """The epoch of the batch at `offset`, -1 when the cache doesn't reach back to it."""
        entries = self.entries()
        place = bisect_right(entries, offset, key=lambda entry: entry[1])
        return entries[place - 1][0] if place else NO_EPOCH

    def truncate(self, end_offset: int) -> None:
        """Forgets the epochs that begin at or after `end_offset`. Crash after or within: the old
        entries may be back; they lie behind the log's end and recovery drops them."""
        kept = [entry for entry in self.entries() if entry[1] < end_offset]
        if len(kept) != len(self.entries()):
            self.replace(kept)

    def forget(self, end_offset: int) -> None:
        """As `truncate`, in memory only: after an append that failed. An epoch without batches that
        stays in the file changes no answer."""
        self._entries = [entry for entry in self.entries() if entry[1] < end_offset]

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Writes the file anew (synced: it may not be worse than before)."""
        self._journal.rewrite(entries, sync=True)
        self._entries = list(entries)
        self.is_dirty = False
