"""Whole lives of clusters: seeds that found something once, and new ones each day."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from testkit.simulation.faults import PLANS
from testkit.simulation.runs import run_seed

FRESH = 20
"""New seeds of each kind of world."""

_LINES = (Path(__file__).parent / "seeds.txt").read_text(encoding="utf-8").splitlines()
_KNOWN = [line.split()[:2] for line in _LINES if line and not line.startswith("#")]


@pytest.mark.parametrize(("kind", "seed"), _KNOWN)
def test_a_seed_that_found_something_finds_nothing_any_more(kind: str, seed: str) -> None:
    result = run_seed(kind, int(seed))
    assert not result.failure, result.report()


@pytest.mark.parametrize("kind", PLANS)
def test_seeds_of_today_find_nothing(kind: str) -> None:
    first = int(time.time()) // 86_400 * 1_000
    print(f"python -m testkit.simulation --world {kind} --first {first} --seeds {FRESH}")
    for seed in range(first, first + FRESH):
        result = run_seed(kind, seed)
        assert not result.failure, result.report()


@pytest.mark.parametrize("kind", PLANS)
def test_a_seed_is_the_same_life_each_time(kind: str) -> None:
    first, second = run_seed(kind, 7), run_seed(kind, 7)
    assert (first.digest, first.steps, first.lines) == (second.digest, second.steps, second.lines)
    assert first.lines != run_seed(kind, 8).lines
