"""What a follower asks its leader and is answered, below `/v1/internal/`; framed as in `framing`.

A follower keeps a *fetch session* at each leader: it lists a partition (with its own log's end and
last epoch) when there is something new to say of it, and the leader goes by what was listed last
(Kafka's KIP-227). So thousands of idle partitions cost nothing but one long poll. The leader
forgets a part once it has answered it with data, a divergence or an error: the follower lists it
again, from where it is then. MessagePack arrays; fields are only added at the end.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.protocol.requests import Count

FETCH = "fetch"
"""Path of a `ReplicaRequest`."""

FETCH_WAKE = "fetch-wake"
"""Path of a `ReplicaWake`."""

PARTS_MAX = 2_000
"""Partitions listed in one request; more are listed by the next."""

_PARTS = Meta(max_length=PARTS_MAX)


class ReplicaPart(msgspec.Struct, array_like=True, gc=False):
    """One partition: its follower's log ends at `offset` with a batch of `last_epoch` (-1: it is
    empty), and follows under `leader_epoch` (R13). `offset` covers only what is written, or synced
    where the topic's flush level says so."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    max_bytes: Count


class ReplicaRequest(msgspec.Struct, array_like=True, gc=False):
    """Of broker `broker`, process `session`, whose log contents have the generation (`disk_gen`,
    `power_gen`). `fetch_session` is the follower's number for what it has listed; `sequence` counts
    its requests from 0, and 0 begins anew. `forgotten`: it follows those here no longer."""

    broker: int
    session: int
    disk_gen: int
    power_gen: int
    fetch_session: int
    sequence: int
    max_wait_ms: Count
    max_bytes: Count
    parts: Annotated[list[ReplicaPart], _PARTS]
    forgotten: list[tuple[bytes, int]]


class ReplicaResult(msgspec.Struct, array_like=True, gc=False):
    """News of one partition, under the leader's epoch. One of:

    - `error`: a code of `errors`;
    - `diverging_end` >= 0: the follower's log isn't a part of the leader's; the leader's greatest
      epoch up to the follower's last is `diverging_epoch` (-1: none) and ends there (R14);
    - `length` > 0: so many bytes of batches follow the head; the first one is at `first_offset`,
      and `has_holes` says that offsets may be missing between batches (cleaned logs); `epochs` are
      the leader's epochs that begin there (epoch, start offset), as cleaning may have left no batch
      of one;
    - none of these: only the high watermark or the start moved; the part stays listed.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    length: Count = 0
    first_offset: int = -1
    has_holes: bool = False
    diverging_epoch: int = -1
    diverging_end: int = -1
    error: str | None = None
    message: str | None = None
    epochs: list[tuple[int, int]] = []


class ReplicaResponse(msgspec.Struct, array_like=True, gc=False):
    """Answers the request with this `fetch_session` and `sequence`."""

    fetch_session: int
    sequence: int
    parts: list[ReplicaResult]


class ReplicaWake(msgspec.Struct, array_like=True, gc=False):
    """Asks the leader to answer the follower's waiting request of that sequence now: there is news
    to list."""

    broker: int
    fetch_session: int
    sequence: int
