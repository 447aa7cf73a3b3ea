"""Retention against its definition, one segment at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core.retention import RetentionPolicy, SegmentInfo, deletable

sizes = st.integers(1, 100)


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentInfo]:
    """Closed segments with growing offsets and append times."""
    found: list[SegmentInfo] = []
    offset = age = 0
    for size_bytes in draw(st.lists(sizes, max_size=8)):
        offset += draw(st.integers(1, 10))
        age += draw(st.integers(0, 50))
        found.append(SegmentInfo(offset, size_bytes, age))
    return found


@given(
    closed=logs(),
    active_bytes=sizes,
    retention_ms=st.integers(-1, 300),
    retention_bytes=st.integers(-1, 500),
    now_ms=st.integers(0, 500),
    high_watermark=st.integers(0, 90),
)
def test_what_goes_is_too_old_or_too_much_and_what_stays_is_not(
    closed: list[SegmentInfo],
    active_bytes: int,
    retention_ms: int,
    retention_bytes: int,
    now_ms: int,
    high_watermark: int,
) -> None:
    policy = RetentionPolicy(retention_ms, retention_bytes)
    size_bytes = active_bytes + sum(segment.size_bytes for segment in closed)
    count = deletable(
        closed, policy, size_bytes=size_bytes, now_ms=now_ms, high_watermark=high_watermark
    )

    def should_go(place: int) -> bool:
        left = active_bytes + sum(segment.size_bytes for segment in closed[place + 1 :])
        age = now_ms - (closed[place].last_append_ms or 0)
        too_old = retention_ms >= 0 and age > retention_ms
        too_much = retention_bytes >= 0 and left >= retention_bytes
        return closed[place].end_offset <= high_watermark and (too_old or too_much)

    assert all(should_go(place) for place in range(count))
    assert count == len(closed) or not should_go(count)


def test_a_segment_whose_age_is_not_known_counts_as_young() -> None:
    closed = [SegmentInfo(5, 10, None), SegmentInfo(9, 10, 0)]
    policy = RetentionPolicy(retention_ms=0)
    assert deletable(closed, policy, size_bytes=30, now_ms=10**9, high_watermark=9) == 0
