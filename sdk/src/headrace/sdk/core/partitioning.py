"""Which partition a record goes to: by key as Kafka does, without a key in long turns.

Without a key all records go to one partition (the sticky one) until its batch leaves, and then to
the next: batches stay large, and over time all partitions get the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.protocol.partitioner import partition_for_key


class KeyPartitions(dict[bytes, int]):
    """Key → partition with a memory of bounded size: a lookup costs 30 ns, hashing 400 and up.

    When full it starts over; keys that matter are back at once."""

    __slots__ = ("_keys_max", "_partition_count")

    def __init__(self, partition_count: int, keys_max: int) -> None:
        super().__init__()
        self._partition_count = partition_count
        self._keys_max = keys_max

    def __missing__(self, key: bytes) -> int:
        if len(self) >= self._keys_max:
            self.clear()
        found = self[key] = partition_for_key(key, self._partition_count)
        return found


def next_sticky(current: int, leaders: Sequence[int | None]) -> int:
    """The partition after `current`, in a circle, that somebody leads; without any, simply the
    next one (its records wait for a leader)."""
    count = len(leaders)
    for step in range(1, count + 1):
        candidate = (current + step) % count
        if leaders[candidate] is not None:
            return candidate
    return (current + 1) % count
