"""Properties of the consumer's positions: handing out, taking back, finishing, planning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import batch as batches
from headrace.protocol.ids import TopicId, TopicPartition
from headrace.sdk.core.positions import (
    Handout,
    InOrder,
    PartitionState,
    is_fetchable,
    next_to_hand_out,
    plan_fetch,
    records_from,
)


def _state(partition: int = 0) -> PartitionState:
    return PartitionState(TopicPartition("t", partition), TopicId(b"x" * 16), None)


def _batch(base: int, count: int) -> bytes:
    data = batches.encode_records([(None, b"%d" % (base + i), 0, None) for i in range(count)])
    head = batches.assigned_bytes(len(data), base_offset=base, append_time_ms=0, leader_epoch=0)
    return head + bytes(data[32:])


def _add(state: PartitionState, base: int, count: int) -> None:
    data = memoryview(_batch(base, count))
    state.add(batches.read_header(data), data)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(1, 8)),
        st.tuples(st.just("again"), st.integers(1, 3)),
        st.tuples(st.just("next"), st.integers(1, 5)),
        st.tuples(st.just("give back"), st.just(0)),
        st.tuples(st.just("seek"), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(actions)
def test_whatever_happens_records_come_without_gap_or_repetition_from_the_position_on(todo) -> None:  # type: ignore[no-untyped-def]
    log = [(base, 5) for base in range(0, 200, 5)]
    state = _state()
    state.move(0)
    handout: Handout | None = None
    expected = 0
    for action, number in todo:
        assert state.fetch_offset is not None
        if action in ("fetch", "again"):
            start = state.fetch_offset if action == "fetch" else max(state.fetch_offset - 7, 0)
            for base, count in [entry for entry in log if sum(entry) > start][:number]:
                _add(state, base, count)
        elif action == "next":
            for _ in range(number):
                if handout is None or handout.is_over:
                    if handout is not None:
                        state.position = handout.position
                    if not state.can_hand_out:
                        break
                    raw = state.take()
                    records = batches.records("t", 0, raw.data, raw.header)
                    handout = Handout(state, raw, records_from(records, raw.first_offset))
                record = next(handout.iterator)
                assert record.offset == expected
                assert handout.in_hand == expected
                expected += 1
                assert handout.position == expected
        elif action == "give back" and handout is not None:
            position = handout.position
            if not handout.is_over:
                handout.cut()
                state.put_back(handout.batch._replace(first_offset=position))
            assert list(handout.iterator) == []
            state.position = position
            handout = None
        elif action == "seek":
            if handout is not None:
                handout.cut()
                assert list(handout.iterator) == []
            version = state.version
            state.move(number)
            assert state.version > version
            handout, expected = None, number
        state.check_invariants()


@given(st.lists(st.integers(0, 1_000), unique=True, max_size=50), st.data())
def test_finished_is_the_start_of_the_first_gap(offsets, data) -> None:  # type: ignore[no-untyped-def]
    offsets.sort()
    order = data.draw(st.permutations(offsets))
    progress = InOrder(offsets[0] if offsets else 0)
    for offset in offsets:
        progress.begin(offset)
    done: set[int] = set()
    for offset in order:
        progress.end(offset)
        done.add(offset)
        first_open = next((o for o in offsets if o not in done), None)
        finished = [o for o in offsets if first_open is None or o < first_open]
        assert progress.finished == (finished[-1] + 1 if finished else offsets[0])


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=50),
    st.integers(1, 1 << 20),
    st.integers(1, 16 << 20),
)
def test_a_plan_asks_about_each_once_and_shares_fairly(turns, partition_bytes, fetch_bytes) -> None:  # type: ignore[no-untyped-def]
    states = []
    for partition, turn in enumerate(turns):
        state = _state(partition)
        state.move(partition)
        state.turn = turn
        states.append(state)
    plan = plan_fetch(states, partition_bytes=partition_bytes, fetch_bytes=fetch_bytes)
    assert sorted(part.partition for part in plan.parts) == list(range(len(turns)))
    assert [state.turn for state in plan.states] == sorted(turns)
    assert [part.partition for part in plan.parts] == [s.owner.partition for s in plan.states]
    shares = {part.max_bytes for part in plan.parts}
    assert len(shares) == 1
    assert max(shares) <= partition_bytes
    assert sum(part.max_bytes for part in plan.parts) <= max(fetch_bytes, len(turns))


def test_only_partitions_that_can_use_data_are_asked_about() -> None:
    state = _state()
    assert not is_fetchable(state, now=0.0, partition_bytes=100)  # No position yet.
    state.move(0)
    assert is_fetchable(state, now=0.0, partition_bytes=100)
    for attribute, value in [("is_paused", True), ("is_fetching", True), ("retry_at", 1.0)]:
        setattr(state, attribute, value)
        assert not is_fetchable(state, now=0.0, partition_bytes=100)
        state.is_paused, state.is_fetching, state.retry_at = False, False, 0.0
    _add(state, 0, 5)
    assert not is_fetchable(state, now=0.0, partition_bytes=100)
    state.fail(ValueError())
    assert not is_fetchable(state, now=0.0, partition_bytes=100)


def test_who_was_served_longest_ago_comes_next() -> None:
    states = [_state(partition) for partition in range(3)]
    for state, turn in zip(states, (3, 1, 2), strict=True):
        state.move(0)
        state.turn = turn
        _add(state, 0, 1)
    assert next_to_hand_out(states) is states[1]
    states[1].is_paused = True
    assert next_to_hand_out(states) is states[2]
    assert next_to_hand_out([_state()]) is None
