"""What a log takes from another replica: whole batches that go on exactly where it ends.

A pure check of bytes; `Log.append_replicated` writes them only after it (replication.md R15).
"""

from __future__ import annotations

from headrace.protocol.batch import (
    BatchHeader,
    check_sealed_crc,
    check_shape,
    is_assigned_crc_good,
    read_header,
)
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import CorruptBatch

EPOCH_MAX = (1 << 31) - 1
"""The greatest leader epoch that a batch can carry."""


def check_replicated(
    data: Buffer,
    *,
    end_offset: int,
    last_epoch: int,
    may_have_holes: bool,
    epoch_max: int = EPOCH_MAX,
) -> list[tuple[int, BatchHeader]]:
    """Position and header of each batch in `data`, at least one: the first begins at `end_offset`,
    offsets have no gap (with `may_have_holes` they only grow: the other replica has cleaned its
    log), epochs don't fall and aren't above `epoch_max`, all checksums are good.

    Raises:
        CorruptBatch: the bytes are not that.
    """
    found: list[tuple[int, BatchHeader]] = []
    view = memoryview(data)
    position, expected, epoch = 0, end_offset, last_epoch
    while position < len(view):
        header = read_header(view, position)
        batch = view[position : position + header.length]
        check_shape(header, len(batch))
        if not is_assigned_crc_good(batch):
            raise CorruptBatch("the checksum over a batch's offset and epoch is wrong")
        check_sealed_crc(batch, header)
        is_next = header.base_offset == expected
        is_later = may_have_holes and header.base_offset > expected
        if not (is_next or is_later) or not epoch <= header.leader_epoch <= epoch_max:
            raise CorruptBatch(
                f"expected a batch at offset {expected} of an epoch from {epoch}"
                f" to {epoch_max}, got {header.base_offset} of epoch {header.leader_epoch}"
            )
        found.append((position, header))
        position, expected = position + header.length, header.next_offset
        epoch = header.leader_epoch
    if not found:
        raise CorruptBatch("no batch to append")
    return found
