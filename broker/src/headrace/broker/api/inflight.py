"""A bound on the bytes of requests and answers in memory at once.

What would go over it is refused with 429 and a Retry-After rather than queued: a queue would only
hide the overload until memory is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.protocol.errors import Throttled

RETRY_AFTER_MS = 200
"""What a refused client is told to wait; about the time that a full buffer takes to drain."""


class Inflight:
    """Counts bytes in use. Invariant: 0 <= used <= limit, but for one request when nothing else is
    in flight (the settings make sure that the largest request fits)."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.refused = 0

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Counts `size_bytes` as in use for the duration.

        Raises:
            Throttled: they don't fit now.
        """
        if self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes:
            self.refused += 1
            raise Throttled(
                f"{self.used_bytes:,} bytes are in flight, {size_bytes:,} more would go over the"
                f" broker's limit of {self.limit_bytes:,}; try again shortly",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self.used_bytes += size_bytes
        try:
            yield
        finally:
            self.used_bytes -= size_bytes
