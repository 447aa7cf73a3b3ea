"""Medians, spreads and percentiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.bench.stats import percentile, quantiles, spread, summarise


def test_a_percentile_is_a_measured_value() -> None:
    values = list(range(1, 1_001))
    assert quantiles(values) == {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "max": 1_000}
    assert percentile([7], 0.5) == 7


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1))
def test_at_least_that_share_does_not_exceed_the_percentile(
    values: list[float], share: float
) -> None:
    found = percentile(sorted(values), share)
    below = sum(value <= found for value in values)
    assert below >= math.floor(share * len(values))
    assert found in values


def test_a_summary_spreads_each_figure_over_the_rounds() -> None:
    rounds = [{"rate": 3.0}, {"rate": 1.0}, {"rate": 2.0}]
    assert summarise(rounds) == {"rate": spread([1.0, 2.0, 3.0])}
    assert spread([1.0, 2.0, 3.0]).median == 2.0
