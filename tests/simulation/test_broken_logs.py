"""Logs that break at the worst moment: between a fetch that counts and what is made of it (R23)."""

from __future__ import annotations

from testkit.simulation.broker import SimBroker
from testkit.simulation.runs import run_trace
from testkit.simulation.stage import Stage


async def break_log(stage: Stage, broker: SimBroker) -> None:
    stage.partition(broker).log.fail("a sector can't be read")


def breaks_while_it_is_taken_in(stage: Stage) -> None:
    """A follower has caught up and the leader is about to take it into the ISR; its log breaks and
    is replaced by an empty one; the leader's change lands, and the follower is elected."""
    a, b, c = stage.a, stage.b, stage.c
    stage.remove(b, c)
    writes = stage.hold_writes(a)
    stage.cut(a, c)
    stage.produce(a)
    stage.until(lambda: writes.messages and stage.end(b) == 1)
    b.live.spawn(break_log(stage, b))
    # What the leader answers is lost from now on, so that nothing is copied again.
    stage.lose_answers(a, b)
    stage.run(8.0)
    writes.release_first()
    stage.run(1.0)
    stage.cut(a, b)
    stage.elect(b)
    stage.run(5.0)


def test_a_log_that_breaks_while_it_is_taken_into_the_isr_loses_nothing() -> None:
    result = run_trace(breaks_while_it_is_taken_in)
    assert not result.failure, result.report()
