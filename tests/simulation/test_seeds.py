"""Whole lives of clusters: seeds that found something once, and new ones each day."""

from __future__ import annotations

import functools
import time
from collections import Counter
from pathlib import Path

import pytest

from testkit.simulation.faults import KINDS, PLANS
from testkit.simulation.runs import Result, run_seed

FRESH = 20
"""New seeds of each kind of world."""

_LINES = (Path(__file__).parent / "seeds.txt").read_text(encoding="utf-8").splitlines()
_KNOWN = [line.split()[:2] for line in _LINES if line and not line.startswith("#")]


@pytest.mark.parametrize(("kind", "seed"), _KNOWN)
def test_a_seed_that_found_something_finds_nothing_any_more(kind: str, seed: str) -> None:
    result = run_seed(kind, int(seed))
    assert not result.failure, result.report()


_FIRST = int(time.time()) // 86_400 * 1_000


@functools.cache
def _lives(kind: str) -> list[Result]:
    """Today's new seeds."""
    return [run_seed(kind, seed) for seed in range(_FIRST, _FIRST + FRESH)]


@pytest.mark.parametrize("kind", PLANS)
def test_seeds_of_today_find_nothing(kind: str) -> None:
    print(f"python -m testkit.simulation --world {kind} --first {_FIRST} --seeds {FRESH}")
    for result in _lives(kind):
        assert not result.failure, result.report()


def test_every_kind_of_fault_befalls_the_seeds_of_today() -> None:
    tally: Counter[str] = Counter()
    for kind in PLANS:
        for result in _lives(kind):
            tally.update(result.tally)
    assert {kind: tally[kind] for kind in KINDS if not tally[kind]} == {}


@pytest.mark.parametrize("kind", PLANS)
def test_a_seed_is_the_same_life_each_time(kind: str) -> None:
    first, second = run_seed(kind, 7), run_seed(kind, 7)
    assert (first.digest, first.steps, first.lines) == (second.digest, second.steps, second.lines)
    assert first.lines != run_seed(kind, 8).lines
