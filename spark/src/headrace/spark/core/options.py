"""What `.option(...)` may say: names, meanings and refusals, before anything is asked of a cluster.

Names and meanings are those of Spark's Kafka source with `kafka` replaced by `headrace`, so that a
job moves over by search and replace. An option that isn't known is an error that names the nearest
one: a misspelt `failOnDataLoss` must not be passed over. Spark hands keys over in lower case.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.protocol.errors import InvalidConfig

EARLIEST = -2
"""In JSON of offsets: the first record there is."""

LATEST = -1
"""In JSON of offsets: behind the last record."""

MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""`maxTriggerDelay` unless given: 15 minutes, as in the Kafka source."""

POLL_TIMEOUT_MS = 120_000
"""`headraceConsumer.pollTimeoutMs` unless given, as in the Kafka source."""

FETCH_BYTES = 4 << 20
"""`headrace.fetch.bytes` unless given: one answer of a broker; a task holds two."""

_SUBSCRIBING = ("subscribe", "subscribePattern", "assign")
_READ = (
    *_SUBSCRIBING,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "filterPushdown",
    "headraceConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "headrace.group.id",
    "headrace.fetch.bytes",
)
_WRITE = (
    "topic",
    "includeHeaders",
    "delivery",
    "owner",
    "seq",
    "headrace.acks",
    "headrace.compression.type",
    "headrace.linger.ms",
    "headrace.batch.size",
    "headrace.delivery.timeout.ms",
)
_CONNECTION = (
    "headrace.bootstrap.servers",
    "headrace.client.id",
    "headrace.token.path",
    "headrace.route",
    "headrace.request.timeout.ms",
    "headrace.connect.timeout.ms",
)
_SPARKS = ("checkpointLocation", "queryName", "outputMode", "path")
"""Options that Spark itself puts among ours."""

_INSTEAD = {
    "headrace.security.protocol": "give https:// addresses in headrace.bootstrap.servers",
    "headrace.sasl.": "give headrace.token.path, a file with a bearer token",
    "headrace.ssl.": "give https:// addresses; certificates are the system's",
    "headrace.auto.offset.reset": "use startingOffsets",
    "headrace.enable.auto.commit": "Spark keeps the offsets; headrace.group.id publishes them",
    "headrace.isolation.level": "only committed records are read, always",
    "headrace.key.deserializer": "keys are binary; cast or decode the column",
    "headrace.value.deserializer": "values are binary; cast or decode the column",
    "headrace.key.serializer": "give the column key as string or binary",
    "headrace.value.serializer": "give the column value as string or binary",
    "headrace.transactional.id": "use the options owner and seq",
    "kafka.": "write headrace. instead of kafka.",
    "kafkaconsumer.": "write headraceConsumer. instead of kafkaConsumer.",
}
_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """How the cluster is reached, from the driver and from every executor."""

    bootstrap: str
    client_id: str
    token_path: str | None
    route: Literal["auto", "direct", "bootstrap"]
    request_timeout_ms: int
    connect_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which topics, or partitions, are read: exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Partition, ...] = ()

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that must exist; none for a pattern."""
        return self.topics or tuple(sorted({topic for topic, _ in self.assigned}))

    def partitions_of(self, topic: str, count: int) -> list[int]:
        """Which of a topic's `count` partitions are wanted."""
        if self.assigned:
            return sorted(number for name, number in self.assigned if name == topic)
        if self.pattern is not None:
            return list(range(count)) if re.fullmatch(self.pattern, topic) else []
        return list(range(count)) if topic in self.topics else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to begin or end: an end of the log, offsets by partition, one time, or times by
    partition (ms). `ids` are the topics' ids, where the JSON came from a checkpoint."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    by_partition: Mapping[Partition, int] = field(default_factory=dict)
    time_ms: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Everything that a read may be told. None: not given."""

    connect: ConnectOptions
    subscription: Subscription
    starting: Place | None
    ending: Place | None
    late_start: Literal["error", "latest"]
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    filter_pushdown: bool
    group: str | None
    poll_timeout_ms: int
    fetch_bytes: int

    def for_batch(self) -> ReadOptions:
        """The same, once it is clear that a batch is read.

        Raises:
            InvalidConfig: the range can't be one.
        """
        if self.starting is not None and _names(self.starting, "latest", LATEST):
            raise InvalidConfig("startingOffsets can't be latest (-1) in a batch: nothing follows")
        if self.ending is not None and _names(self.ending, "earliest", EARLIEST):
            raise InvalidConfig("endingOffsets can't be earliest (-2): nothing lies before it")
        return self

    def for_stream(self) -> ReadOptions:
        """The same, once it is clear that a stream is read.

        Raises:
            InvalidConfig: an end is given.
        """
        if self.ending is not None:
            raise InvalidConfig(
                "a stream has no end: endingOffsets, endingTimestamp and endingOffsetsByTimestamp"
                " are for batches; to read up to now and stop, use trigger(availableNow=True)"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Everything that a write may be told. `owner` and `seq` name a batch write so that it can be
    told apart from another try of the same one (`foreachBatch`: the query and its batch id)."""

    connect: ConnectOptions
    topic: str | None
    owner: str | None
    seq: int | None
    acks: str
    compression: str | None
    linger_ms: int
    batch_bytes: int
    delivery_timeout_ms: int


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """The options of `read` or `readStream`.

    Raises:
        InvalidConfig: unknown, malformed or contradicting ones.
    """
    given = _Given(options, (*_READ, *_CONNECTION))
    smallest, largest = given.count("minOffsetsPerTrigger"), given.count("maxOffsetsPerTrigger")
    if smallest and largest and smallest > largest:
        raise InvalidConfig(
            f"minOffsetsPerTrigger ({smallest}) is above maxOffsetsPerTrigger ({largest})"
        )
    subscription = _subscription(given)
    return ReadOptions(
        connect=_connect(given),
        subscription=subscription,
        starting=_place(given, "starting"),
        ending=_place(given, "ending"),
        late_start=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest")),
        max_offsets_per_trigger=largest,
        min_offsets_per_trigger=smallest,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        max_bytes_per_trigger=given.count("maxBytesPerTrigger"),
        min_partitions=given.count("minPartitions"),
        max_records_per_partition=given.count("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        filter_pushdown=given.flag("filterPushdown", default=False),
        group=_group(given, subscription),
        poll_timeout_ms=_poll_timeout_ms(given),
        fetch_bytes=given.count("headrace.fetch.bytes") or FETCH_BYTES,
    )


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """The options of `write` or `writeStream`.

    Raises:
        InvalidConfig: unknown, malformed or contradicting ones.
    """
    given = _Given(options, (*_WRITE, *_CONNECTION))
    given.choice("delivery", ("at-least-once",))
    owner, seq = given.text("owner"), given.text("seq")
    if (owner is None) != (seq is None):
        raise InvalidConfig("owner and seq name a write together: give both or neither")
    if seq is not None and not seq.isdecimal():
        raise InvalidConfig(f"seq is a whole number that grows with each write, got {seq!r}")
    return WriteOptions(
        connect=_connect(given),
        topic=given.text("topic"),
        owner=owner,
        seq=None if seq is None else int(seq),
        acks=given.choice("headrace.acks", ("all", "1", "0", "-1")).replace("-1", "all"),
        compression=given.choice("headrace.compression.type", ("", "none", "lz4", "zstd")) or None,
        linger_ms=given.whole("headrace.linger.ms", 0),
        batch_bytes=given.count("headrace.batch.size") or 1 << 20,
        delivery_timeout_ms=given.count("headrace.delivery.timeout.ms") or 120_000,
    )


class _Given:
    """The options as given, each looked at by its documented name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in (*known, *_SPARKS)}
        for name in self._values:
            if name not in names:
                raise InvalidConfig(_unknown(name, names))

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is None:
            return None
        if not value.strip():
            raise InvalidConfig(f"option {name} is empty")
        return value.strip()

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or int(value) < 1:
            raise InvalidConfig(f"option {name} is a whole number above 0, got {value!r}")
        return int(value)

    def whole(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is not None and not value.isdecimal():
            raise InvalidConfig(f"option {name} is a whole number, got {value!r}")
        return default if value is None else int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidConfig(f"option {name} is true or false, got {value!r}")
        return value.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> Any:
        """One of the choices; the first is the default."""
        value = self.text(name)
        if value is None:
            return choices[0]
        if value.lower() not in choices:
            listed = ", ".join(choice for choice in choices if choice)
            raise InvalidConfig(f"option {name} is one of {listed}, got {value!r}")
        return value.lower()

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.lower())
        if match is None:
            raise InvalidConfig(f"option {name} is a time like 500ms, 30s or 15m, got {value!r}")
        number, unit = int(match[1]), match[2] or "ms"
        return number // 1000 if unit == "us" else number * _UNIT_MS[unit]

    def mapping(self, name: str) -> Any:
        """A JSON object."""
        value = self.text(name)
        try:
            found = json.loads(value or "")
        except ValueError as error:
            raise InvalidConfig(f"option {name} is not JSON ({error}): {value!r}") from None
        if not isinstance(found, dict) or not found:
            raise InvalidConfig(f"option {name} is a JSON object with topics, got {value!r}")
        return found


def _unknown(name: str, names: Mapping[str, str]) -> str:
    for start, advice in _INSTEAD.items():
        if name.startswith(start):
            return f"option {name!r} is not known to Headrace: {advice}"
    near = difflib.get_close_matches(name, names, n=1)
    advice = f"did you mean {names[near[0]]!r}?" if near else "the documentation lists them"
    return f"option {name!r} is not known to Headrace; {advice}"


def _connect(given: _Given) -> ConnectOptions:
    bootstrap = given.text("headrace.bootstrap.servers")
    if bootstrap is None:
        raise InvalidConfig(
            "option headrace.bootstrap.servers is missing: addresses of brokers that the driver"
            " and the executors can reach, as http://HOST:9420"
        )
    return ConnectOptions(
        bootstrap=",".join(_address(each) for each in bootstrap.split(",") if each.strip()),
        client_id=given.text("headrace.client.id") or "headrace-spark",
        token_path=given.text("headrace.token.path"),
        route=given.choice("headrace.route", ("auto", "direct", "bootstrap")),
        request_timeout_ms=given.count("headrace.request.timeout.ms") or 30_000,
        connect_timeout_ms=given.count("headrace.connect.timeout.ms") or 5_000,
    )


def _address(text: str) -> str:
    """`host:port`, as Kafka's servers are given, is an address as well."""
    text = text.strip()
    return text if "://" in text else f"http://{text}"


def _subscription(given: _Given) -> Subscription:
    chosen = [name for name in _SUBSCRIBING if given.text(name) is not None]
    if len(chosen) != 1:
        raise InvalidConfig(
            "give exactly one of subscribe, subscribePattern and assign;"
            f" {' and '.join(chosen) + ' were' if chosen else 'none was'} given"
        )
    text = given.text(chosen[0]) or ""
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidConfig(
                f"subscribePattern is not a regular expression ({error}): {text!r}"
            ) from None
        return Subscription(pattern=text)
    if chosen[0] == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
        if not topics:
            raise InvalidConfig(f"option subscribe names no topic: {text!r}")
        return Subscription(topics=topics)
    assigned: set[Partition] = set()
    for topic, numbers in given.mapping("assign").items():
        if not isinstance(numbers, list) or not numbers or not all(map(_is_partition, numbers)):
            raise InvalidConfig(
                'option assign is JSON like {"orders": [0, 1]},'
                f" got {json.dumps(numbers)} for topic {topic!r}"
            )
        assigned.update((topic, number) for number in numbers)
    return Subscription(assigned=tuple(sorted(assigned)))


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _place(given: _Given, side: Literal["starting", "ending"]) -> Place | None:
    """One time for all goes before times by partition, and those before offsets, as in Kafka's."""
    text = given.text(f"{side}Timestamp")
    if text is not None:
        if not text.isdecimal():
            raise InvalidConfig(
                f"option {side}Timestamp is milliseconds since 1970 (UTC), got {text!r}"
            )
        return Place(kind="time", time_ms=int(text))
    name = f"{side}OffsetsByTimestamp"
    if given.text(name) is not None:
        times, _ = _by_partition(given.mapping(name), name, lowest=0)
        return Place(kind="times", by_partition=times)
    name = f"{side}Offsets"
    text = given.text(name)
    if text is None:
        return None
    if text.lower() == "earliest":
        return Place(kind="earliest")
    if text.lower() == "latest":
        return Place(kind="latest")
    if not text.startswith("{"):
        raise InvalidConfig(
            f'option {name} is earliest, latest or JSON like {{"orders": {{"0": 23, "1": -2}}}},'
            f" got {text!r}"
        )
    offsets, ids = _by_partition(given.mapping(name), name, lowest=EARLIEST)
    return Place(kind="offsets", by_partition=offsets, ids=ids)


def _by_partition(
    found: Mapping[str, Any], name: str, *, lowest: int
) -> tuple[dict[Partition, int], dict[str, str]]:
    numbers: dict[Partition, int] = {}
    ids: dict[str, str] = {}
    for topic, inner in found.items():
        if not isinstance(inner, dict) or not inner:
            raise InvalidConfig(f"option {name}: topic {topic!r} needs an object with partitions")
        for partition, value in inner.items():
            if partition == "id" and isinstance(value, str):
                ids[topic] = value
            elif not partition.isdecimal() or isinstance(value, bool) or not isinstance(value, int):
                raise InvalidConfig(
                    f"option {name}: topic {topic!r} has {json.dumps({partition: value})}; a"
                    ' partition and a number are wanted, like "0": 23'
                )
            elif value < lowest:
                raise InvalidConfig(
                    f"option {name}: {value} for {topic}/{partition} is too low"
                    + ("; -2 is earliest, -1 latest" if lowest == EARLIEST else "")
                )
            else:
                numbers[topic, int(partition)] = value
    return numbers, ids


def _group(given: _Given, subscription: Subscription) -> str | None:
    """The group in whose name offsets are published. With a prefix only, the name follows from the
    subscription, so that a restarted query goes on with the same one."""
    group, prefix = given.text("headrace.group.id"), given.text("groupIdPrefix")
    if group is not None or prefix is None:
        return group
    names = [re.sub(r"[^A-Za-z0-9._-]+", "-", topic) for topic in subscription.named_topics]
    what = "-".join(names) or re.sub(r"[^A-Za-z0-9._-]+", "-", subscription.pattern or "")
    return f"{prefix}-{what.strip('-') or 'pattern'}"[:200]


def _poll_timeout_ms(given: _Given) -> int:
    """How long a read may make no progress. The retries of the Kafka source's executors come on
    top of its time limit there; here one limit holds for all."""
    retries = given.whole("fetchOffset.numRetries", 3)
    interval_ms = given.duration_ms("fetchOffset.retryIntervalMs", 10)
    limit_ms = given.duration_ms("headraceConsumer.pollTimeoutMs", POLL_TIMEOUT_MS)
    return max(limit_ms, retries * interval_ms)


def _names(place: Place, end: str, number: int) -> bool:
    return place.kind == end or (place.kind == "offsets" and number in place.by_partition.values())
