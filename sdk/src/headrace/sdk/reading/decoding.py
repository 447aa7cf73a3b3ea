"""A fetched batch made into the program's records, and what a bad one means for its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.protocol import batch as batches
from headrace.protocol.errors import CorruptBatch, UnsupportedFormat
from headrace.sdk.core.positions import RawBatch, records_from

Load = Callable[[bytes], Any]


class Decoder:
    """Decodes with a consumer's deserializers (None: keys or values stay bytes)."""

    def __init__(self, *, load_key: Load | None, load_value: Load | None) -> None:
        self._load_key = load_key
        self._load_value = load_value
        self._is_plain = load_key is None and load_value is None

    def records(self, batch: RawBatch) -> tuple[list[Any], tuple[Exception, int] | None]:
        """The batch's records from where the reader stands. If one of them can't be deserialized,
        it and all behind it are left out; its error and offset come along.

        Raises:
            CorruptBatch, UnsupportedFormat: the batch can't be decoded.
        """
        records: list[Any] = records_from(
            batches.records(batch.topic, batch.partition, batch.data, batch.header),
            batch.first_offset,
        )
        return records, None if self._is_plain else self._deserialize(records)

    def _deserialize(self, records: list[Any]) -> tuple[Exception, int] | None:
        load_key, load_value = self._load_key, self._load_value
        for index, record in enumerate(records):
            try:
                if load_key is not None and record.key is not None:
                    record.key = load_key(record.key)
                if load_value is not None and record.value is not None:
                    record.value = load_value(record.value)
            except Exception as error:
                where = f"({record.topic!r}, {record.partition})"
                error.add_note(
                    f"{where} offset {record.offset} can't be deserialized; to go on after it:"
                    f" await consumer.seek({where}, {record.offset + 1})"
                )
                del records[index:]
                return error, record.offset
        return None


def offsets_text(batch: RawBatch) -> str:
    """Which records a batch holds, for messages."""
    header = batch.header
    return f"{batch.topic}/{batch.partition} offsets {header.base_offset} to {header.last_offset}"


def corrupt(
    batch: RawBatch, error: CorruptBatch | UnsupportedFormat
) -> CorruptBatch | UnsupportedFormat:
    """The error for the program: where the batch lies and how to go on after it."""
    first, last = batch.header.base_offset, batch.header.last_offset
    told = type(error)(
        f"{offsets_text(batch)}: {error.message}. To go on after it: await consumer.seek"
        f"(({batch.topic!r}, {batch.partition}), {last + 1}), or on_corrupt='skip'",
        details={"first_offset": first, "last_offset": last},
    )
    told.__cause__ = error
    return told
