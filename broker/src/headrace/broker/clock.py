"""The clock as a port: production reads the machine's, simulation its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that must not be mixed up."""

    def now_ms(self) -> int:
        """Wall time in ms since 1970; may jump. For stamps that people see, never for waiting."""

    def monotonic(self) -> float:
        """Seconds that only grow. For time-outs and rates."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()
