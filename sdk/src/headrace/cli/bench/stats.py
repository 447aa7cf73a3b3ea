"""Medians, spreads and percentiles. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

QUANTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
"""What is reported of latencies."""


class Spread(msgspec.Struct, frozen=True):
    """One figure over several rounds."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of at least one value."""
    return Spread(median=statistics.median(values), min=min(values), max=max(values))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the sorted values don't exceed: always
    one that was measured, never a mean of two."""
    if not ordered:
        raise ValueError("no values")
    rank = -(-share * len(ordered) // 1)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """The reported percentiles of unsorted values."""
    ordered = sorted(values)
    return {name: percentile(ordered, share) for name, share in QUANTILES.items()}


def summarise(rounds: Sequence[dict[str, float]]) -> dict[str, Spread]:
    """Each figure's spread over the rounds."""
    return {name: spread([figures[name] for figures in rounds]) for name in rounds[0]}
