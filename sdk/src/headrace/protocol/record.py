"""One record, as programs see it."""

from __future__ import annotations

import msgspec

Headers = dict[str, bytes | None]
"""Name → value; one value a name, in the order given."""


class Record(msgspec.Struct, gc=False, frozen=False, array_like=False):
    """A record read from a partition.

    `key` and `value` are bytes or None (a None value is a tombstone under compaction),
    `timestamp_ms` milliseconds since 1970 UTC, `headers` a dict (empty if there are none).

    A plain, untracked struct: millions of these live at once, and neither the garbage collector
    nor `__init__` may cost anything (112 ns against 900 for a frozen dataclass).
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


class RecordMetadata(msgspec.Struct, gc=False, frozen=True):
    """Where a sent record ended up. `offset` is -1 under acks=0, which doesn't wait to know."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
