"""The committed offsets of the groups of one `__offsets` partition, as a value store (pure).

Filled by replaying records in log order; the same function applies what was just appended, so
memory and log can't drift apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.broker.groups.records import OffsetValue, decode
from headrace.protocol.ids import TopicId, TopicIdPartition


def partition_for_group(group: str, partition_count: int) -> int:
    """Which partition of `__offsets` keeps a group's state; the count is fixed at creation (G1)."""
    return zlib.crc32(group.encode()) % partition_count


@dataclass(slots=True)
class GroupOffsets:
    """Group → partition → committed offset."""

    groups: dict[str, dict[TopicIdPartition, OffsetValue]] = field(default_factory=dict)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Takes one record of the log.

        Raises:
            CorruptBatch: as `records.decode`.
        """
        found = decode(key, value)
        if found is None:
            return
        name, committed = found
        where = TopicIdPartition(TopicId(name.topic_id), name.partition)
        if committed is not None:
            self.groups.setdefault(name.group, {})[where] = committed
            return
        offsets = self.groups.get(name.group)
        if offsets is not None:
            offsets.pop(where, None)
            if not offsets:
                del self.groups[name.group]

    def of(self, group: str) -> dict[TopicIdPartition, OffsetValue]:
        """The group's offsets; empty if it has none."""
        return self.groups.get(group, {})

    def of_topic(self, topic_id: TopicId) -> Iterator[tuple[str, TopicIdPartition]]:
        """Every offset that is committed for a topic: what to forget once its id is tombstoned."""
        for group, offsets in self.groups.items():
            for where in offsets:
                if where.topic_id == topic_id:
                    yield group, where
