"""Which segments of a log may go: segments, policy and the time in, a count out.

Age is the append time of a segment's last batch, never a record's timestamp: a client's clock can
neither keep data for ever nor kill it. Size is exact to a segment: the oldest goes only while what
is left still has the size the user asked to keep (Kafka's meaning of retention.bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNBOUNDED = -1
"""As `retention_ms` or `retention_bytes`: this bound is off."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as retention sees it; offsets ascending, `end_offset` exclusive."""

    end_offset: int
    size_bytes: int
    last_append_ms: int | None
    """None: not looked up, so it counts as young."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """A topic's bounds."""

    retention_ms: int = UNBOUNDED
    retention_bytes: int = UNBOUNDED


def is_expired(last_append_ms: int | None, policy: RetentionPolicy, *, now_ms: int) -> bool:
    """Whether data appended last at `last_append_ms` is too old to keep."""
    if last_append_ms is None or policy.retention_ms == UNBOUNDED:
        return False
    return now_ms - last_append_ms > policy.retention_ms


def deletable(
    closed: Sequence[SegmentInfo],
    policy: RetentionPolicy,
    *,
    size_bytes: int,
    now_ms: int,
    high_watermark: int,
) -> int:
    """How many of the `closed` segments (oldest first, without the active one) may go.

    `size_bytes` is the size of the whole log. A segment that reaches above the high watermark
    stays, and so does everything behind it: a log has no holes.
    """
    count = 0
    for segment in closed:
        is_too_old = is_expired(segment.last_append_ms, policy, now_ms=now_ms)
        left = size_bytes - segment.size_bytes
        is_too_much = policy.retention_bytes != UNBOUNDED and left >= policy.retention_bytes
        if segment.end_offset > high_watermark or not (is_too_old or is_too_much):
            break
        size_bytes = left
        count += 1
    return count
