"""Records in JSON ⇄ batches, for people, curl and any language (pure; the slow path).

Everything here touches each record, so the callers run it off the loop above 64 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.protocol import batch
from headrace.protocol.compression import Codec
from headrace.protocol.errors import InvalidRequest, PartitionNotFound
from headrace.protocol.models import JsonFetched, JsonRecord, bytes_to_text, text_to_bytes
from headrace.protocol.partitioner import partition_for_key


@dataclass(frozen=True, slots=True)
class Placed:
    """The records of one batch: which of the request's records they are, and their timestamps."""

    partition: int
    indexes: tuple[int, ...]
    timestamps: tuple[int, ...]
    batch: bytes


Row = tuple[bytes | None, bytes | None, int, dict[str, bytes | None]]

ROW_OVERHEAD_BYTES = 40
"""What a record may cost beside its own bytes: MessagePack's prefixes, its timestamp and delta."""


def to_batches(
    records: Sequence[JsonRecord],
    *,
    partition_count: int,
    now_ms: int,
    sticky: int,
    codec: Codec,
    batch_bytes_max: int,
) -> list[Placed]:
    """The records as batches no larger than `batch_bytes_max` where that can be, each partition's
    in order. A record without partition goes where its key says, without a key to `sticky`.

    Raises:
        PartitionNotFound, InvalidRequest, InvalidTimestamp, RecordTooLarge: as they say.
    """
    places: dict[int, list[int]] = {}
    rows: list[Row] = []
    for index, record in enumerate(records):
        row = _row(record, now_ms)
        rows.append(row)
        places.setdefault(_place(record, row[0], partition_count, sticky), []).append(index)
    return [
        Placed(
            partition,
            tuple(indexes),
            tuple(rows[index][2] for index in indexes),
            bytes(batch.encode_records([rows[index] for index in indexes], codec=codec)),
        )
        for partition, all_indexes in places.items()
        for indexes in _cut(all_indexes, rows, batch_bytes_max - batch.HEADER_BYTES)
    ]


def _row(record: JsonRecord, now_ms: int) -> Row:
    headers = {name: text_to_bytes(value) for name, value in record.headers.items()}
    _check_header_names(headers)
    stamp = now_ms if record.timestamp_ms is None else record.timestamp_ms
    return text_to_bytes(record.key), text_to_bytes(record.value), stamp, headers


def _cut(indexes: Sequence[int], rows: Sequence[Row], bytes_max: int) -> Iterator[list[int]]:
    """`indexes` in runs whose rows stay under `bytes_max` together; a larger row is a run."""
    run: list[int] = []
    run_bytes = 0
    for index in indexes:
        size_bytes = _size(rows[index])
        if run and run_bytes + size_bytes > bytes_max:
            yield run
            run, run_bytes = [], 0
        run.append(index)
        run_bytes += size_bytes
    yield run


def _size(row: Row) -> int:
    key, value, _, headers = row
    size = ROW_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    return size + sum(2 * len(name) + len(text or b"") + 10 for name, text in headers.items())


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
