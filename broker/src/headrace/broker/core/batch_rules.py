"""What a leader takes from a producer (pure): decided on the header alone, never on a record.

Rubbish under a good checksum is accepted: looking inside would cost every honest producer. Readers
find it out, name the offsets and can skip them.
"""

from __future__ import annotations

from headrace.protocol.batch import (
    NO_PRODUCER,
    BatchHeader,
    check_sealed_crc,
    check_shape,
    check_timestamps,
    read_header,
)
from headrace.protocol.errors import InvalidRequest, RecordTooLarge, UnsupportedFormat

SEQUENCE_MAX = 2**31 - 1


def accept(batch: memoryview, *, bytes_max: int) -> BatchHeader:
    """The header of a batch that may be appended as it is.

    Raises:
        CorruptBatch, UnsupportedFormat: not a whole, known, undamaged batch.
        RecordTooLarge: larger than the topic's `max.message.bytes`.
        InvalidRequest: no records, counts or sequences that contradict each other.
        InvalidTimestamp: outside the years 1 to 9999.
    """
    header = read_header(batch)
    check_shape(header, len(batch))
    if len(batch) > bytes_max:
        raise RecordTooLarge(
            f"the batch is {len(batch):,} bytes, the topic takes {bytes_max:,}; send fewer or"
            " smaller records at once, or raise the topic's max.message.bytes"
        )
    check_sealed_crc(batch, header)
    _check_counts(header)
    check_timestamps(header.first_timestamp_ms, header.max_timestamp_ms)
    return header


def _check_counts(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRequest("control batches are written by brokers only")
    if header.is_transactional:
        raise UnsupportedFormat("this broker's feature level has no transactions")
    if header.record_count == 0:
        raise InvalidRequest("the batch has no records")
    if header.last_offset_delta != header.record_count - 1:
        raise InvalidRequest(
            f"{header.record_count} records but last offset delta {header.last_offset_delta}:"
            " a producer's batch has no holes"
        )
    if header.producer_id == NO_PRODUCER:
        return
    if header.producer_id < 0 or header.producer_epoch < 0:
        raise InvalidRequest("a producer id and epoch are 0 or more, or the id is -1 for none")
    if not 0 <= header.base_sequence <= SEQUENCE_MAX:
        raise InvalidRequest(f"base sequence {header.base_sequence} is outside 0 to 2^31-1")
