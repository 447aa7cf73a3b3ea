"""What compaction leaves of one batch (pure): which records stay, and the batch written anew.

Offsets never change: what goes leaves holes (`offset_deltas`), and `last_offset_delta` stays. Keys
are compared by fingerprint: a short key is its own, a longer one is 15 bytes of its BLAKE2b, so
that a map of a million keys has a known size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from typing import NamedTuple, TypeVar

from headrace.protocol.batch import (
    ASSIGNED_BYTES,
    CODEC_MASK,
    BatchHeader,
    Columns,
    assigned_bytes,
    encode,
)
from headrace.protocol.compression import Codec
from headrace.protocol.limits import TIMESTAMP_MS_MIN

T = TypeVar("T")

FINGERPRINT_BYTES = 15
"""120 bits: two of 2^40 different keys are taken for one with a chance of 2^-41. In CPython 15
bytes make an object of 48, one more would make it 64."""

NEVER_MS = TIMESTAMP_MS_MIN - 1
"""As `expired_before_ms`: nothing expires."""


class Rules(NamedTuple):
    """What one pass over a log drops; everything is decided before it starts."""

    latest: Mapping[bytes | None, int]
    """Fingerprint of a key to the base offset of the batch with its latest record."""
    tombstones_below: int
    """Tombstones of batches that begin below this offset go."""
    expired_before_ms: int
    """Records with an earlier timestamp go (record.ttl.ms); NEVER_MS: none."""

    def is_expired(self, header: BatchHeader) -> bool:
        """Whether every record of the batch is expired, told from its header alone."""
        return header.max_timestamp_ms < self.expired_before_ms


def fingerprints(keys: Sequence[bytes | None]) -> list[bytes | None]:
    """Each key, or what stands for it in the map; None where a record has no key."""
    size = FINGERPRINT_BYTES
    return [
        key if key is None or len(key) < size else blake2b(key, digest_size=size).digest()
        for key in keys
    ]


def selection(header: BatchHeader, columns: Columns, rules: Rules) -> list[bool] | None:
    """Which of the batch's records stay; None when all do. Records without a key stay (until they
    expire): they say nothing of any other."""
    keep = [True] * header.record_count
    if columns.keys is not None:
        keep = _latest_of_keys(header.base_offset, columns.keys, rules)
        if header.base_offset < rules.tombstones_below:
            keep = _without_tombstones(keep, columns.keys, columns.values)
    if header.first_timestamp_ms < rules.expired_before_ms or columns.timestamps is not None:
        keep = _unexpired(keep, header, columns, rules.expired_before_ms)
    return None if all(keep) else keep


def _latest_of_keys(base: int, keys: Sequence[bytes | None], rules: Rules) -> list[bool]:
    prints = fingerprints(keys)
    latest = rules.latest.get
    keep = [latest(each, -1) <= base for each in prints]
    if len(set(prints)) < len(prints):
        last = dict(zip(prints, range(len(prints)), strict=True))
        keep = [
            kept and (each is None or last[each] == place)
            for place, (kept, each) in enumerate(zip(keep, prints, strict=True))
        ]
    return keep


def _without_tombstones(
    keep: list[bool], keys: Sequence[bytes | None], values: Sequence[bytes | None] | None
) -> list[bool]:
    if values is None:
        return [kept and key is None for kept, key in zip(keep, keys, strict=True)]
    if None not in values:
        return keep
    return [
        kept and (key is None or value is not None)
        for kept, key, value in zip(keep, keys, values, strict=True)
    ]


def _unexpired(
    keep: list[bool], header: BatchHeader, columns: Columns, before_ms: int
) -> list[bool]:
    if before_ms == NEVER_MS:
        return keep
    first = header.first_timestamp_ms
    if columns.timestamps is None:
        return keep if first >= before_ms else [False] * len(keep)
    return [
        kept and first + delta >= before_ms
        for kept, delta in zip(keep, columns.timestamps, strict=True)
    ]


def has_tombstones(columns: Columns, keep: Sequence[bool] | None) -> bool:
    """Whether one of the records that stay has a key and a null value."""
    keys, values = columns.keys, columns.values
    if keys is None or (values is not None and None not in values):
        return False
    nulls = [None] * len(keys)
    return any(
        kept and key is not None and value is None
        for kept, key, value in zip(keep or [True] * len(keys), keys, values or nulls, strict=True)
    )


def rewritten(header: BatchHeader, columns: Columns, keep: Sequence[bool]) -> bytearray:
    """The batch with only the records that stay (at least one), under its own offsets, times,
    producer and codec; both checksums are new.

    Raises:
        RecordTooLarge: the column of offsets makes it larger than a batch may be.
    """
    deltas = columns.offset_deltas or range(header.record_count)
    offsets = list(compress(deltas, keep))
    first, stamps = _timestamps(header, columns, keep)
    keys, values = _column(columns.keys, keep), _column(columns.values, keep)
    data = encode(
        keys=keys,
        values=values,
        timestamps=stamps,
        headers=_column(columns.headers, keep),
        offset_deltas=offsets,
        record_count=len(offsets),
        last_offset_delta=header.last_offset_delta,
        first_timestamp_ms=first,
        max_timestamp_ms=first + max(stamps or (0,)),
        codec=Codec(header.codec),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        attributes=header.attributes & ~CODEC_MASK,
    )
    return _assigned(data, header)


def emptied(header: BatchHeader) -> bytearray:
    """The batch without any record: its place, epoch and producer, in less than a hundred bytes."""
    data = encode(
        keys=None,
        values=None,
        timestamps=None,
        headers=None,
        record_count=0,
        last_offset_delta=header.last_offset_delta,
        first_timestamp_ms=header.first_timestamp_ms,
        max_timestamp_ms=header.first_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        attributes=header.attributes & ~CODEC_MASK,
    )
    return _assigned(data, header)


def empty_batch(base_offset: int, *, next_offset: int, leader_epoch: int) -> bytes:
    """A batch without records, and of nobody, for the offsets up to `next_offset`."""
    data = encode(
        keys=None,
        values=None,
        timestamps=None,
        headers=None,
        record_count=0,
        last_offset_delta=next_offset - base_offset - 1,
        first_timestamp_ms=0,
        max_timestamp_ms=0,
    )
    data[:ASSIGNED_BYTES] = assigned_bytes(
        len(data), base_offset=base_offset, append_time_ms=0, leader_epoch=leader_epoch
    )
    return bytes(data)


def _column(column: list[T | None] | None, keep: Sequence[bool]) -> list[T | None] | None:
    if column is None:
        return None
    left = list(compress(column, keep))
    return left if any(each is not None for each in left) else None


def _timestamps(
    header: BatchHeader, columns: Columns, keep: Sequence[bool]
) -> tuple[int, list[int] | None]:
    """The first record's timestamp and the others' distance to it, None when there is none."""
    if columns.timestamps is None:
        return header.first_timestamp_ms, None
    left = list(compress(columns.timestamps, keep))
    first = left[0]
    if first:
        left = [delta - first for delta in left]
    return header.first_timestamp_ms + first, left if any(left) else None


def _assigned(data: bytearray, header: BatchHeader) -> bytearray:
    data[:ASSIGNED_BYTES] = assigned_bytes(
        len(data),
        base_offset=header.base_offset,
        append_time_ms=header.append_time_ms,
        leader_epoch=header.leader_epoch,
    )
    return data
