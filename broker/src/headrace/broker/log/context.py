"""What all logs of one broker share: the disk, threads, descriptors, indexes, and who is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.broker.log.files import FileCache
from headrace.broker.log.index import IndexCache
from headrace.broker.log.producers import EXPIRY_MS, PRODUCERS_MAX

if TYPE_CHECKING:
    from headrace.broker.log.log import Log


class LogEvents(Protocol):
    """What a log tells; called on the loop's thread, must not block. The Flusher is one."""

    def became_dirty(self, log: Log) -> None:
        """The first byte was appended that is not synced."""

    def wants_sync(self, log: Log) -> None:
        """A segment was closed: it should be synced, whatever the flush policy."""

    def failed(self, log: Log) -> None:
        """The log went offline; `log.failure` says why."""


class NoEvents:
    """Nobody listens: for logs that are used without a flusher (recovery, tests)."""

    def became_dirty(self, log: Log) -> None:
        """Ignored."""

    def wants_sync(self, log: Log) -> None:
        """Ignored."""

    def failed(self, log: Log) -> None:
        """Ignored."""


@dataclass(slots=True)
class LogContext:
    """One a broker. `files` brings the disk and the threads."""

    files: FileCache
    indexes: IndexCache = field(default_factory=IndexCache)
    events: LogEvents = field(default_factory=NoEvents)
    producers_max: int = PRODUCERS_MAX
    """Producers remembered in one partition."""
    producer_expiry_ms: int = EXPIRY_MS
    """Silence after which a producer is forgotten."""
    snapshot_bytes: int = 64 << 20
    """Log bytes between two snapshots of producer state: bounds what a load must walk."""
