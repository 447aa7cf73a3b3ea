"""Notes of truncations since the last checkpoint, so that recovery doesn't take them for damage.

A checkpoint says "everything below the recovery point was synced", and recovery calls it damage
when less is there. A truncation makes less be there on purpose, so it is noted in the log's
directory, synced, before it cuts. Notes carry a number that the checkpoint carries too: those that
the checkpoint already knows of don't count.
"""

from __future__ import annotations

import os

import msgspec

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.files import Disk
from headrace.broker.log.journal import Journal

TRUNCATIONS_FILE = "truncations"
NOTES_KEPT = 64
"""Notes in the file before it is written anew with the last ones; a checkpoint is never that many
truncations old."""


class Truncation(msgspec.Struct, frozen=True, array_like=True):
    """One truncation. `start_offset` is set when the whole log went and starts there."""

    number: int
    recovery_point: int
    start_offset: int | None = None


def note(disk: Disk, directory: str, truncation: Truncation) -> None:
    """Adds a note, synced. Crash after: the truncation may not have happened; recovery looks at
    more of the log than it needs to. Raises OSError."""
    journal = Journal(disk, os.path.join(directory, TRUNCATIONS_FILE), Truncation)
    if truncation.number % NOTES_KEPT == 0:
        journal.rewrite([*journal.load()[-NOTES_KEPT:], truncation], sync=True)
        return
    journal.append([truncation], sync=True)
    disk.sync_directory(directory)


def applied(disk: Disk, directory: str, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the truncations that came after it taken in."""
    journal = Journal(disk, os.path.join(directory, TRUNCATIONS_FILE), Truncation)
    start, point, number = (
        checkpoint.start_offset,
        checkpoint.recovery_point,
        checkpoint.truncations,
    )
    for truncation in journal.load():
        if truncation.number > number:
            number = truncation.number
            point = min(point, truncation.recovery_point)
            if truncation.start_offset is not None:
                start = point = truncation.start_offset
    return msgspec.structs.replace(
        checkpoint, start_offset=start, recovery_point=point, truncations=number
    )
