"""Who leads: at most one holder at a time, whoever pauses or dies, whatever their clocks say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.operator.core import lease
from headrace.operator.spec import JsonObject

SECONDS = 15.0
SURE_S = SECONDS * 2 / 3
"""How long a holder takes itself for the leader after its last write (`process.leadership`)."""


class Candidate:
    """One operator, with a clock of its own that shows something else but runs as fast."""

    def __init__(self, name: str, offset_s: float) -> None:
        self.name = name
        self.offset_s = offset_s
        self.sight: lease.Sight | None = None
        self.sure_until_s = float("-inf")


steps = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.1, 20.0), st.booleans()), min_size=1, max_size=60
)


@given(steps)
def test_there_is_one_leader_at_most(taken: list[tuple[int, float, bool]]) -> None:
    candidates = [Candidate("a", 0.0), Candidate("b", 1e6), Candidate("c", -1e6)]
    stored: JsonObject | None = None
    now_s = 0.0
    for number, passed_s, gives_up in taken:
        now_s += passed_s
        one = candidates[number]
        own_s = now_s + one.offset_s
        one.sight = lease.looked(one.sight, None if stored is None else {"spec": stored}, own_s)
        if gives_up and stored is not None and stored["holderIdentity"] == one.name:
            stored, one.sure_until_s = lease.released(stored), float("-inf")
            continue
        if lease.decide(one.sight, one.name, own_s) == "wait":
            assert stored is not None
            assert stored["holderIdentity"] != one.name
            continue
        stored = lease.held(stored, one.name, seconds=SECONDS, now=str(now_s))
        one.sure_until_s = now_s + SURE_S
        assert sum(each.sure_until_s > now_s for each in candidates) == 1


def test_a_silent_holder_is_replaced_after_its_time_and_not_before() -> None:
    held = lease.held(None, "a", seconds=SECONDS, now="t")
    sight = lease.looked(None, {"spec": held}, 100.0)
    assert lease.decide(sight, "b", 114.9) == "wait"
    assert lease.decide(sight, "b", 115.1) == "take"
    renewed = lease.looked(sight, {"spec": {**held, "renewTime": "later"}}, 114.0)
    assert lease.decide(renewed, "b", 115.1) == "wait"


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    free = lease.released(lease.held(None, "a", seconds=SECONDS, now="t"))
    sight = lease.looked(None, {"spec": free}, 0.0)
    assert lease.decide(sight, "b", 0.0) == "take"
    taken = lease.held(free, "b", seconds=SECONDS, now="u")
    assert (taken["leaseTransitions"], taken["leaseDurationSeconds"]) == (1, 15)
