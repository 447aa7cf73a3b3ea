"""Without any one of the rules the same schedule breaks an invariant, and the checker sees it."""

from __future__ import annotations

import pytest

from testkit.simulation.mutants import MUTANTS
from testkit.simulation.runs import run_trace


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_taken_away_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.at_work():
        result = run_trace(mutant.trace, min_isr=mutant.min_isr, topic=mutant.topic)
    assert result.failure.startswith("Violation"), f"{mutant.rule}: {result.report()}"
