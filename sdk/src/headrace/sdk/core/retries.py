"""Whether to try again, and when: a pure function of the error, the attempt and the clock.

Exponential backoff with jitter that the caller draws; a broker's `retry_after_ms` is a lower bound.
Nothing is tried after the deadline, and a try that could only begin after it is not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.protocol.errors import HeadraceError

FAILOVER_WAIT_MS_MAX = 150
"""Longest wait while a new leader is looked for, ms."""

FAILOVER_TRIES = 40
"""So many tries are that quick: about six seconds, longer than an election takes."""

LEADER_CODES = frozenset(
    {
        "not_leader",
        "not_coordinator",
        "fenced_epoch",
        "unknown_epoch",
        "partition_offline",
        "broker_unavailable",
        "connection_failed",
        "not_enough_replicas",
    }
)
"""Errors of a change of leaders: the next one is there in a moment."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between tries. Invariant: 0 < first_ms <= max_ms."""

    first_ms: int = 50
    """Wait before the second try, ms."""

    max_ms: int = 3_000
    """Longest wait, ms."""

    jitter: float = 0.3
    """Share of the wait that is left to chance, so that clients don't come back all at once."""

    def wait_ms(self, attempt: int, chance: float) -> float:
        """The wait after the `attempt`-th failed try (from 1 on); `chance` is in [0, 1)."""
        doubled = self.first_ms * 2.0 ** min(attempt - 1, 30)
        return min(doubled, self.max_ms) * (1 - self.jitter * chance)

    def failover_wait_ms(self, attempt: int, chance: float) -> float:
        """The wait while a partition is without a leader: never long for as long as an election
        usually takes, so that the new leader is found soon; then as ever."""
        if attempt > FAILOVER_TRIES:
            return self.wait_ms(attempt - FAILOVER_TRIES, chance)
        return min(self.wait_ms(attempt, chance), FAILOVER_WAIT_MS_MAX)


def retry_at(
    error: HeadraceError,
    *,
    attempt: int,
    now: float,
    deadline: float,
    chance: float,
    backoff: Backoff,
) -> float | None:
    """The instant (seconds, on the caller's clock) of the next try, or None to give up."""
    if not error.retriable:
        return None
    wait = backoff.failover_wait_ms if error.code in LEADER_CODES else backoff.wait_ms
    wait_ms = max(wait(attempt, chance), error.retry_after_ms or 0)
    at = now + wait_ms / 1000
    return at if at < deadline else None


def was_surely_not_done(error: HeadraceError) -> bool:
    """Whether the failed request can't have had an effect, so that even a request which must not
    happen twice may be sent again: it never left, or the broker answered that it won't."""
    if error.code in ("connection_failed", "request_timed_out"):
        return error.details.get("sent") is False
    return error.code != "slow_request" and error.retriable
