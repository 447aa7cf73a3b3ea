"""Which partition a key belongs to: Kafka's default partitioner, so that keys stay where they were
when a topic moves over.

murmur2 as in Kafka's `org.apache.kafka.common.utils.Utils.murmur2` (seed 0x9747b28c), the sign bit
dropped, modulo the number of partitions.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    for (k,) in struct.iter_unpack("<I", data[: length & ~3]):
        k = (k * _M) & _MASK
        k ^= k >> 24
        h = ((h * _M) & _MASK) ^ ((k * _M) & _MASK)
    tail = data[length & ~3 :]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of `key` in a topic of `partition_count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
