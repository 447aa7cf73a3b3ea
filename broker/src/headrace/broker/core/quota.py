"""Byte rates: how long somebody who took too much must wait (pure).

A token bucket that may go into debt: a request is always carried out whole and paid for after, so
that a batch larger than a second's allowance passes at all; the debt is the delay that the answer
asks for (Kafka's quotas work the same way, KIP-13 and KIP-219). Whoever waits as told is never
refused; whoever doesn't meets `Throttled` until the debt is paid.
"""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = -1

BURST_S = 0.25
"""Unused allowance that is kept, in seconds of the rate."""

PATIENCE_S = 0.05
"""A debt shorter than this is not worth a refusal: clocks and networks aren't that exact."""


@dataclass(slots=True)
class ByteRate:
    """One allowance. Invariant: `level_bytes` <= rate * BURST_S; below 0 it is a debt."""

    bytes_per_s: float = UNLIMITED
    level_bytes: float = 0.0
    seen_s: float = 0.0

    def configure(self, bytes_per_s: float, *, now_s: float) -> None:
        """Takes another rate; a debt stays what it is, in bytes."""
        if bytes_per_s != self.bytes_per_s:
            self._refill(now_s)
            if self.bytes_per_s < 0:
                self.level_bytes = bytes_per_s * BURST_S
            self.bytes_per_s, self.seen_s = bytes_per_s, now_s

    def debt_s(self, now_s: float) -> float:
        """How long until the debt is paid; 0 if there is none."""
        if self.bytes_per_s < 0:
            return 0.0
        self._refill(now_s)
        return max(0.0, -self.level_bytes / self.bytes_per_s)

    def charge(self, size_bytes: int, now_s: float) -> float:
        """Takes the bytes off; how long the caller should wait before the next request."""
        if self.bytes_per_s < 0:
            return 0.0
        self._refill(now_s)
        self.level_bytes -= size_bytes
        return max(0.0, -self.level_bytes / self.bytes_per_s)

    def _refill(self, now_s: float) -> None:
        if self.bytes_per_s > 0:
            earned = max(0.0, now_s - self.seen_s) * self.bytes_per_s
            self.level_bytes = min(self.level_bytes + earned, self.bytes_per_s * BURST_S)
        self.seen_s = now_s


@dataclass(slots=True)
class Rates:
    """The two allowances of a topic or a client."""

    produce: ByteRate
    fetch: ByteRate

    @classmethod
    def unlimited(cls) -> Rates:
        """No bound on either."""
        return cls(ByteRate(), ByteRate())
