"""Settings of one log, as the topic's configuration gives them; replaced whole when they change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.broker.core.compaction import CleaningPolicy

SEGMENT_BYTES_MAX = (1 << 31) - 1
"""Largest `segment.bytes`, as in Kafka; one more batch may lie behind it."""


class FlushPolicy(StrEnum):
    """When appended bytes are forced to the disk."""

    NONE = "none"
    """When a segment is rolled and at shutdown; the kernel decides otherwise."""
    INTERVAL = "interval"
    """`flush_ms` after the first byte that is not on the disk yet."""
    BATCH = "batch"
    """Before an append is acknowledged; producers that wait at once share one fdatasync."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What a topic says about each of its logs. -1 means: no bound."""

    segment_bytes: int = 1 << 30
    """A segment is closed before it would grow past this; a larger batch gets one of its own."""
    segment_ms: int = 604_800_000
    """A segment is closed when its first batch is this old, so that retention can reach it."""
    index_interval_bytes: int = 4096
    """Log bytes between two index entries."""
    flush: FlushPolicy = FlushPolicy.INTERVAL
    flush_ms: int = 1000
    """Only with `interval`: how long a byte may stay in memory alone."""
    retention_ms: int = 604_800_000
    """Age (append time of a segment's last batch) at which a segment goes; -1: never."""
    retention_bytes: int = -1
    """Size of the log above which its oldest segments go; -1: unbounded."""
    delete: bool = True
    """Whether retention deletes at all (cleanup.policy contains `delete`)."""
    cleaning: CleaningPolicy = CleaningPolicy()
    """Compaction and expiry of records."""
