"""What is kept of each log outside its directory, so that opening it needs no scan.

A checkpoint of a closed log (in the `clean` marker) is all that is needed to append to it; one of
a running log (in `checkpoints`) says from where on recovery must look.
"""

from __future__ import annotations

import msgspec

from headrace.broker.log.epochs import NO_EPOCH
from headrace.broker.log.index import NO_TIMESTAMP


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A log's numbers at one moment. New fields go at the end with a default."""

    start_offset: int = 0
    end_offset: int = 0
    high_watermark: int = 0
    recovery_point: int = 0
    """Everything below is on the disk."""
    active_base: int = 0
    """Base offset of the last segment."""
    active_bytes: int = 0
    active_first_append_ms: int = 0
    active_max_timestamp_ms: int = NO_TIMESTAMP
    last_append_ms: int = 0
    last_epoch: int = NO_EPOCH
    size_bytes: int = 0
    """Bytes of all segments."""
    older_segments: int = 0
    """How many segments lie before the last."""
    has_producers: bool = False
    """Whether there is producer state to load."""
    failure: str = ""
    """Why the log is offline; empty while it is well."""
    truncations: int = 0
    """How often the log was truncated; see truncations.py."""
