"""When the resources of a batch are looked at again."""

from __future__ import annotations

from headrace.operator.reconcile.schedule import FAILED_S, Schedule

A, B = ("q", "a"), ("q", "b")


def test_each_has_its_own_time_and_none_once_it_came() -> None:
    schedule = Schedule()
    schedule.again(A, 10.0)
    schedule.again(B, 20.0)
    assert (schedule.due(9.0), schedule.next_s(9.0)) == (set(), 1.0)
    assert (schedule.due(12.0), schedule.next_s(12.0)) == ({A}, 8.0)
    assert schedule.due(30.0) == {B}
    assert schedule.next_s(30.0) is None


def test_failures_come_again_later_and_later_up_to_a_bound() -> None:
    schedule = Schedule()
    low, high = FAILED_S
    for count in range(12):
        schedule.failed(A, 0.0)
        pause = schedule.next_s(0.0)
        assert pause is not None
        wanted = min(high, low * 2**count)
        assert wanted / 2 <= pause <= wanted
    schedule.settled(A)
    schedule.failed(A, 0.0)
    pause = schedule.next_s(0.0)
    assert pause is not None
    assert pause <= low


def test_what_is_gone_is_forgotten() -> None:
    schedule = Schedule()
    schedule.failed(A, 0.0)
    schedule.again(B, 1.0)
    schedule.keep_only([B])
    assert schedule.due(1_000.0) == {B}
