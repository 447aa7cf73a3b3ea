"""Records in JSON ⇄ batches, for people, curl and any language (pure; the slow path).

Everything here touches each record, so the callers run it off the loop above 64 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.protocol import batch
from headrace.protocol.compression import Codec
from headrace.protocol.errors import InvalidRequest, PartitionNotFound
from headrace.protocol.models import JsonFetched, JsonRecord, bytes_to_text, text_to_bytes
from headrace.protocol.partitioner import partition_for_key


@dataclass(frozen=True, slots=True)
class Placed:
    """The records of one partition: their batch, and which of the request's records they are."""

    partition: int
    indexes: tuple[int, ...]
    batch: bytes


def to_batches(
    records: Sequence[JsonRecord], *, partition_count: int, now_ms: int, sticky: int, codec: Codec
) -> list[Placed]:
    """One batch a partition, in the order of the partitions' first records. A record without
    partition goes where its key says, without a key to `sticky`.

    Raises:
        PartitionNotFound, InvalidRequest, InvalidTimestamp, RecordTooLarge: as they say.
    """
    places: dict[int, list[int]] = {}
    rows = []
    for index, record in enumerate(records):
        key = text_to_bytes(record.key)
        places.setdefault(_place(record, key, partition_count, sticky), []).append(index)
        headers = {name: text_to_bytes(value) for name, value in record.headers.items()}
        _check_header_names(headers)
        stamp = now_ms if record.timestamp_ms is None else record.timestamp_ms
        rows.append((key, text_to_bytes(record.value), stamp, headers))
    return [
        Placed(
            partition,
            tuple(indexes),
            bytes(batch.encode_records([rows[index] for index in indexes], codec=codec)),
        )
        for partition, indexes in places.items()
    ]


def _place(record: JsonRecord, key: bytes | None, partition_count: int, sticky: int) -> int:
    if record.partition is not None:
        if record.partition >= partition_count:
            raise PartitionNotFound(
                f"partition {record.partition}: the topic has {partition_count}, counted from 0"
            )
        return record.partition
    return sticky if key is None else partition_for_key(key, partition_count)


def _check_header_names(headers: Iterable[str]) -> None:
    for name in headers:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"a header's name can't be read: {error}") from error


def from_batches(data: bytes, *, offset: int, records_max: int) -> tuple[list[JsonFetched], int]:
    """The records at or after `offset`, at most so many, and the offset to go on with.

    Raises:
        CorruptBatch, UnsupportedFormat: a batch that can't be decoded, if it is the first.
    """
    found: list[JsonFetched] = []
    next_offset = offset
    for position, header in batch.walk(data):
        if header.next_offset <= offset:
            continue
        view = memoryview(data)[position : position + header.length]
        for record in batch.records("", 0, view, header):
            if record.offset < offset:
                continue
            if len(found) == records_max:
                return found, next_offset
            found.append(
                JsonFetched(
                    record.offset,
                    record.timestamp_ms,
                    bytes_to_text(record.key),
                    bytes_to_text(record.value),
                    {name: bytes_to_text(value) for name, value in record.headers.items()},
                )
            )
            next_offset = record.offset + 1
        next_offset = header.next_offset
    return found, next_offset
