"""The demo's checks of a group find what they are there to find."""

from __future__ import annotations

from headrace.demo.checks import Pair, Place
from headrace.demo.group_member import decode, encode
from headrace.demo.group_part import _checks

SENT: list[Pair] = [(b"k%d" % (n % 2), b"%d" % n) for n in range(9)]
SOURCE: dict[Place, Pair] = {(0, offset): pair for offset, pair in enumerate(SENT)}


def passed(handled: list[tuple[int, Place]]) -> list[bool]:
    return [check.passed for check in _checks(SENT, SOURCE, handled)]


def test_what_was_handled_is_read_as_it_was_written() -> None:
    data = encode([(3, 7), (3, 8)], 5) + encode([(0, 1 << 40)], 6)
    assert list(decode(data)) == [(5, (3, 7)), (5, (3, 8)), (6, (0, 1 << 40))]
    assert list(decode(data[:-3])) == [(5, (3, 7)), (5, (3, 8))], "killed while writing"


def test_repeats_are_counted_and_allowed() -> None:
    handled = [(time, (0, time)) for time in range(9)]
    again = [(20, (0, 3)), (21, (0, 4))]
    assert passed(handled + again) == [True, True, True]
    assert _checks(SENT, SOURCE, handled + again)[1].detail.startswith("2 records")


def test_a_lost_a_strange_and_an_overtaken_record_are_found() -> None:
    handled = [(time, (0, time)) for time in range(9)]
    assert passed(handled[:-1])[0] is False
    assert passed([*handled, (9, (1, 0))])[0] is False
    overtaken = [(0, (0, 2)), (1, (0, 0)), *handled[1:2], *handled[3:]]
    assert passed(overtaken) == [True, True, False]
