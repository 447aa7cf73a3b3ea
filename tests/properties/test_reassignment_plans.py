"""Plans of reassignment: replicas stay distinct and over racks, loads get even, and no more is
copied than needed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core import reassignment
from headrace.broker.core.placement import Racks, place
from headrace.broker.core.reassignment import Assignment, Plan, Where
from headrace.protocol.errors import (
    BrokerNotFound,
    InvalidRequest,
    PartitionNotFound,
    TopicNotFound,
)


@st.composite
def clusters(draw: st.DrawFn, *, replicas_max: int = 3) -> tuple[Assignment, Racks]:
    """Topics anywhere on some of the brokers; the others are new."""
    count = draw(st.integers(2, 7))
    rack = st.sampled_from(["a", "b", "c"]) if draw(st.booleans()) else st.none()
    racks: Racks = {broker: draw(rack) for broker in range(count)}
    used = draw(st.integers(1, count))
    assignment: dict[Where, tuple[int, ...]] = {}
    for topic in range(draw(st.integers(1, 3))):
        replicas = draw(st.integers(1, min(replicas_max, used)))
        for partition in range(draw(st.integers(1, 8))):
            order = draw(st.permutations(range(used)))
            assignment[f"t{topic}", partition] = tuple(order[:replicas])
    return assignment, racks


def after(assignment: Assignment, plan: Plan) -> dict[Where, tuple[int, ...]]:
    result = dict(assignment)
    for move in plan.moves:
        assert move.origin == assignment[move.topic, move.partition] != move.target
        result[move.topic, move.partition] = move.target
    for where, replicas in result.items():
        assert len(set(replicas)) == len(replicas), where
    return result


def spread(replicas: tuple[int, ...], racks: Racks) -> int:
    return len({racks[broker] for broker in replicas})


def counts_of(assignment: Assignment, racks: Racks) -> list[int]:
    copies = Counter(broker for replicas in assignment.values() for broker in replicas)
    return [copies[broker] for broker in racks]


@given(clusters())
def test_evening_out_keeps_factors_and_racks_and_settles(cluster: tuple[Assignment, Racks]) -> None:
    assignment, racks = cluster
    plan = reassignment.even_out(assignment, racks, list(racks))
    result = after(assignment, plan)
    for where, replicas in result.items():
        assert len(replicas) == len(assignment[where])
        assert spread(replicas, racks) >= spread(assignment[where], racks)
    again = reassignment.even_out(result, racks, list(racks))
    assert again.copies <= 1, "a second plan has next to nothing left to do"


@given(clusters(replicas_max=1))
def test_single_replicas_end_even_with_exactly_the_fewest_copies(
    cluster: tuple[Assignment, Racks],
) -> None:
    assignment, racks = cluster
    plan = reassignment.even_out(assignment, dict.fromkeys(racks), list(racks))
    counts = counts_of(after(assignment, plan), racks)
    assert max(counts) - min(counts) <= 1
    assert plan.copies == reassignment.copies_needed(assignment, list(racks))


@given(clusters())
def test_without_racks_no_more_is_copied_than_the_lower_bound(
    cluster: tuple[Assignment, Racks],
) -> None:
    assignment, racks = cluster
    plan = reassignment.even_out(assignment, dict.fromkeys(racks), list(racks))
    counts = counts_of(after(assignment, plan), racks)
    bound = reassignment.copies_needed(assignment, list(racks))
    assert plan.copies <= bound
    assert plan.copies == bound or max(counts) - min(counts) > 1


@given(st.integers(3, 9), st.integers(1, 4), st.integers(4, 40))
def test_scale_out_from_a_placed_cluster_ends_even_with_the_fewest_copies(
    brokers: int, new: int, partitions: int
) -> None:
    everybody: Racks = dict.fromkeys(range(brokers + new))
    placed = place(partitions, 3, dict.fromkeys(range(brokers)))
    assignment = {("t", at): replicas for at, replicas in enumerate(placed)}
    plan = reassignment.even_out(assignment, everybody, list(everybody))
    result = after(assignment, plan)
    counts = counts_of(result, everybody)
    assert max(counts) - min(counts) <= 1
    assert plan.copies == reassignment.copies_needed(assignment, list(everybody))
    leaders = Counter(replicas[0] for replicas in result.values())
    assert max(leaders[b] for b in everybody) - min(leaders[b] for b in everybody) <= 1


@given(clusters(), st.data())
def test_draining_moves_what_is_there_and_nothing_else(
    cluster: tuple[Assignment, Racks], data: st.DataObject
) -> None:
    assignment, racks = cluster
    leaving = data.draw(st.sets(st.sampled_from(sorted(racks)), min_size=1))
    plan = reassignment.drain(assignment, racks, list(racks), leaving=leaving)
    result = after(assignment, plan)
    for where, replicas in result.items():
        if where[0] in plan.refusals:
            assert replicas == assignment[where]
            continue
        assert not set(replicas) & leaving
        assert set(assignment[where]) - leaving <= set(replicas)
        assert spread(replicas, racks) >= spread(assignment[where], racks)
    left = len(racks) - len(leaving)
    for topic, reason in plan.refusals.items():
        factor = max(len(r) for (name, _), r in assignment.items() if name == topic)
        assert (factor > left) == ("need as many" in reason)
    unforced = reassignment.drain(
        assignment, racks, list(racks), leaving=leaving, ignore_racks=True
    )
    assert all("need as many" in reason for reason in unforced.refusals.values())


@given(clusters(), st.integers(1, 7))
def test_another_factor_adds_over_racks_and_drops_what_lags_first(
    cluster: tuple[Assignment, Racks], replicas: int
) -> None:
    assignment, racks = cluster
    in_sync = {where: now[:1] for where, now in assignment.items()}
    plan = reassignment.change_factor(
        assignment, racks, list(racks), topic="t0", replicas=replicas, in_sync=in_sync
    )
    result = after(assignment, plan)
    assert bool(plan.refusals) == (replicas > len(racks))
    for where, now in result.items():
        if where[0] != "t0" or plan.refusals:
            assert now == assignment[where]
            continue
        assert len(now) == replicas
        assert now[0] == assignment[where][0], "the one in sync stays the preferred leader"
        if replicas > len(assignment[where]):
            assert now[: len(assignment[where])] == assignment[where]
            wanted = min(replicas, len(set(racks.values())))
            assert spread(now, racks) >= min(wanted, spread(assignment[where], racks) + 1)


@given(clusters())
def test_leaders_alone_are_evened_without_a_copy(cluster: tuple[Assignment, Racks]) -> None:
    assignment, racks = cluster
    plan = reassignment.even_leaders(assignment, racks, list(racks))
    result = after(assignment, plan)
    assert plan.copies == 0
    before, now = (Counter(r[0] for r in a.values()) for a in (assignment, result))
    assert max(now.values()) <= max(before.values())
    assert reassignment.even_leaders(result, racks, list(racks)).moves == ()


def test_brokers_that_get_nothing_new_keep_what_they_have() -> None:
    assignment = {("t", at): (0, 1) for at in range(6)}
    plan = reassignment.even_out(assignment, dict.fromkeys(range(4)), [1, 2, 3])
    assert all(0 in move.target for move in plan.moves)
    assert plan.copies == 4


def test_a_rack_used_twice_gives_to_an_empty_one() -> None:
    racks: Racks = {0: "a", 1: "a", 2: "b"}
    plan = reassignment.even_out({("t", 0): (0, 1)}, racks, [0, 1, 2])
    (move,) = plan.moves
    assert 2 in move.target


def test_a_drain_of_the_last_broker_of_a_rack_is_refused_with_the_reason() -> None:
    racks: Racks = {0: "a", 1: "a", 2: "b"}
    plan = reassignment.drain({("t", 0): (0, 2)}, racks, [0, 1, 2], leaving=[2])
    assert plan.moves == ()
    assert "1 rack(s) instead of 2" in plan.refusals["t"]
    forced = reassignment.drain(
        {("t", 0): (0, 2)}, racks, [0, 1, 2], leaving=[2], ignore_racks=True
    )
    assert [move.target for move in forced.moves] == [(0, 1)]


_PLACED: Assignment = {("t", 0): (0, 1), ("t", 1): (1, 2)}


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({("u", 0): [0, 1]}, TopicNotFound),
        ({("t", 9): [0, 1]}, PartitionNotFound),
        ({("t", 0): [0, 7]}, BrokerNotFound),
        ({("t", 0): [0, 0]}, InvalidRequest),
        ({("t", 0): [0, 1, 2]}, InvalidRequest),
        ({("t", 0): []}, InvalidRequest),
    ],
)
def test_a_written_plan_that_cannot_be_is_refused(
    wanted: dict[Where, list[int]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        reassignment.explicit(_PLACED, dict.fromkeys(range(4)), [0, 1, 2, 3], wanted)


def test_a_written_plan_is_taken_as_it_is_but_for_cordoned_brokers() -> None:
    racks: Racks = dict.fromkeys(range(4))
    wanted = {("t", 0): [2, 0], ("t", 1): [1, 2]}
    plan = reassignment.explicit(_PLACED, racks, [0, 1, 2], wanted)
    assert [(m.partition, m.target) for m in plan.moves] == [(0, (2, 0))]
    barred = reassignment.explicit(_PLACED, racks, [0, 1, 2], {("t", 0): [3, 0]})
    assert barred.moves == ()
    assert "broker 3" in barred.refusals["t"]


def test_the_clusters_own_topic_may_shrink_with_it() -> None:
    racks: Racks = {0: "a", 1: "b", 2: "c", 3: "a"}
    own = {("own", 0): (0, 1, 2), ("own", 1): (2, 1, 0)}
    plan = reassignment.drain_with_fewer(own, racks, [0, 1, 2, 3], leaving=[1, 2], topic="own")
    assert [set(move.target) for move in plan.moves] == [{0, 3}, {0, 3}]
    assert plan.factors == {"own": 2}
    nobody = reassignment.drain_with_fewer(own, racks, [1], leaving=[1], topic="own")
    assert nobody.moves == ()
    assert "own" in nobody.refusals
