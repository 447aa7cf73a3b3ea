"""The JSON bodies, as msgspec structs: the broker validates and documents by them (OpenAPI is
generated from here), the SDK reads answers with them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.protocol import limits
from headrace.protocol.errors import HeadraceError, InvalidRequest, from_code
from headrace.protocol.names import NAME_PATTERN

Partition = Annotated[int, Meta(ge=0, le=limits.PARTITIONS_PER_TOPIC_MAX - 1)]
OffsetNumber = Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)]
PartitionCount = Annotated[int, Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX)]
Name = Annotated[str, Meta(extra_json_schema={"pattern": f"^{NAME_PATTERN}$"})]
"""Documents what `names.check_name` checks, which has a code of its own for it."""

ConfigValue = str | int | float | bool
TimestampMs = Annotated[int, Meta(ge=limits.TIMESTAMP_MS_MIN, le=limits.TIMESTAMP_MS_MAX)]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Base of what clients send: an unknown field is a spelling mistake and refused."""


class Answer(msgspec.Struct):
    """Base of what brokers answer: clients ignore fields that they don't know."""


class ErrorBody(Answer):
    """Every answer that is not 2xx, and every partial failure inside one that is."""

    code: str
    message: str
    retriable: bool
    retry_after_ms: int | None = None
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: HeadraceError) -> ErrorBody:
        """The body that tells of `error`."""
        return cls(
            code=error.code,
            message=error.message,
            retriable=error.retriable,
            retry_after_ms=error.retry_after_ms,
            details=error.details,
        )

    def to_error(self) -> HeadraceError:
        """The exception that this body tells of."""
        return from_code(
            self.code,
            self.message,
            retriable=self.retriable,
            retry_after_ms=self.retry_after_ms,
            details=self.details,
        )


class Base64(Body):
    """Bytes that are not UTF-8 text."""

    base64: str


Text = str | Base64 | None
"""A key, value or header in JSON: text, `{"base64": ...}` where it isn't UTF-8, or null."""


def text_to_bytes(text: Text) -> bytes | None:
    """The bytes that a JSON key, value or header stands for.

    Raises:
        InvalidRequest: not base64, or text with half a surrogate pair.
    """
    if text is None:
        return None
    try:
        if isinstance(text, Base64):
            return base64.b64decode(text.base64, validate=True)
        return text.encode()
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"a key, value or header can't be read: {error}") from error


def bytes_to_text(raw: bytes | None) -> Text:
    """The JSON form of bytes: text if it is UTF-8, else base64."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64(base64=base64.b64encode(raw).decode())


# --- cluster and brokers -------------------------------------------------------------------------


class BrokerInfo(Answer):
    """One registered broker. `state` is starting, recovering, running or draining."""

    id: int
    url: str
    state: str
    rack: str | None = None
    version: str = ""


class ClusterInfo(Answer):
    """The cluster as a client needs it: who is there and how to reach them."""

    cluster_id: str
    controller_id: int | None
    brokers: list[BrokerInfo]
    feature_level: int
    topics: int
    partitions: int


class Recovering(Answer):
    """How much of the start-up is left: partitions to check, of so many."""

    remaining: int
    total: int


class BrokerDetail(BrokerInfo, kw_only=True):
    """One broker from within."""

    session: int
    generation: list[int]
    led_partitions: int
    offline_partitions: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    storage_full: bool
    recovering: Recovering | None = None


class BrokerList(Answer):
    """All registered brokers."""

    brokers: list[BrokerInfo]


# --- topics --------------------------------------------------------------------------------------


class TopicCreate(Body):
    """A topic to make. What is left out takes the cluster's default."""

    name: Name
    partitions: PartitionCount | None = None
    replicas: Annotated[int, Meta(ge=1, le=32)] | None = None
    config: dict[str, ConfigValue] = {}


class TopicAlter(Body):
    """Changes to a topic: settings (null goes back to the default), a larger partition count, and
    the number of replicas, which are then added or taken away in the background."""

    config: dict[str, ConfigValue | None] = {}
    partitions: PartitionCount | None = None
    replicas: Annotated[int, Meta(ge=1, le=32)] | None = None


class PartitionInfo(Answer):
    """One partition. `leader` is None while nobody leads it; offsets and size are the leader's and
    None where this broker can't know them. `elr` are replicas that left the ISR with all committed
    records. `error` says why a partition is offline."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    log_start_offset: int | None = None
    high_watermark: int | None = None
    size_bytes: int | None = None
    recovery: str | None = None
    error: ErrorBody | None = None
    elr: list[int] = []
    min_isr: int = 0


class ConfigEntry(Answer):
    """A setting in force and where it comes from: topic, cluster or default."""

    value: ConfigValue | None
    source: str


class TopicInfo(Answer):
    """A topic with all its partitions."""

    name: str
    topic_id: str
    internal: bool
    replicas: int
    config: dict[str, ConfigEntry]
    partitions: list[PartitionInfo]


class TopicSummary(Answer):
    """A topic in a list."""

    name: str
    topic_id: str
    internal: bool
    partitions: int
    replicas: int


class TopicList(Answer):
    """Topics by name."""

    topics: list[TopicSummary]


class TopicDeleted(Answer):
    """The id of the topic that is gone; its data is removed in the background."""

    topic_id: str


# --- records in JSON -----------------------------------------------------------------------------


class JsonRecord(Body):
    """A record to write. Without `partition` the key decides, without a key the broker."""

    key: Text = None
    value: Text = None
    headers: dict[str, Text] = {}
    timestamp_ms: TimestampMs | None = None
    partition: Partition | None = None


class JsonProduce(Body):
    """Records to write; order is kept within each partition."""

    records: Annotated[list[JsonRecord], Meta(min_length=1, max_length=100_000)]


class JsonProduced(Answer):
    """What became of one record: its place, or an error."""

    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    error: ErrorBody | None = None


class JsonProduceAnswer(Answer):
    """Results in the order of the request's records."""

    records: list[JsonProduced]


class JsonFetched(Answer):
    """A record read."""

    offset: int
    timestamp_ms: int
    key: Text
    value: Text
    headers: dict[str, Text]


class JsonFetchAnswer(Answer):
    """Records from the offset asked for; go on with `next_offset`."""

    topic: str
    partition: int
    records: list[JsonFetched]
    next_offset: int
    high_watermark: int
    log_start_offset: int


# --- offsets -------------------------------------------------------------------------------------


class OffsetQuery(Body):
    """One question about offsets.

    `at`: `earliest`, `latest` (the high watermark), `timestamp` (the first record at or after
    `timestamp_ms`) or `bytes` (the first offset so that `size_bytes` bytes lie between it and
    `offset`: for cutting work by size)."""

    topic: str
    partition: Partition
    at: Literal["earliest", "latest", "timestamp", "bytes"]
    timestamp_ms: TimestampMs | None = None
    offset: OffsetNumber | None = None
    size_bytes: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None


class OffsetsRequest(Body):
    """Questions, many at once."""

    queries: Annotated[list[OffsetQuery], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)]


class OffsetAnswer(Answer):
    """`offset` is None when no record is that late; `timestamp_ms` is that of the found record."""

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    leader_epoch: int = -1
    error: ErrorBody | None = None


class OffsetsAnswer(Answer):
    """Answers in the order of the questions."""

    answers: list[OffsetAnswer]


class DeleteRecordsPart(Body):
    """Remove the records before `before_offset`; -1 stands for the high watermark."""

    topic: str
    partition: Partition
    before_offset: Annotated[int, Meta(ge=-1, le=limits.OFFSET_MAX)]


class DeleteRecordsRequest(Body):
    """Partitions to cut at the front."""

    partitions: Annotated[
        list[DeleteRecordsPart], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class DeleteRecordsResult(Answer):
    """The log's new start, or an error."""

    topic: str
    partition: int
    log_start_offset: int | None = None
    error: ErrorBody | None = None


class DeleteRecordsAnswer(Answer):
    """Results in the order of the request."""

    partitions: list[DeleteRecordsResult]


# --- groups --------------------------------------------------------------------------------------


class CommitPart(Body):
    """The next offset that the group wants to read of a partition."""

    topic: str
    partition: Partition
    offset: OffsetNumber
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    metadata: Annotated[str, Meta(max_length=limits.OFFSET_METADATA_BYTES_MAX)] = ""
    topic_id: str | None = None


class CommitRequest(Body):
    """Offsets to commit together. A member says who it is and the last epoch it was told; without
    that only a group without live members takes them (or one that is forced). A part's `topic_id`
    refuses an offset that was meant for a topic of that name which is gone."""

    offsets: Annotated[
        list[CommitPart], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]
    member_id: Annotated[str, Meta(max_length=limits.MEMBER_ID_MAX)] = ""
    member_epoch: int = -1
    force: bool = False


class CommitResult(Answer):
    """Committed, unless `error` says otherwise."""

    topic: str
    partition: int
    error: ErrorBody | None = None


class CommitAnswer(Answer):
    """Results in the order of the request."""

    offsets: list[CommitResult]


class CommittedOffset(Answer):
    """A committed offset, the partition's high watermark and the distance between them (None
    where the leader can't be asked)."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int
    high_watermark: int | None = None
    lag: int | None = None


class OwnedTopic(Answer):
    """Partitions of one topic that a member owns."""

    topic: str
    topic_id: str
    partitions: list[int]


class MemberInfo(Answer):
    """A member of a group: what it asks for, what it owns, what it is to give up first and what it
    is to own in the end."""

    member_id: str
    instance_id: str | None
    client_id: str
    rack: str | None
    epoch: int
    topics: list[str]
    assignor: str
    assignment: list[OwnedTopic]
    revoking: list[OwnedTopic]
    target: list[OwnedTopic]
    has_left: bool = False


class GroupInfo(Answer):
    """A group with its committed offsets and members. `state`: Empty, Reconciling while partitions
    are on their way between members, or Stable."""

    group: str
    state: str
    coordinator: int
    offsets: list[CommittedOffset]
    epoch: int = 0
    members: list[MemberInfo] = []


class GroupSummary(Answer):
    """A group in a list."""

    group: str
    state: str
    topics: list[str]
    members: int = 0


class GroupHeartbeat(Body):
    """A member of a group joins, lives on and leaves.

    `epoch`: the last one that the member has done all of; 0 joins (under a fresh random
    `member_id`), -1 leaves, -2 leaves for a restart (with `instance_id`: what it owns is kept for
    the rest of its session). `heard_epoch`: the last one it was told, done or not. `wait_ms`: the
    answer may wait so long for news. Topics and the rest are told when joining and when they
    change, then with a larger `topics_version`."""

    member_id: Annotated[str, Meta(min_length=1, max_length=limits.MEMBER_ID_MAX)]
    epoch: Annotated[int, Meta(ge=-2)]
    heard_epoch: Annotated[int, Meta(ge=0)] = 0
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    topics: Annotated[list[Name], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] | None = None
    topics_version: Annotated[int, Meta(ge=0)] = 0
    instance_id: Annotated[str, Meta(min_length=1, max_length=249)] | None = None
    rack: Annotated[str, Meta(max_length=249)] | None = None
    assignor: Literal["uniform", "range"] = "uniform"
    session_timeout_ms: Annotated[int, Meta(ge=500, le=1_800_000)] = 45_000
    rebalance_timeout_ms: Annotated[int, Meta(ge=500, le=1_800_000)] = 60_000


class GroupHeartbeatAnswer(Answer):
    """`epoch` is what the member is told now, `assignment` all that it owns from then on: it gives
    up what is missing, and then says that epoch. None: nothing new. `coordinator` is the broker
    that answers for the group now: asking it spares a hop, any other one passes requests on."""

    member_id: str
    epoch: int
    session_timeout_ms: int
    assignment: list[OwnedTopic] | None = None
    coordinator: int = -1


class GroupList(Answer):
    """Groups by name."""

    groups: list[GroupSummary]


class Health(Answer):
    """`/livez` and `/readyz`: the state, and what is left to do while recovering."""

    state: str
    ready: bool
    recovering: Recovering | None = None
