"""What a Spark batch reads covers [start, end) exactly once, and limits are kept."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.core.offsets import Position, from_json, to_json
from headrace.spark.core.planning import (
    Span,
    bytes_shares,
    find_losses,
    is_due,
    keep_up,
    plan_spans,
    share_out,
    split,
)
from headrace.spark.core.pruning import Predicate, prune

_topics = st.sampled_from(["a", "b", "c"])
_ids = st.sampled_from(["id-1", "id-1", "id-1", "id-2"])
_offsets = st.dictionaries(st.integers(0, 12), st.integers(0, 60), min_size=1, max_size=5)
positions = st.dictionaries(_topics, st.builds(Position, _ids, _offsets), max_size=3)
_partitions = st.tuples(_topics, st.integers(0, 3))


@st.composite
def begins_and_ends(
    draw: st.DrawFn,
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    begins = draw(st.dictionaries(_partitions, st.integers(0, 1 << 40), max_size=8))
    ends = {
        where: offset + draw(st.integers(0, 10) | st.integers(0, 10**9))
        for where, offset in begins.items()
    }
    return begins, ends


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, 1000))
        found.append(Span("t", "id", number, start, start + draw(st.integers(0, 300))))
    return found


def _offsets_of(found: list[Span]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (span.topic, span.partition, offset)
        for span in found
        for offset in range(span.start, span.until)
    )


@given(spans(), st.none() | st.integers(1, 40), st.none() | st.integers(1, 100))
def test_splitting_keeps_every_offset_once_and_every_limit(
    whole: list[Span], least: int | None, most: int | None
) -> None:
    pieces = split(whole, min_partitions=least, max_records=most)
    assert _offsets_of(pieces) == _offsets_of(whole)
    assert all(piece.size > 0 for piece in pieces)
    if most is not None:
        assert all(piece.size <= most for piece in pieces)
    total = sum(span.size for span in whole)
    if least is not None and total:
        assert len(pieces) >= min(least, total)
    if most is None and least is not None and len([s for s in whole if s.size]) < least:
        assert len(pieces) <= max(least, len([s for s in whole if s.size]))


@given(begins_and_ends(), st.integers(1, 10**6))
def test_a_limit_is_shared_out_and_nobody_starves(
    given_ones: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]], limit: int
) -> None:
    begins, ends = given_ones
    found = share_out(begins, ends, limit)
    assert found.keys() == ends.keys()
    taken = {where: found[where] - begins[where] for where in ends}
    waiting = [where for where in ends if ends[where] > begins[where]]
    assert all(begins[where] <= found[where] <= ends[where] for where in ends)
    assert all(taken[where] >= 1 for where in waiting)
    total = sum(ends[where] - begins[where] for where in ends)
    assert sum(taken.values()) == min(total, max(limit, len(waiting)))


@given(begins_and_ends(), st.integers(1, 10**9))
def test_bytes_are_shared_out_and_nobody_starves(
    given_ones: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]], limit: int
) -> None:
    begins, ends = given_ones
    shares = bytes_shares(begins, ends, limit)
    assert shares.keys() == {where for where in ends if ends[where] > begins[where]}
    assert all(share >= 1 for share in shares.values())
    assert sum(shares.values()) <= limit + len(shares)


@given(positions, positions, positions)
def test_a_plan_holds_what_lies_between_and_says_what_is_lost(
    start: dict[str, Position], end: dict[str, Position], earliest: dict[str, Position]
) -> None:
    plan = plan_spans(start, end, earliest)
    assert max(_offsets_of(plan.spans).values(), default=1) == 1
    is_whole = True
    for topic, position in end.items():
        before, first = start.get(topic), earliest.get(topic)
        same = before is not None and before.topic_id == position.topic_id
        for number, until in position.offsets.items():
            begin = before.offsets.get(number, 0) if before is not None and same else 0
            got = [s for s in plan.spans if (s.topic, s.partition) == (topic, number)]
            wanted = set(range(begin, until))
            if first is None or first.topic_id != position.topic_id:
                wanted_now: set[int] = set()
            elif number not in first.offsets:
                wanted_now = set()
            else:
                wanted_now = {offset for offset in wanted if offset >= first.offsets[number]}
            assert {o for s in got for o in range(s.start, s.until)} == wanted_now
            assert all(s.topic_id == position.topic_id for s in got)
            is_whole = is_whole and wanted_now == wanted
    if not is_whole:
        assert plan.losses


@given(positions)
def test_nothing_is_lost_where_nothing_changed(there: dict[str, Position]) -> None:
    zero = {
        topic: Position(found.topic_id, dict.fromkeys(found.offsets, 0))
        for topic, found in there.items()
    }
    assert plan_spans(zero, there, zero).losses == []
    assert plan_spans(there, there, zero).spans == []
    assert find_losses(there, there).losses == []
    assert keep_up(there, there) == there


@given(positions, positions)
def test_kept_up_heads_never_lie_before_what_was_read(
    before: dict[str, Position], heads: dict[str, Position]
) -> None:
    kept = keep_up(before, heads)
    losses = find_losses(before, kept).losses
    assert not any("ends at" in loss for loss in losses)
    assert {topic: found.topic_id for topic, found in kept.items()} == {
        topic: found.topic_id for topic, found in heads.items()
    }


@given(positions)
def test_offsets_survive_their_json_and_its_text_is_stable(there: dict[str, Position]) -> None:
    stored = to_json(there)
    assert from_json(stored) == there
    turned = {topic: there[topic] for topic in reversed(list(there))}
    assert str(to_json(turned)) == str(stored)
    for inner in stored.values():
        numbers = [int(name) for name in inner if name != "id"]
        assert numbers == sorted(numbers)


_predicates = st.lists(
    st.one_of(
        st.builds(
            Predicate,
            st.just("offset"),
            st.sampled_from(["=", ">", ">=", "<", "<="]),
            st.integers(-10, 1400),
        ),
        st.builds(
            Predicate,
            st.just("offset"),
            st.just("in"),
            st.lists(st.integers(0, 1300), max_size=3).map(tuple),
        ),
        st.builds(
            Predicate,
            st.just("partition"),
            st.sampled_from(["=", ">", ">=", "<", "<="]),
            st.integers(-1, 6),
        ),
        st.builds(Predicate, st.just("topic"), st.just("="), st.sampled_from(["t", "u"])),
    ),
    max_size=3,
)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda value, values: value in values,
}


def _matches(row: tuple[str, int, int], predicate: Predicate) -> bool:
    value = {"topic": row[0], "partition": row[1], "offset": row[2]}[predicate.column]
    return _OPERATORS[predicate.operator](value, predicate.value)


@given(spans(), _predicates)
def test_pruning_never_drops_a_match(whole: list[Span], predicates: list[Predicate]) -> None:
    left = _offsets_of(prune(whole, predicates))
    matching = {row for row in _offsets_of(whole) if all(_matches(row, p) for p in predicates)}
    assert matching <= left.keys() <= _offsets_of(whole).keys()
    if not any(predicate.operator == "in" for predicate in predicates):
        assert matching == left.keys()


def test_a_trigger_waits_for_enough_or_for_long() -> None:
    def due(waiting: int, *, last: float | None) -> bool:
        return is_due(waiting=waiting, smallest=10, now_ms=1000, last_ms=last, delay_ms=300)

    assert due(0, last=None)
    assert not due(9, last=900)
    assert due(10, last=900)
    assert due(1, last=700)
    assert is_due(waiting=0, smallest=None, now_ms=0, last_ms=0, delay_ms=1)
