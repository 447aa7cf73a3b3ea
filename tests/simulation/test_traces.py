"""The deadliest schedules, step by step, with every rule in place."""

from __future__ import annotations

import pytest

from testkit.simulation.mutants import MUTANTS
from testkit.simulation.runs import run_trace
from testkit.simulation.traces import broken_leader_without_store, late_fetch


@pytest.mark.parametrize("name", MUTANTS)
def test_the_deadliest_schedule_does_no_harm(name: str) -> None:
    mutant = MUTANTS[name]
    result = run_trace(mutant.trace, min_isr=mutant.min_isr, topic=mutant.topic)
    assert not result.failure, result.report()


def test_a_fetch_that_arrives_late_does_no_harm() -> None:
    result = run_trace(late_fetch)
    assert not result.failure, result.report()


def test_a_broken_leader_doesnt_take_the_others_out_of_the_isr() -> None:
    result = run_trace(broken_leader_without_store)
    assert not result.failure, result.report()
