"""A byte rate is kept by those who wait as told, over any sequence of requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core.quota import BURST_S, ByteRate

requests = st.lists(st.tuples(st.integers(0, 5_000_000), st.floats(0, 3)), min_size=1, max_size=60)


@given(rate=st.integers(1, 10_000_000), requests=requests)
def test_who_waits_as_told_stays_within_the_rate(
    rate: int, requests: list[tuple[int, float]]
) -> None:
    bucket = ByteRate()
    bucket.configure(rate, now_s=100.0)
    now_s, taken = 100.0, 0
    for size_bytes, idle_s in requests:
        now_s += idle_s
        taken += size_bytes
        now_s += bucket.charge(size_bytes, now_s)
        assert taken <= rate * (now_s - 100.0 + BURST_S) * (1 + 1e-9) + 1e-3
        assert bucket.debt_s(now_s) <= 1e-6


@given(rate=st.integers(1, 10_000_000), requests=requests)
def test_a_wait_is_never_longer_than_the_bytes_cost(
    rate: int, requests: list[tuple[int, float]]
) -> None:
    bucket = ByteRate()
    bucket.configure(rate, now_s=0.0)
    now_s = 0.0
    for size_bytes, idle_s in requests:
        now_s += idle_s
        wait_s = bucket.charge(size_bytes, now_s)
        assert wait_s <= size_bytes / rate + 1e-6
        now_s += wait_s


@given(size_bytes=st.integers(0, 1 << 40))
def test_without_a_rate_nobody_waits(size_bytes: int) -> None:
    bucket = ByteRate()
    assert bucket.charge(size_bytes, 1.0) == 0.0
    assert bucket.debt_s(1.0) == 0.0


def test_a_clock_that_stands_still_or_goes_back_earns_nothing() -> None:
    bucket = ByteRate()
    bucket.configure(1_000, now_s=50.0)
    debt_s = bucket.charge(2_000, 50.0)
    assert bucket.debt_s(49.0) >= debt_s


def test_a_lifted_rate_forgives_the_debt() -> None:
    bucket = ByteRate()
    bucket.configure(1_000, now_s=0.0)
    bucket.charge(1_000_000, 0.0)
    bucket.configure(-1, now_s=0.0)
    assert bucket.debt_s(0.0) == 0.0
