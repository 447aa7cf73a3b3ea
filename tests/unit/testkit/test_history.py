"""The judge is judged: each kind of broken promise is found, and a clean history is clean."""

from __future__ import annotations

import pytest

from testkit.history import History, Kind, assert_clean, check


def clean() -> History:
    """Two producers, one partition, one reader that has read all."""
    history = History()
    for number in range(6):
        send = history.send(number % 2, b"k", b"v%d" % number)
        send.place = (0, number)
        history.saw("reader", 0, number, send.value)
    history.final = {0: [(number, b"v%d" % number) for number in range(6)]}
    return history


def kinds(history: History) -> set[Kind]:
    return {each.kind for each in check(history)}


def test_a_clean_history_is_clean() -> None:
    assert_clean(clean())


def test_what_nobody_knows_the_fate_of_may_be_there_or_not() -> None:
    history = clean()
    history.send(0, b"k", b"maybe")
    assert_clean(history)
    history.final[0].append((6, b"maybe"))
    assert_clean(history)


def test_a_value_missing_from_the_middle_is_lost() -> None:
    history = clean()
    history.reads.clear()
    del history.final[0][2]
    assert kinds(history) == {"lost"}


def test_a_value_behind_the_end_is_unseen() -> None:
    history = clean()
    history.reads.clear()
    del history.final[0][5]
    assert kinds(history) == {"unseen"}


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    history = clean()
    history.final[0].append((6, b"v5"))
    assert kinds(history) == {"duplicate"}


def test_a_value_in_two_partitions_is_a_duplicate() -> None:
    history = clean()
    history.final[1] = [(0, b"v5")]
    assert kinds(history) == {"duplicate"}


def test_a_reader_that_saw_another_value_at_an_offset_is_inconsistent() -> None:
    history = clean()
    history.send(1, b"k", b"other")
    history.saw("second", 0, 3, b"other")
    assert kinds(history) == {"inconsistent"}


def test_two_acknowledgements_of_one_offset_are_inconsistent() -> None:
    history = clean()
    history.send(1, b"j", b"other").place = (0, 5)
    assert kinds(history) == {"inconsistent", "lost"}


def test_a_producer_that_is_overtaken_by_itself_is_reordered() -> None:
    history = clean()
    history.reads.clear()
    history.sends[1].place, history.sends[3].place = (0, 3), (0, 1)
    history.final[0][1], history.final[0][3] = (1, b"v3"), (3, b"v1")
    assert kinds(history) == {"reordered"}


def test_other_keys_and_producers_may_come_in_any_order() -> None:
    history = clean()
    history.reads.clear()
    history.sends[0].place, history.sends[1].place = (0, 1), (0, 0)
    history.final[0][0], history.final[0][1] = (0, b"v1"), (1, b"v0")
    assert_clean(history)


@pytest.mark.parametrize("order", [[0, 1, 1], [0, 2, 1], [0, 2, 3], [3, 5]])
def test_a_reader_that_goes_back_stands_still_or_skips_is_nonmonotonic(order: list[int]) -> None:
    history = clean()
    for offset in order:
        history.saw("second", 0, offset, b"v%d" % offset)
    assert kinds(history) == {"nonmonotonic"}


def test_a_hole_that_the_log_has_too_is_no_skip() -> None:
    history = clean()
    history.reads.clear()
    history.sends[2].place = None
    del history.final[0][2]
    for offset in (1, 3):
        history.saw("second", 0, offset, b"v%d" % offset)
    assert_clean(history)


def test_a_value_that_nobody_sent_is_a_phantom() -> None:
    history = clean()
    history.final[0].append((6, b"?"))
    assert kinds(history) == {"phantom"}


def test_a_value_that_was_refused_for_certain_is_a_phantom() -> None:
    history = clean()
    history.send(0, b"k", b"no").refused = True
    history.final[0].append((6, b"no"))
    assert kinds(history) == {"phantom"}


def test_a_history_without_a_promise_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="nothing was acknowledged"):
        assert_clean(History())


def test_the_message_says_how_many_of_each() -> None:
    history = clean()
    history.reads.clear()
    del history.final[0][1]
    del history.final[0][1]
    with pytest.raises(AssertionError, match="'lost': 2"):
        assert_clean(history)
