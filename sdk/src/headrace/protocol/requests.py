"""The binary bodies: what stands in front of the batches in produce and fetch.

MessagePack arrays in field order. A field may only be added at the end, with a default: an older
reader skips it, a newer one fills it in.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.protocol import limits

BATCH_MEDIA_TYPE = "application/vnd.headrace.batch"
"""Content type of `/v1/produce` and `/v1/fetch`, both ways."""

CLIENT_HEADER = "X-Headrace-Client"
"""Header with the client's id, for logs and for the byte rates of clients."""

SECRET_HEADER = "X-Headrace-Cluster-Secret"
"""Header with the secret that brokers of a cluster show each other."""

FORWARDED_HEADER = "X-Headrace-Forwarded"
"""Header with the id of the broker that passes a client's request on. Such a request is answered
where it arrives or refused, never passed on again."""

PRINCIPAL_HEADER = "X-Headrace-Principal"
"""Header with `kind:name` of the client whose request a broker passes on; believed only beside the
cluster's secret."""

ROUTE_HEADER = "X-Headrace-Route"
"""Header with which a client says how it chose the broker."""

ROUTE_DIRECT = "direct"
"""Value of `ROUTE_HEADER`: the client chose this broker for what it leads. If that is outdated the
client wants `not_leader` at once, to look the leader up, instead of a detour for good."""

ACKS_ALL = -1
ACKS_LEADER = 1
ACKS_NONE = 0
ACKS_NAMES = {"all": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
"""A number of bytes or milliseconds: never negative, and small enough to add some up."""

_PARTS = Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)


class ProducePart(msgspec.Struct, array_like=True, gc=False):
    """One partition's batch in a produce request: exactly one batch of `length` bytes."""

    topic_id: bytes
    partition: int
    length: Count


class ProduceRequest(msgspec.Struct, array_like=True, gc=False):
    """`acks` is -1 (all in-sync replicas), 1 (the leader) or 0 (answered like 1, but the SDK
    doesn't wait). `timeout_ms` bounds the wait for replicas. A partition may appear once."""

    acks: int
    timeout_ms: Count
    parts: Annotated[list[ProducePart], _PARTS]


class ProduceResult(msgspec.Struct, array_like=True, gc=False):
    """What became of one part. `error` is None or a code of `errors`; then `base_offset` is -1.
    A duplicate of an idempotent producer is no error: it gets its first answer's offset."""

    topic_id: bytes
    partition: int
    error: str | None = None
    message: str | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1


class ProduceResponse(msgspec.Struct, array_like=True, gc=False):
    """Results in the order of the request's parts. `throttle_ms`: wait so long before the next."""

    throttle_ms: Count
    parts: list[ProduceResult]


class FetchPart(msgspec.Struct, array_like=True, gc=False):
    """Read one partition from `offset` on, about `max_bytes` bytes: whole batches, and always at
    least one if there is one. The first batch may begin before `offset` (skip its first records).

    `leader_epoch`: the epoch the reader follows, -1 for none; an older or newer one is refused.
    `until`: batches that begin at or after this offset aren't sent, and once `offset` has reached
    it the part counts as answered; -1 for no end.
    """

    topic_id: bytes
    partition: int
    offset: int
    max_bytes: Count
    leader_epoch: int = -1
    until: int = -1


class FetchRequest(msgspec.Struct, array_like=True, gc=False):
    """Long poll: answers when `min_bytes` are there over all parts, a part has an error, or
    `max_wait_ms` is over. `max_bytes` bounds the whole answer (the first batch always goes).

    `rack`: where the reader is. A leader of another rack then names an in-sync follower of that one
    instead of answering with records, and a follower serves what it knows to be committed. Requests
    with a rack aren't passed on."""

    max_wait_ms: Count
    min_bytes: Count
    max_bytes: Count
    isolation: int
    parts: Annotated[list[FetchPart], _PARTS]
    rack: str = ""


class FetchResult(msgspec.Struct, array_like=True, gc=False):
    """One part's answer; `length` bytes of batches follow the head, in the order of the parts.
    `preferred_replica`: the broker to read this partition from, -1: this one. It may refuse
    (`not_leader`) once it is behind: then the leader is to be asked again."""

    topic_id: bytes
    partition: int
    error: str | None = None
    message: str | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    length: Count = 0
    leader_epoch: int = -1
    preferred_replica: int = -1


class FetchResponse(msgspec.Struct, array_like=True, gc=False):
    """Results in the order of the request's parts."""

    throttle_ms: Count
    parts: list[FetchResult]
