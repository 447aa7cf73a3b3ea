"""When a lease's holder counts as dead."""

from __future__ import annotations

from headrace.broker.core.liveness import (
    Evidence,
    LeaseSight,
    after_answer,
    after_read,
    after_refusal,
    dead_brokers,
)


def read_at(times: list[float], content: bytes = b"x") -> LeaseSight:
    sight: LeaseSight | None = None
    for now_s in times:
        sight = after_read(sight, content, now_s=now_s)
    assert sight is not None
    return sight


def test_a_lease_that_stood_still_over_several_reads_is_a_dead_holders() -> None:
    assert read_at([0, 2, 4, 6, 8]).stood_still()
    assert not read_at([0, 2, 4, 6, 7.9]).stood_still()


def test_a_gap_in_ones_own_reads_begins_the_count_anew() -> None:
    assert not read_at([0, 2, 100]).stood_still()
    assert not read_at([0, 2, 4, 6, 60, 62]).stood_still()


def test_content_that_moves_begins_the_count_anew() -> None:
    sight = after_read(read_at([0, 2, 4, 6]), b"y", now_s=8)
    assert not sight.stood_still()


def test_few_reads_prove_nothing() -> None:
    assert not read_at([0, 4]).stood_still(for_s=3)
    assert read_at([0, 2, 4]).stood_still(for_s=3)


def test_one_refusal_proves_nothing_and_two_prove_the_end_of_that_session_only() -> None:
    once = after_refusal(None, session=3)
    assert once.gone < 3
    twice = after_refusal(once, session=3)
    assert twice.gone == 3
    assert after_refusal(once, session=4).gone < 3


def test_an_answer_between_two_refusals_begins_the_count_anew() -> None:
    answered = after_answer(after_refusal(None, session=3), session=3, answered=3)
    assert after_refusal(answered, session=3).gone < 3


def test_an_answer_of_the_registered_session_takes_the_proof_back() -> None:
    gone = after_refusal(after_refusal(None, session=3), session=3)
    assert after_answer(gone, session=3, answered=3).gone == 2


def test_an_answer_of_a_later_session_proves_the_registered_one_over() -> None:
    assert after_answer(None, session=3, answered=4).gone == 3
    assert after_answer(None, session=3, answered=2).gone < 3
    assert after_answer(None, session=3, answered=0).gone < 3


def test_most_of_the_others_dying_at_once_needs_more_evidence() -> None:
    fine, refused = Evidence(), Evidence(refused=True)
    assert dead_brokers({1: refused}) == {1}
    assert dead_brokers({1: refused, 2: fine}) == {1}
    assert dead_brokers({1: refused, 2: refused}) == set()
    confirmed = Evidence(refused=True, still_s=8)
    assert dead_brokers({1: confirmed, 2: confirmed}) == {1, 2}
    silent = Evidence(still_s=8)
    assert dead_brokers({1: silent, 2: silent}) == set()
    assert dead_brokers({1: Evidence(still_s=16), 2: Evidence(still_s=16)}) == {1, 2}


def test_those_long_away_do_not_make_the_next_death_a_mass_death() -> None:
    away, left, refused = Evidence(still_s=100), Evidence(left=True), Evidence(refused=True)
    assert dead_brokers({1: away, 2: refused}) == {1, 2}
    assert dead_brokers({1: left, 2: refused}) == {1, 2}
