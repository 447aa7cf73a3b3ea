"""Bounds that hold for everybody: what is beyond them is refused by client and broker alike."""

from __future__ import annotations

RECORDS_PER_BATCH_MAX = 1 << 18
"""Records in one batch. A column of nulls costs one byte whatever its length, so a count that is
not bounded would let 100 bytes on the wire ask for gigabytes of memory."""

BATCH_BYTES_MAX = 64 << 20
"""Bytes of one batch, header included, and the highest `max.message.bytes` a topic may have."""

UNCOMPRESSED_BYTES_MAX = 64 << 20
"""Bytes of one batch's payload after decompression; checked before decompression starts."""

TIMESTAMP_MS_MIN = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the first instant that Python's and Spark's timestamps can show."""

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last such instant."""

PARTITIONS_PER_TOPIC_MAX = 2_048
"""Partitions of one topic (32 store objects of 64 partitions)."""

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Partitions named in one produce, fetch or offsets request."""

TOPICS_PER_REQUEST_MAX = 1_000
"""Topics created or altered by one call."""

HEADERS_PER_RECORD_MAX = 1_000
"""Headers of one record; counted by those who make records, the broker doesn't look."""

MEMBER_ID_MAX = 64
"""Characters of a member's id in its group; the SDK makes random ones of 22."""

OFFSET_METADATA_BYTES_MAX = 4_096
"""Bytes of UTF-8 that may be committed beside an offset (Kafka's default is the same)."""

OFFSET_MAX = (1 << 63) - (1 << 32)
"""Highest offset a request may name; leaves room for adding a batch to it without overflow."""
