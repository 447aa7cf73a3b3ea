"""Keys go where Kafka's default partitioner puts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.partitioner import murmur2, partition_for_key

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
}
# librdkafka's rdmurmur2.c, one for each length of the tail
LIBRDKAFKA_VECTORS = {
    b"kafka": 0xD067CF64,
    b"giberish123456789": 0x8F552B0C,
    b"1234": 0x9FC97B14,
    b"234": 0xE7C009CA,
    b"34": 0x873930DA,
}


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS.items())
def test_murmur2_agrees_with_kafkas_published_vectors(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "expected"), LIBRDKAFKA_VECTORS.items())
def test_murmur2_agrees_with_librdkafkas_vectors(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


def test_the_sign_bit_is_dropped_before_the_remainder() -> None:
    assert partition_for_key(b"foobar", 50) == (-790332482 & 0x7FFFFFFF) % 50 == 16


@given(key=st.binary(max_size=64), partition_count=st.integers(1, 2_048))
def test_every_key_has_one_partition_of_the_topic(key: bytes, partition_count: int) -> None:
    found = partition_for_key(key, partition_count)
    assert 0 <= found < partition_count
    assert found == partition_for_key(bytes(key), partition_count)
