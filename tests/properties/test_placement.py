"""Where replicas go: distinct, even, over racks; the same input, the same answer."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core.placement import place
from headrace.protocol.errors import InvalidConfig

racks_of = st.dictionaries(
    st.integers(0, 30), st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9
)


@given(racks_of, st.integers(1, 40), st.data())
def test_replicas_are_distinct_and_leaders_even(
    racks: dict[int, str | None], partitions: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(racks)))
    start = data.draw(st.integers(0, 1 << 32))
    load = data.draw(st.dictionaries(st.sampled_from(sorted(racks)), st.integers(0, 99)))
    placed = place(partitions, replicas, racks, start=start, load=load)
    assert placed == place(partitions, replicas, racks, start=start, load=load)
    assert len(placed) == partitions
    for chosen in placed:
        assert len(set(chosen)) == len(chosen) == replicas
        assert set(chosen) <= set(racks)
    leaders = Counter(chosen[0] for chosen in placed)
    counts = [leaders[broker] for broker in racks]
    assert max(counts) - min(counts) <= 1


@given(racks_of, st.integers(1, 40), st.data())
def test_no_rack_has_two_replicas_more_than_another_that_could_take_one(
    racks: dict[int, str | None], partitions: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(racks)))
    sizes = Counter(racks.values())
    for chosen in place(partitions, replicas, racks):
        used = Counter(racks[broker] for broker in chosen)
        for rack, size in sizes.items():
            if used[rack] < size:
                assert max(used.values()) <= used[rack] + 1


@given(st.integers(1, 9), st.integers(1, 60), st.data())
def test_without_racks_replicas_are_even_to_within_two(
    brokers: int, partitions: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, brokers))
    placed = place(partitions, replicas, dict.fromkeys(range(brokers)))
    copies = Counter(broker for chosen in placed for broker in chosen)
    counts = [copies[broker] for broker in range(brokers)]
    assert max(counts) - min(counts) <= 2


def test_topics_of_one_partition_begin_at_different_brokers() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(3))
    assert {place(1, 1, racks, start=start)[0] for start in range(3)} == {(0,), (1,), (2,)}


def test_the_worked_example() -> None:
    assert place(3, 2, {0: "a", 1: "a", 2: "b"}) == [(0, 2), (1, 2), (2, 0)]


def test_one_broker_gets_everything() -> None:
    assert place(3, 1, {7: None}) == [(7,)] * 3


@pytest.mark.parametrize("replicas", [0, 3])
def test_more_replicas_than_brokers_are_refused(replicas: int) -> None:
    with pytest.raises(InvalidConfig, match="live brokers"):
        place(1, replicas, {0: None, 1: None})
