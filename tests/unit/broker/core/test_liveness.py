"""When a lease's holder counts as dead."""

from __future__ import annotations

from headrace.broker.core.liveness import LeaseSight, after_read


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
