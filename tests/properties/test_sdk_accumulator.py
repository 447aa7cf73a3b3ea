"""Properties of the accumulator: sizes, order, sequence numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import batch as batches
from headrace.protocol.batch import HEADER_BYTES
from headrace.protocol.compression import Codec
from headrace.protocol.ids import TopicId
from headrace.protocol.partitioner import partition_for_key
from headrace.sdk.core.accumulator import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Batch,
    PartitionQueue,
    headers_size,
)
from headrace.sdk.core.partitioning import KeyPartitions, next_sticky

payloads = st.none() | st.binary(max_size=300)
heads = st.none() | st.dictionaries(st.text(max_size=20), payloads, max_size=4)
stamps = st.integers(-62_135_596_800_000, 253_402_300_799_999)
rows = st.lists(st.tuples(payloads, payloads, heads, stamps), min_size=1, max_size=60)


def _size(value, key, headers) -> int:  # type: ignore[no-untyped-def]
    size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    return size + (headers_size(headers) if headers else 0)


def _number(value: bytes | None) -> int:
    assert value is not None
    return int(value.split(b".")[0])


def _batch(records) -> Batch:  # type: ignore[no-untyped-def]
    batch = Batch("t", 0, room=1 << 20, opened_at=0.0, deadline=1.0)
    for index, (value, key, headers, stamp) in enumerate(records):
        assert batch.append(value, key, headers, stamp, _size(value, key, headers)) == index
    return batch


@given(rows, st.sampled_from(Codec))
def test_a_sealed_batch_holds_its_records_and_is_never_larger_than_estimated(  # type: ignore[no-untyped-def]
    records, codec
) -> None:
    batch = _batch(records)
    data = bytes(batch.seal(codec, producer_id=5, base_sequence=0))
    assert len(data) <= batch.size_bytes + BATCH_OVERHEAD_BYTES
    header = batches.read_header(data)
    found = batches.records("t", 0, data, header)
    assert [(r.value, r.key, r.headers, r.timestamp_ms) for r in found] == [
        (value, key, headers or {}, stamp) for value, key, headers, stamp in records
    ]
    assert header.max_timestamp_ms == max(stamp for *_, stamp in records)
    assert len(data) <= HEADER_BYTES + header.uncompressed_length
    batch.deliver(100, 0)
    for index, (*_, stamp) in enumerate(records):
        meta = batch.metadata_of(index)
        assert (meta.offset, meta.timestamp_ms) == (100 + index, stamp)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 400)),
        st.tuples(st.sampled_from(["take", "ack", "retry", "fail"]), st.just(0)),
    ),
    max_size=80,
)


@given(actions, st.integers(0, 2**31 - 1))
def test_batches_leave_once_each_in_order_with_sequences_that_fit(todo, sequence) -> None:  # type: ignore[no-untyped-def]
    queue = PartitionQueue("t", TopicId(b"x" * 16), 0, batch_bytes=1_000, producer_id=1)
    queue.next_sequence = sequence
    appended, left = 0, list[int]()
    sealed: dict[Batch, bytearray] = {}
    expected = sequence
    for action, size in todo:
        if action == "append":
            value = b"%d" % appended + b"." * size
            needed = _size(value, None, None)
            batch = queue.open
            if batch is None or batch.room < needed:
                batch = queue.open_batch(needed, now=0.0, delivery_timeout=1.0)
            batch.append(value, None, None, 0, needed)
            appended += 1
        elif action == "take" and queue.in_flight is None and queue.has_records:
            batch = queue.take()
            data = queue.seal(batch, Codec.NONE)
            assert sealed.setdefault(batch, data) is data  # A retry sends the same bytes.
            header = batches.read_header(data)
            assert header.base_sequence == expected
        elif queue.in_flight is not None and action == "retry":
            queue.put_back(0.0)
            assert queue.is_retrying == (queue.closed[0].attempts > 0)
        elif queue.in_flight is not None and action in ("ack", "fail"):
            batch = queue.in_flight
            left += [_number(value) for value in batch.values]
            queue.settle()
            if action == "ack":
                expected = (expected + batch.count) % 2**31
                batch.deliver(0, 0)
            else:
                queue.new_identity(2)
                expected = 0
        assert (queue.ready_at(linger_s=0.0) < float("inf")) == (
            queue.has_records and queue.in_flight is None
        )
    if queue.in_flight is not None:
        queue.put_back(0.0)
    rest = [value for batch in queue.drop_all() for value in batch.values]
    assert left + [_number(value) for value in rest] == list(range(appended))


@given(st.lists(st.binary(max_size=3), max_size=50), st.integers(1, 50), st.integers(1, 5))
def test_the_key_cache_answers_as_the_partitioner_and_stays_small(keys, count, keys_max) -> None:  # type: ignore[no-untyped-def]
    cache = KeyPartitions(count, keys_max)
    for key in keys:
        assert cache[key] == partition_for_key(key, count)
        assert len(cache) <= keys_max


@given(st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=10), st.data())
def test_the_sticky_partition_moves_in_a_circle_over_those_that_are_led(leaders, data) -> None:  # type: ignore[no-untyped-def]
    current = data.draw(st.integers(0, len(leaders) - 1))
    found = next_sticky(current, leaders)
    led = [index for index, leader in enumerate(leaders) if leader is not None]
    if led:
        assert found in led
        seen = set()
        for _ in led:
            current = next_sticky(current, leaders)
            seen.add(current)
        assert seen == set(led)
