"""Whether a follower's log is a part of its leader's, and where to cut it if not (pure).

replication.md R14 and R15, after Kafka's KIP-101 and KIP-595: the leader compares on every fetch,
by the epoch of the follower's last batch; the follower cuts to the smaller of both logs' ends of
that epoch and asks again, until they agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

NO_EPOCH = -1
"""Last epoch of a log without batches, and the answer where no epoch is early enough."""

EpochEnd = Callable[[int], tuple[int, int]]
"""`(greatest epoch <= the one given, where it ends)`; `(-1, the log's start)` if there is none."""


@dataclass(frozen=True, slots=True)
class Valid:
    """The follower's log is a prefix of the leader's."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """What follows the follower's end is gone at the leader: it starts over at the leader's
    start."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The logs part: the leader's greatest epoch up to the follower's last ends at
    `end_offset`."""

    epoch: int
    end_offset: int


def validate(
    offset: int, last_epoch: int, *, start_offset: int, end_offset: int, epoch_end: EpochEnd
) -> Valid | TooOld | Diverging:
    """The leader's judgement on a log that ends at `offset` with a batch of `last_epoch`; the other
    arguments are its own log's."""
    if offset < start_offset:
        return TooOld()
    if last_epoch == NO_EPOCH:
        # An empty log can't contradict; it may only begin behind this one's end.
        return Valid() if offset <= end_offset else Diverging(NO_EPOCH, end_offset)
    epoch, end = epoch_end(last_epoch)
    if epoch == NO_EPOCH and offset == start_offset:
        # The follower's batches all lie before this log's first one: nothing to compare with, and
        # it gives them up with the log start that it is told.
        return Valid()
    if epoch != last_epoch or end < offset:
        return Diverging(epoch, end)
    return Valid()


def cut_at(diverging: Diverging, *, end_offset: int, epoch_end: EpochEnd) -> int:
    """Where the follower cuts its log, which ends at `end_offset` (R15)."""
    _epoch, own_end = epoch_end(diverging.epoch)
    return min(own_end, diverging.end_offset, end_offset)
