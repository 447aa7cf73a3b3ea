"""Whether the holder of a lease is dead, judged by how long its content stood still (pure).

A lease's content says nothing about time (clocks of machines are never compared). Only the
observer's own monotonic clock counts, and of it only time between successful reads of the store
that returned the same content (replication.md H6): at least three reads, and a gap between two
reads that is longer than twice the period begins the count anew, since then it was the observer
that stood still. A store outage therefore kills nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

RENEW_PERIOD_S = 2.0
"""A live holder renews so often."""

DEAD_AFTER_S = 8.0
"""A lease that stood still so long is a dead holder's: four renewals missed."""

READS_MIN = 3
"""Successful reads of the same content that a verdict needs."""


@dataclass(frozen=True, slots=True)
class LeaseSight:
    """What an observer has seen of one lease: `content` since `since_s`, in `reads` reads, the
    last of them at `last_s`."""

    content: bytes
    since_s: float
    last_s: float
    reads: int = 1

    def stood_still(self, *, for_s: float = DEAD_AFTER_S) -> bool:
        """Whether that is long enough to call the holder dead."""
        return self.reads >= READS_MIN and self.last_s - self.since_s >= for_s


def after_read(
    before: LeaseSight | None,
    content: bytes,
    *,
    now_s: float,
    period_s: float = RENEW_PERIOD_S,
) -> LeaseSight:
    """The sight after one more successful read."""
    fresh = LeaseSight(content, now_s, now_s)
    if before is None or before.content != content or now_s - before.last_s > 2 * period_s:
        return fresh
    return replace(before, last_s=now_s, reads=before.reads + 1)
