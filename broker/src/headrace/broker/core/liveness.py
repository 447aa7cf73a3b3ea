"""Whether a broker is dead: its lease stood still, or its address refused connections (pure).

A lease's content says nothing about time (clocks of machines are never compared). Only the
observer's own monotonic clock counts, and of it only time between successful reads of the store
that returned the same content (replication.md H6): at least three reads, and a gap between two
reads that is longer than twice the period begins the count anew, since then it was the observer
that stood still. A store outage therefore kills nobody.

Faster is the word of the broker's own machine (H7): a connection refused twice, with a reconnect
in between, or an answer from a later process. Silence and broken connections prove nothing. And if
more than half of the brokers seem dead at once, it is likelier that the observer is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

RENEW_PERIOD_S = 2.0
"""A live holder renews so often."""

DEAD_AFTER_S = 8.0
"""A lease that stood still so long is a dead holder's: four renewals missed."""

READS_MIN = 3
"""Successful reads of the same content that a verdict needs."""

REFUSALS_MIN = 2
"""Connections refused in a row that prove that nobody listens (H7)."""


@dataclass(frozen=True, slots=True)
class LeaseSight:
    """What an observer has seen of one lease: `content` since `since_s`, in `reads` reads, the
    last of them at `last_s`."""

    content: bytes
    since_s: float
    last_s: float
    reads: int = 1

    @property
    def still_s(self) -> float:
        """How long it is proven to have stood still; 0 with too few reads."""
        return self.last_s - self.since_s if self.reads >= READS_MIN else 0.0

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


@dataclass(frozen=True, slots=True)
class ProbeSight:
    """What calls to a broker's address told: `refusals` in a row, while it was registered with
    `session`; `gone` is the highest session that is proven to have ended."""

    session: int = 0
    refusals: int = 0
    gone: int = 0


def after_refusal(before: ProbeSight | None, *, session: int) -> ProbeSight:
    """The sight after nobody listened at the address that `session` registered."""
    known = before or ProbeSight()
    refusals = known.refusals + 1 if known.session == session else 1
    gone = max(known.gone, session) if refusals >= REFUSALS_MIN else known.gone
    return ProbeSight(session, refusals, gone)


def after_answer(before: ProbeSight | None, *, session: int, answered: int) -> ProbeSight:
    """The sight after the process of session `answered` spoke at the address that `session`
    registered. A later one proves that the registered one has ended; an earlier one, or one that
    has no session yet (0), proves only that somebody listens."""
    known = before or ProbeSight()
    if answered > session:
        return ProbeSight(session, 0, max(known.gone, session))
    gone = min(known.gone, session - 1) if answered == session else known.gone
    return ProbeSight(session, 0, gone)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks against one broker: it `left` in good order; its address `refused`; its lease
    stood still for `still_s`."""

    left: bool = False
    refused: bool = False
    still_s: float = 0.0


def dead_brokers(evidence: Mapping[int, Evidence]) -> set[int]:
    """Who of the others is dead. Those long known to be away don't count for the question whether
    most died at once; if most did, a refusal must be confirmed by the lease, and a lease must
    stand still for twice as long (H6).

    Example: of two others one refuses: it is dead. Both refuse in the same second: nobody is, until
    their leases have stood still for `DEAD_AFTER_S`.
    """
    away = {b for b, e in evidence.items() if e.left or e.still_s >= 2 * DEAD_AFTER_S}
    others = {b: e for b, e in evidence.items() if b not in away}
    fresh = {b for b, e in others.items() if e.refused or e.still_s >= DEAD_AFTER_S}
    if len(others) > 1 and len(fresh) * 2 > len(others):
        fresh = {b for b in fresh if others[b].refused and others[b].still_s >= DEAD_AFTER_S}
    return away | fresh
