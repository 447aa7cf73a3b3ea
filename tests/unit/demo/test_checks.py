"""The demo's comparisons find what they are there to find."""

from __future__ import annotations

from headrace.demo import checks
from headrace.demo.checks import Consumed, Pair

SENT: list[Pair] = [(b"AA", b"1"), (b"UA", b"2"), (b"AA", b"3")]
PLACES = [(0, 0), (1, 0), (0, 1)]


def intact() -> Consumed:
    return {0: {0: SENT[0], 1: SENT[2]}, 1: {0: SENT[1]}}


def test_everything_passes_when_nothing_is_missing() -> None:
    consumed = intact()
    assert checks.check_acknowledged(SENT, PLACES, consumed).passed
    assert checks.check_count(3, consumed).passed
    assert checks.check_dense(consumed).passed
    assert checks.check_order(SENT, consumed).passed
    assert checks.check_content(SENT, consumed).passed


def test_a_lost_record_is_found() -> None:
    consumed = intact()
    del consumed[0][1]
    assert not checks.check_acknowledged(SENT, PLACES, consumed).passed
    assert not checks.check_count(3, consumed).passed
    assert not checks.check_order(SENT, consumed).passed
    assert not checks.check_content(SENT, consumed).passed


def test_a_record_that_came_twice_is_found() -> None:
    consumed = intact()
    consumed[1][1] = SENT[1]
    assert not checks.check_count(3, consumed).passed
    assert not checks.check_content(SENT, consumed).passed


def test_another_order_within_a_key_is_found_though_the_content_is_the_same() -> None:
    consumed = intact()
    consumed[0] = {0: SENT[2], 1: SENT[0]}
    assert not checks.check_order(SENT, consumed).passed
    assert checks.check_content(SENT, consumed).passed


def test_a_hole_in_the_offsets_is_found() -> None:
    assert not checks.check_dense({0: {0: SENT[0], 2: SENT[2]}}).passed


def test_means_leave_out_flights_that_never_arrived() -> None:
    totals = checks.totals_by_carrier([(b"AA", 10), (b"AA", None), (b"UA", None), (b"AA", 20)])
    assert totals[b"AA"].flights == 3
    assert totals[b"AA"].mean_delay == 15
    assert totals[b"UA"].mean_delay is None
    assert checks.check_totals(totals, dict(totals)).passed
    assert not checks.check_totals(totals, {}).passed
