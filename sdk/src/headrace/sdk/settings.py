"""Settings of the clients: frozen values, one docstring a field with unit, default and reason.

`Producer`, `Consumer` and `Admin` take the fields as keyword arguments; these classes hold the
defaults, check what was given and name the two settings that contradict each other.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.protocol import limits
from headrace.protocol.compression import CODEC_NAMES
from headrace.protocol.errors import InvalidConfig
from headrace.protocol.requests import ACKS_NAMES

Acks = Literal["all", "1", "0", 1, 0]
Route = Literal["auto", "direct", "bootstrap"]
OffsetReset = Literal["earliest", "latest", "error"]
OnCorrupt = Literal["raise", "skip"]
Assignor = Literal["uniform", "range"]
HeaderValues = Mapping[str, str]
Credentials = HeaderValues | Callable[[], HeaderValues | Awaitable[HeaderValues]]


def _is_expression(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _check(*, holds: bool, message: str) -> None:
    if not holds:
        raise InvalidConfig(message)


@dataclass(frozen=True)
class ConnectionSettings:
    """How brokers are reached; shared by all clients."""

    client_id: str = "headrace-python"
    """Sent as `X-Headrace-Client`: names the program in the broker's logs."""

    credentials: Credentials | None = None
    """Headers that say who is asking, or a function (plain or async) that gives them for each
    request, so that a token can be renewed. None: no such headers."""

    tls: ssl.SSLContext | None = None
    """For https addresses; None is Python's default context with the system's certificates."""

    route: Route = "auto"
    """`auto` asks a partition's leader directly and, where it can't be reached from here, goes
    through the bootstrap address with one warning. `direct` never falls back, `bootstrap` never
    goes direct (port-forward, Ingress)."""

    request_timeout: float = 30.0
    """Seconds that one request may take, a long poll's wait not counted. A broker that waits for
    replicas needs some seconds; more than 30 without an answer is a lost broker."""

    connect_timeout: float = 5.0
    """Seconds for making a connection. An address that is not routed from here should be found
    out well within one request's time."""

    metadata_max_age: float = 60.0
    """Seconds after which a topic's leaders and partition count are asked for again even without
    an error: that is how added partitions are noticed."""

    retry_backoff_ms: int = 50
    """First wait before a retry, ms; doubles up to `retry_backoff_max_ms`, with jitter."""

    retry_backoff_max_ms: int = 3_000
    """Longest wait between two tries, ms: a failover takes about as long."""

    def __post_init__(self) -> None:
        _check(
            holds=self.route in ("auto", "direct", "bootstrap"),
            message=f"route= is auto, direct or bootstrap, got {self.route!r}",
        )
        _check(
            holds=self.request_timeout > 0 and self.connect_timeout > 0,
            message="request_timeout= and connect_timeout= are seconds above 0",
        )
        _check(
            holds=0 < self.retry_backoff_ms <= self.retry_backoff_max_ms,
            message="retry_backoff_ms= must be above 0 and not above retry_backoff_max_ms=",
        )
        _check(
            holds=bool(self.client_id)
            and self.client_id.isascii()
            and self.client_id.isprintable(),
            message="client_id= must be printable ASCII: it is sent as a header",
        )


@dataclass(frozen=True)
class ProducerSettings:
    """How a producer gathers and sends records."""

    acks: Acks = "all"
    """Who must have a record before it counts: all in-sync replicas, the leader (1), or nobody
    (0: failures are logged only, offsets are unknown)."""

    linger_ms: int = 0
    """How long to wait for company, ms. 0 is already efficient under load: one request is in
    flight a partition, and what piles up meanwhile goes in the next."""

    batch_bytes: int = 1 << 20
    """Upper bound of one batch before compression, bytes; the topic's `max.message.bytes` holds
    as well. 1 MiB costs about 0.3 ms to send: larger gains nothing."""

    compression: Literal["none", "lz4", "zstd"] | None = None
    """None takes the topic's `compression.type` (which is no compression unless it names one). A
    batch that compression would enlarge is sent as it is."""

    idempotence: bool = True
    """Retries never make duplicates: batches carry a producer id and sequence numbers."""

    delivery_timeout: float = 120.0
    """Seconds from handing a record over until it is delivered or fails with DeliveryTimeout:
    long enough for a broker's restart and recovery."""

    buffer_bytes: int = 32 << 20
    """Bytes of records not yet acknowledged; then `send` waits and `enqueue` raises BufferFull."""

    request_bytes: int = 8 << 20
    """Upper bound of one request with several partitions' batches, bytes (one always goes)."""

    requests_in_flight: int = 8
    """Requests under way to one broker at once, each with other partitions."""

    partition_cache: int = 1 << 16
    """Keys whose partition is remembered per topic: hashing in Python costs ten times a lookup."""

    def __post_init__(self) -> None:
        _check(
            holds=not isinstance(self.acks, bool) and str(self.acks) in ACKS_NAMES,
            message=f"acks= is 'all', 1 or 0, got {self.acks!r}",
        )
        _check(
            holds=self.compression is None or self.compression in CODEC_NAMES,
            message=f"compression= is none, lz4 or zstd, got {self.compression!r}",
        )
        _check(
            holds=1024 <= self.batch_bytes <= limits.BATCH_BYTES_MAX,
            message=f"batch_bytes= is between 1024 and {limits.BATCH_BYTES_MAX}",
        )
        _check(
            holds=self.buffer_bytes >= self.batch_bytes,
            message="buffer_bytes= must be able to hold one batch_bytes=",
        )
        _check(holds=self.linger_ms >= 0, message="linger_ms= can't be negative")
        _check(holds=self.delivery_timeout > 0, message="delivery_timeout= is seconds above 0")
        _check(
            holds=self.linger_ms / 1000 < self.delivery_timeout,
            message="linger_ms= must be shorter than delivery_timeout=",
        )
        _check(
            holds=self.requests_in_flight > 0 and self.request_bytes > 0 < self.partition_cache,
            message="requests_in_flight=, request_bytes= and partition_cache= must be above 0",
        )

    @property
    def acks_code(self) -> int:
        """`acks` as requests carry it."""
        return ACKS_NAMES[str(self.acks)]


@dataclass(frozen=True)
class ConsumerSettings:
    """Where a consumer starts, how much it reads ahead and when it commits."""

    group: str | None = None
    """Name under which offsets are committed and found again. None: nothing is committed."""

    broadcast: bool = False
    """Every member of the group reads everything. With `instance_id` its offsets are committed
    under the name GROUP.INSTANCE_ID, without it nothing is committed."""

    pattern: str | None = None
    """Instead of topics: a regular expression; all topics whose whole name matches are read, also
    those made later (noticed within `metadata_max_age`). It is matched here and not by the brokers,
    which a stranger's expression could keep busy for ever."""

    instance_id: str | None = None
    """A name of this member that outlives restarts: one that comes back within its session has the
    partitions it had, and no other member is disturbed. Each running member needs its own."""

    rack: str | None = None
    """Where this program runs: partitions with a replica there are preferred."""

    assignor: Assignor = "uniform"
    """`uniform`: equal shares, moving as little as can be. `range`: consecutive partitions, the
    same numbers of several topics at one member. The group uses what most members say."""

    session_timeout: float = 45.0
    """Seconds without a heartbeat after which a member counts as dead and its partitions go to
    others; as long nothing is handed out here if the group can't be reached."""

    rebalance_timeout: float = 60.0
    """Seconds a member may take for giving up or receiving partitions, its callbacks included; for
    half of it a partition that is to go waits for records that the program has in hand."""

    offset_reset: OffsetReset = "earliest"
    """Where to begin without a committed offset, and where to go on when the offset is no longer
    there: `earliest`, `latest`, or `error` to raise OffsetOutOfRange."""

    auto_commit: bool = True
    """With a group: commit finished records every `auto_commit_interval` and at close. A record
    is finished once the next one is asked for."""

    auto_commit_interval: float = 5.0
    """Seconds between automatic commits: as much may come again after a crash."""

    on_corrupt: OnCorrupt = "raise"
    """What to do with a batch that can't be decoded: raise CorruptBatch with its offsets, or skip
    it with a warning."""

    max_wait: float = 30.0
    """Seconds that a broker holds a fetch without data. Long: an idle poll costs next to nothing,
    and data ends it at once."""

    min_bytes: int = 1
    """Bytes that must be there before a fetch is answered early. More than 1 trades latency for
    fewer requests."""

    fetch_bytes: int = 16 << 20
    """Upper bound of one fetch's answer, bytes (the first batch always comes)."""

    partition_bytes: int = 1 << 20
    """Upper bound of one partition's share of an answer, bytes; also what is read ahead of it."""

    prefetch_bytes: int = 64 << 20
    """Bytes read ahead over all partitions, above which nothing more is asked for (answers under
    way still come)."""

    polls_per_broker: int = 4
    """Fetches parked at one broker at once, each with other partitions; when a partition becomes
    ready and all are taken, the oldest is given up and its partitions are asked for together."""

    offset_retry_timeout: float = 60.0
    """Seconds for which commits, lookups of offsets and the start are retried before they raise."""

    def __post_init__(self) -> None:
        _check(
            holds=self.offset_reset in ("earliest", "latest", "error"),
            message=f"offset_reset= is earliest, latest or error, got {self.offset_reset!r}",
        )
        _check(
            holds=self.on_corrupt in ("raise", "skip"),
            message=f"on_corrupt= is raise or skip, got {self.on_corrupt!r}",
        )
        _check(
            holds=self.auto_commit_interval > 0 and self.max_wait >= 0,
            message="auto_commit_interval= must be above 0 and max_wait= not below",
        )
        _check(
            holds=self.assignor in ("uniform", "range"),
            message=f"assignor= is uniform or range, got {self.assignor!r}",
        )
        _check(
            holds=0.5 <= self.session_timeout <= 1800 and 0.5 <= self.rebalance_timeout <= 1800,
            message="session_timeout= and rebalance_timeout= are seconds between 0.5 and 1800",
        )
        _check(
            holds=self.group is not None
            or not (self.broadcast or self.pattern or self.instance_id),
            message="broadcast=, pattern= and instance_id= need a group=",
        )
        _check(
            holds=self.pattern is None or _is_expression(self.pattern),
            message=f"pattern= is a regular expression, and {self.pattern!r} is none",
        )
        _check(
            holds=self.instance_id is None
            or (self.instance_id.isascii() and 0 < len(self.instance_id) <= 100),
            message="instance_id= is 1 to 100 ASCII characters",
        )
        _check(
            holds=0 < self.partition_bytes <= self.fetch_bytes <= self.prefetch_bytes,
            message="partition_bytes= <= fetch_bytes= <= prefetch_bytes= must hold",
        )
        _check(
            holds=self.min_bytes >= 0 and self.polls_per_broker > 0,
            message="min_bytes= must not be negative and polls_per_broker= above 0",
        )

        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise InvalidConfig(f"pattern= is no regular expression: {error}") from error

    @property
    def offsets_group(self) -> str | None:
        """The group whose offsets are read and committed."""
        if not self.broadcast:
            return self.group
        return None if self.instance_id is None else f"{self.group}.{self.instance_id}"


def bootstrap_urls(given: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of a list or of text with commas, without trailing slashes.

    Raises:
        InvalidConfig: none, or one that isn't an http(s) (or memory) address.
    """
    parts = given.split(",") if isinstance(given, str) else given
    urls = tuple(part.strip().rstrip("/") for part in parts if part.strip())
    _check(holds=bool(urls), message="the bootstrap address is empty; give http://HOST:9420")
    for url in urls:
        _check(
            holds=url.startswith(("http://", "https://", "memory://")),
            message=f"the bootstrap address {url!r} must start with http:// or https://",
        )
    return urls
