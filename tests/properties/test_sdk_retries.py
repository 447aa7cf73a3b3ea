"""Properties of the retry decision."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import BY_CODE, ConnectionFailed, RequestTimedOut
from headrace.sdk.core.retries import Backoff, retry_at, was_surely_not_done

errors = st.builds(
    lambda cls, wait: cls("x", retry_after_ms=wait),
    st.sampled_from(sorted(BY_CODE.values(), key=lambda cls: cls.code)),
    st.none() | st.integers(0, 100_000),
)
backoffs = st.builds(
    lambda first, more, jitter: Backoff(first, first + more, jitter),
    st.integers(1, 1_000),
    st.integers(0, 10_000),
    st.floats(0, 1),
)
chances = st.floats(0, 1, exclude_max=True)
times = st.floats(0, 1e6)


@given(errors, backoffs, st.integers(1, 10_000), times, times, chances)
def test_a_next_try_lies_between_now_and_the_deadline_and_waits_as_told(  # type: ignore[no-untyped-def]
    error, backoff, attempt, now, left, chance
) -> None:
    deadline = now + left
    at = retry_at(
        error, attempt=attempt, now=now, deadline=deadline, chance=chance, backoff=backoff
    )
    if not error.retriable:
        assert at is None
    if at is not None:
        assert now <= at < deadline
        assert at - now >= (error.retry_after_ms or 0) / 1000 - 1e-6


@given(backoffs, st.integers(1, 10_000), chances)
def test_waits_are_bounded_and_only_chance_makes_them_shorter(backoff, attempt, chance) -> None:  # type: ignore[no-untyped-def]
    wait = backoff.wait_ms(attempt, chance)
    assert 0 <= wait <= backoff.max_ms
    assert wait <= backoff.wait_ms(attempt, 0.0) <= backoff.wait_ms(attempt + 1, 0.0)


def test_only_what_certainly_had_no_effect_may_be_sent_again() -> None:
    assert was_surely_not_done(ConnectionFailed("x", details={"sent": False}))
    assert not was_surely_not_done(ConnectionFailed("x", details={"sent": True}))
    assert not was_surely_not_done(ConnectionFailed("x"))
    assert not was_surely_not_done(RequestTimedOut("x"))
