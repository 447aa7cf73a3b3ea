"""What the log of one `__offsets` partition says: committed offsets and groups (pure).

`Loading` takes the log as it lies, keeps the last value of each key, and makes the state of that:
a log full of old commits costs its bytes and not a decoding of each. Later changes are applied one
by one, by the same decoding, so that memory and log can't drift apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.broker.core.groups.model import Change, Group
from headrace.broker.groups.records import KIND_OFFSET, OffsetValue, decode, decode_change, kind_of
from headrace.protocol.ids import TopicId, TopicIdPartition

LOAD_SLICE = 10_000
"""Keys decoded between two breaths of the loop: about 10 ms."""


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
            offsets = self.groups.get(name.group)
            if offsets is None:
                offsets = self.groups[name.group] = {}
            offsets[where] = committed
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


class Loading:
    """The state of a log that is being read, from its start to its end."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes | None] = {}

    def take(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        """The next records of the log, in order."""
        latest = self._latest
        for key, value in zip(keys, values, strict=True):
            if key is not None:
                latest[key] = value

    def decode_slices(self, offsets: GroupOffsets, groups: dict[str, Group]) -> Iterator[None]:
        """Fills `offsets` and `groups`; gives way after each slice.

        Raises:
            CorruptBatch: a record of a known kind can't be read.
        """
        changes: dict[str, list[Change]] = {}
        apply = offsets.apply
        for count, (key, value) in enumerate(self._latest.items(), start=1):
            if kind_of(key) == KIND_OFFSET:
                if value is not None:
                    apply(key, value)
            elif value is not None and (found := decode_change(key, value)) is not None:
                changes.setdefault(found[0], []).append(found[1])
            if count % LOAD_SLICE == 0:
                yield
        for name, parts in changes.items():
            groups[name] = Group(name).with_changes(parts)
