"""Without any one of the rules the same schedule breaks an invariant, and the checker sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testkit.simulation.mutants import MUTANTS
from testkit.simulation.runs import run_trace


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_taken_away_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.at_work():
        result = run_trace(mutant.trace, min_isr=mutant.min_isr, topic=mutant.topic)
    assert result.failure.startswith("Violation"), f"{mutant.rule}: {result.report()}"


def test_the_page_names_every_mutant_rule_and_file_that_there_is() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "replication.md").read_text(encoding="utf-8")
    assert [name for name in MUTANTS if f"`{name}`" not in page] == []
    for number in range(1, 29):
        assert f"**R{number}." in page
    roots = (root / "broker/src/headrace/broker", root / "sdk/src/headrace", root)
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|rs|md|txt))", page)
    assert len(named) > 40
    missing = {each for each in named if not any((at / each).exists() for at in roots)}
    assert missing == set()
