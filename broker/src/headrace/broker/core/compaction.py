"""When a log is cleaned, how far, and which tombstones may go (pure): segments and times in.

A pass covers the log from its start to an offset, the clean offset from then on: below it every
key has one record. Each pass is remembered with its time, so that for a tombstone it is known
since when nothing older of its key is left: that long ago plus delete.retention.ms it may go
itself. Forgetting passes only keeps tombstones longer.

A topic with record.ttl.ms and without compaction is cleaned too: each segment once, when all of it
was appended longer ago than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headrace.broker.core.batch_cleaning import NEVER_MS

PASSES_KEPT = 32
"""Passes remembered; beyond that neighbours become one, with the later time."""

NO_OFFSET = -1
"""No tombstone is left."""


class CleaningPolicy(msgspec.Struct, frozen=True):
    """What a topic says about cleaning its logs."""

    compact: bool = False
    """Whether older records of a key go (cleanup.policy has `compact`)."""
    delete_retention_ms: int = 86_400_000
    min_lag_ms: int = 0
    max_lag_ms: int = (1 << 63) - 1
    min_dirty_ratio: float = 0.5
    record_ttl_ms: int = -1
    """Age of a record's timestamp at which it goes; -1: never."""

    @property
    def cleans(self) -> bool:
        """Whether there is anything to clean."""
        return self.compact or self.record_ttl_ms >= 0

    def expired_before_ms(self, now_ms: int) -> int:
        """Records with an earlier timestamp are expired."""
        return NEVER_MS if self.record_ttl_ms < 0 else now_ms - self.record_ttl_ms


class Pass(NamedTuple):
    """One finished pass."""

    end_offset: int
    time_ms: int


class Cleaned(msgspec.Struct, frozen=True, array_like=True):
    """What passes have done to one log; kept in its directory. New fields go at the end."""

    compacted: bool = False
    """Whether keys were looked at: passes for expiry alone say nothing to compaction."""
    passes: tuple[Pass, ...] = ()
    """Offsets and times grow."""
    first_tombstone: int = NO_OFFSET
    """Base offset of the first batch with a tombstone below the clean offset."""

    @property
    def clean_offset(self) -> int:
        """Everything below was cleaned."""
        return self.passes[-1].end_offset if self.passes else 0

    def for_policy(self, policy: CleaningPolicy) -> Cleaned:
        """Itself, or nothing when the passes were of the other kind."""
        return self if self.compacted == policy.compact else Cleaned(policy.compact)

    def cut(self, end_offset: int) -> Cleaned:
        """After the log lost everything from `end_offset` on."""
        passes = tuple(each for each in self.passes if each.end_offset <= end_offset)
        return msgspec.structs.replace(self, passes=passes)

    def tombstones_below(self, policy: CleaningPolicy, now_ms: int) -> int:
        """Tombstones below this offset have been alone for delete.retention.ms."""
        old = [
            each.end_offset
            for each in self.passes
            if now_ms - each.time_ms >= policy.delete_retention_ms
        ]
        return old[-1] if policy.compact and old else 0

    def after(self, end_offset: int, *, now_ms: int, first_tombstone: int) -> Cleaned:
        """With one more pass. Passes that no tombstone lies below are not needed any more."""
        passes = list(self.passes)
        if end_offset > self.clean_offset:
            passes.append(Pass(end_offset, now_ms))
        elif first_tombstone == NO_OFFSET and end_offset < self.clean_offset:
            first_tombstone = end_offset
        oldest = first_tombstone if first_tombstone != NO_OFFSET else end_offset
        passes = [each for each in passes[:-1] if each.end_offset > oldest] + passes[-1:]
        while len(passes) > PASSES_KEPT:
            passes[0:2] = [Pass(passes[1].end_offset, passes[1].time_ms)]
        return Cleaned(self.compacted, tuple(passes), first_tombstone)


class SegmentFacts(NamedTuple):
    """A closed segment as cleaning sees it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    last_append_ms: int


class Dirt(NamedTuple):
    """How much there is to clean, and whether it is time."""

    segments: int
    """How many of the closed segments, from the first on, a pass may cover."""
    dirty_bytes: int
    ratio: float
    """Of the bytes that a pass reads, those never cleaned."""
    is_due: bool


NOTHING = Dirt(0, 0, 0.0, False)


def dirt_of(
    closed: Sequence[SegmentFacts],
    cleaned: Cleaned,
    policy: CleaningPolicy,
    *,
    limit_offset: int,
    first_dirty_ms: int | None,
    now_ms: int,
) -> Dirt:
    """What is to be cleaned in a log whose closed segments are these.

    `limit_offset`: nothing at or above it may be touched (high watermark, what is on the disk).
    `first_dirty_ms`: append time of the first batch never cleaned, None when there is none.
    """
    cleaned = cleaned.for_policy(policy)
    within = _cleanable(closed, policy, limit_offset=limit_offset, now_ms=now_ms)
    clean_offset = cleaned.clean_offset
    dirty = sum(_bytes_from(each, clean_offset) for each in within)
    total = sum(each.size_bytes for each in within)
    share = dirty / total if dirty and policy.compact else float(bool(dirty))
    is_late = first_dirty_ms is not None and now_ms - first_dirty_ms >= policy.max_lag_ms
    is_due = bool(dirty) and (not policy.compact or share >= policy.min_dirty_ratio or is_late)
    reach = within[-1].end_offset if within else 0
    if cleaned.first_tombstone < reach:
        is_due = is_due or _is_tombstone_due(cleaned, policy, now_ms)
    return Dirt(len(within), dirty, share, is_due)


def _cleanable(
    closed: Sequence[SegmentFacts], policy: CleaningPolicy, *, limit_offset: int, now_ms: int
) -> list[SegmentFacts]:
    """The segments before the first that is too young or reaches beyond the limit."""
    lag_ms = policy.min_lag_ms if policy.compact else policy.record_ttl_ms + 1
    found = []
    for each in closed:
        if each.end_offset > limit_offset or now_ms - each.last_append_ms < lag_ms:
            break
        found.append(each)
    return found


def _bytes_from(segment: SegmentFacts, offset: int) -> int:
    """About how many of the segment's bytes lie at or above `offset`."""
    if offset <= segment.base_offset:
        return segment.size_bytes
    if offset >= segment.end_offset:
        return 0
    share = (segment.end_offset - offset) / (segment.end_offset - segment.base_offset)
    return max(1, int(segment.size_bytes * share))


def _is_tombstone_due(cleaned: Cleaned, policy: CleaningPolicy, now_ms: int) -> bool:
    first = cleaned.first_tombstone
    return first != NO_OFFSET and first < cleaned.tombstones_below(policy, now_ms)
