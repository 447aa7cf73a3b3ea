"""Which settings a topic has: one table of key, type, default, bounds and meaning.

Keys are Kafka's where the meaning is. A value comes from the topic, else the cluster's defaults,
else the table; `effective` says which, `resolve` gives typed values to those who act on them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from headrace.broker.core.model import ConfigValue
from headrace.protocol.errors import InvalidConfig
from headrace.protocol.limits import BATCH_BYTES_MAX

INT64_MAX = (1 << 63) - 1

DISTINCT_MAX = 1_024
"""Different combinations of settings that are kept worked out: topics have few, and ask often."""

REPLICAS_MAX = 32

CleanupPolicy = Literal["delete", "compact", "compact,delete"]
Overflow = Literal["discard", "reject"]
FlushPolicy = Literal["none", "interval", "batch"]
CompressionType = Literal["producer", "none", "lz4", "zstd"]
Source = Literal["topic", "cluster", "default"]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting. `default` None: it depends on the replica count. `low` and `high` bound a
    number, `choices` a word or words; a ratio is a number from 0 to 1."""

    name: str
    kind: Literal["int", "bool", "ratio", "word", "words"]
    default: ConfigValue | None
    doc: str
    low: int = 0
    high: int = INT64_MAX
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """A value in force and where it comes from."""

    value: ConfigValue
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings in force, typed. -1 of a retention means for ever, without bound."""

    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    cleanup_policy: CleanupPolicy
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    record_ttl_ms: int
    min_insync_replicas: int
    max_message_bytes: int
    compression_type: CompressionType
    flush_policy: FlushPolicy
    flush_ms: int
    unclean_leader_election: bool
    overflow: Overflow
    producer_byte_rate: int
    consumer_byte_rate: int


_KEYS = (
    ConfigKey(
        "retention.ms", "int", 604_800_000,
        "Segments are removed when their newest batch was appended longer ago; -1 keeps them.",
        low=-1,
    ),
    ConfigKey(
        "retention.bytes", "int", -1,
        "The oldest segments of a partition are removed above this size; -1 is no bound.", low=-1,
    ),
    ConfigKey(
        "segment.bytes", "int", 1 << 30, "A segment is closed when it would grow beyond this.",
        low=1 << 10, high=(1 << 31) - 1,
    ),
    ConfigKey(
        "segment.ms", "int", 604_800_000,
        "A segment is closed this long after its first batch, so that retention can remove it.",
        low=1,
    ),
    ConfigKey(
        "index.interval.bytes", "int", 4_096,
        "Log bytes between two index entries: fewer make larger indexes and shorter searches.",
        high=(1 << 31) - 1,
    ),
    ConfigKey(
        "cleanup.policy", "words", "delete",
        "What happens to old segments: delete removes them by retention.ms and retention.bytes,"
        " compact keeps the latest record of each key; compact,delete does both.",
        choices=("compact", "delete"),
    ),
    ConfigKey(
        "delete.retention.ms", "int", 86_400_000,
        "How long compaction keeps a record with a null value (a tombstone) after everything older"
        " of its key is gone: readers that take longer from the start may miss the deletion.",
    ),
    ConfigKey(
        "min.compaction.lag.ms", "int", 0,
        "Segments whose newest batch was appended more recently are not compacted.",
    ),
    ConfigKey(
        "max.compaction.lag.ms", "int", INT64_MAX,
        "A log with records older than this that were never compacted is compacted whatever its"
        " dirty ratio; an idle segment is closed for it.",
        low=1,
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio", "ratio", 0.5,
        "A log is compacted once this share of its closed segments' bytes was never compacted.",
    ),
    ConfigKey(
        "record.ttl.ms", "int", -1,
        "Age at which a record expires, by its own timestamp; -1: never. Batches that are expired"
        " as a whole are not handed out any more; cleaning removes them, and single records.",
        low=-1,
    ),
    ConfigKey(
        "min.insync.replicas", "int", None,
        "Replicas that must have a record before it is committed; by default 2 from three replicas"
        " on, else 1; never more than there are replicas.",
        low=1, high=REPLICAS_MAX,
    ),
    ConfigKey(
        "max.message.bytes", "int", 1_048_588, "The largest batch that is taken, as sent.",
        low=88, high=BATCH_BYTES_MAX,
    ),
    ConfigKey(
        "overflow", "word", "discard",
        "What happens at retention.bytes: discard removes the oldest segments, reject refuses new"
        " records (topic_full) until some have left by retention.ms or were deleted.",
        choices=("discard", "reject"),
    ),
    ConfigKey(
        "producer.byte.rate", "int", -1,
        "Bytes a second that all producers together may send to the topic on one broker; -1 is no"
        " bound. Over it answers ask for a delay, and who doesn't wait is refused (throttled).",
        low=-1,
    ),
    ConfigKey(
        "consumer.byte.rate", "int", -1,
        "Bytes a second that all consumers together may read from the topic on one broker; -1 is"
        " no bound.",
        low=-1,
    ),
    ConfigKey(
        "compression.type", "word", "producer",
        "What producers use that don't choose for themselves; the broker never recompresses.",
        choices=("producer", "none", "lz4", "zstd"),
    ),
    ConfigKey(
        "flush.policy", "word", "auto",
        "When appended bytes are forced to the disk: batch = before acks=all is answered,"
        " interval = every flush.ms, none = when the system does; auto = batch for one replica,"
        " interval for more.",
        choices=("auto", "none", "interval", "batch"),
    ),
    ConfigKey("flush.ms", "int", 1_000, "The interval of flush.policy=interval.", low=1),
    ConfigKey(
        "unclean.leader.election.enable", "bool", False,
        "Whether a replica that may lack records may lead when no other can: losing records"
        " instead of waiting.",
    ),
)  # fmt: skip

TOPIC_CONFIG: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}
"""The table, by key."""


def validate(
    config: Mapping[str, ConfigValue],
) -> dict[str, ConfigValue]:
    """The settings with values of the right type ("7" becomes 7).

    Raises:
        InvalidConfig: names the key, what is wrong with it, and a similar key if there is one.
    """
    checked = {name: normalise(name, value) for name, value in config.items()}
    low, high = checked.get("min.compaction.lag.ms", 0), checked.get("max.compaction.lag.ms")
    if high is not None and int(low) > int(high):
        raise InvalidConfig("min.compaction.lag.ms: it is above max.compaction.lag.ms")
    return checked


def check_key(name: str) -> str:
    """`name` itself if there is such a setting.

    Raises:
        InvalidConfig: there is none; names a similar one.
    """
    if name not in TOPIC_CONFIG:
        raise InvalidConfig(f"{name[:80]!r} is no topic setting{suggestion(name, TOPIC_CONFIG)}")
    return name


def normalise(name: str, value: ConfigValue) -> ConfigValue:
    """One value as the table wants it.

    Raises:
        InvalidConfig: see `validate`.
    """
    return normalise_by(TOPIC_CONFIG[check_key(name)], value)


def normalise_by(key: ConfigKey, value: ConfigValue) -> ConfigValue:
    """One value as its key wants it.

    Raises:
        InvalidConfig: it is of another type or out of bounds.
    """
    return _PARSERS[key.kind](key, value)


def min_insync_replicas(
    config: Mapping[str, ConfigValue],
    defaults: Mapping[str, ConfigValue],
    *,
    replicas: int,
) -> int:
    """The minimum in force: the topic's, else the cluster's, else 2 from three replicas on and 1
    below; never more than there are replicas."""
    value = effective(config, defaults, replicas=replicas)["min.insync.replicas"].value
    return int(value)


def effective(
    config: Mapping[str, ConfigValue],
    defaults: Mapping[str, ConfigValue],
    *,
    replicas: int,
) -> dict[str, Setting]:
    """All settings in force. A stored value that this version can't read counts as not set: it was
    written by another version or by hand, and no topic stands still for that."""
    return dict(_effective(_frozen(config), _frozen(defaults), replicas))


_Frozen = frozenset[tuple[str, type, ConfigValue]]


def _frozen(config: Mapping[str, ConfigValue]) -> _Frozen:
    """A key for what is kept worked out; with the types, as 1 equals true."""
    return frozenset((name, type(value), value) for name, value in config.items())


@lru_cache(DISTINCT_MAX)
def _effective(own: _Frozen, cluster: _Frozen, replicas: int) -> Mapping[str, Setting]:
    config = {name: value for name, _, value in own}
    defaults = {name: value for name, _, value in cluster}
    found: dict[str, Setting] = {}
    for key in _KEYS:
        setting = first_valid(key, (("topic", config), ("cluster", defaults)))
        if setting is None:
            computed = 2 if replicas >= 3 else 1
            setting = Setting(key.default if key.default is not None else computed, "default")
        found[key.name] = setting
    minimum = found["min.insync.replicas"]
    capped = min(int(minimum.value), replicas)
    found["min.insync.replicas"] = Setting(capped, minimum.source)
    return found


def resolve(
    config: Mapping[str, ConfigValue],
    defaults: Mapping[str, ConfigValue],
    *,
    replicas: int,
) -> TopicConfig:
    """The settings in force, typed, with `auto` turned into what it stands for."""
    return _resolved(_frozen(config), _frozen(defaults), replicas)


@lru_cache(DISTINCT_MAX)
def _resolved(own: _Frozen, cluster: _Frozen, replicas: int) -> TopicConfig:
    value = {name: setting.value for name, setting in _effective(own, cluster, replicas).items()}
    flush = value["flush.policy"]
    if flush == "auto":
        flush = "batch" if replicas == 1 else "interval"
    return TopicConfig(
        retention_ms=int(value["retention.ms"]),
        retention_bytes=int(value["retention.bytes"]),
        segment_bytes=int(value["segment.bytes"]),
        segment_ms=int(value["segment.ms"]),
        index_interval_bytes=int(value["index.interval.bytes"]),
        cleanup_policy=cast(CleanupPolicy, value["cleanup.policy"]),
        delete_retention_ms=int(value["delete.retention.ms"]),
        min_compaction_lag_ms=int(value["min.compaction.lag.ms"]),
        max_compaction_lag_ms=int(value["max.compaction.lag.ms"]),
        min_cleanable_dirty_ratio=float(value["min.cleanable.dirty.ratio"]),
        record_ttl_ms=int(value["record.ttl.ms"]),
        min_insync_replicas=int(value["min.insync.replicas"]),
        max_message_bytes=int(value["max.message.bytes"]),
        compression_type=cast(CompressionType, value["compression.type"]),
        flush_policy=cast(FlushPolicy, flush),
        flush_ms=int(value["flush.ms"]),
        unclean_leader_election=bool(value["unclean.leader.election.enable"]),
        overflow=cast(Overflow, value["overflow"]),
        producer_byte_rate=int(value["producer.byte.rate"]),
        consumer_byte_rate=int(value["consumer.byte.rate"]),
    )


def first_valid(
    key: ConfigKey, sources: tuple[tuple[Source, Mapping[str, ConfigValue]], ...]
) -> Setting | None:
    """The value of the first source that has one which this version can read."""
    for source, values in sources:
        if key.name in values:
            try:
                return Setting(normalise_by(key, values[key.name]), source)
            except InvalidConfig:
                continue
    return None


def suggestion(name: str, table: Mapping[str, ConfigKey]) -> str:
    """For an error about an unknown key: a similar one of the table, or all of them."""
    near = difflib.get_close_matches(
        name[:80].lower().replace("_", ".").replace("-", "."), table, n=1
    )
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(table)}"


def _parse_int(key: ConfigKey, value: ConfigValue) -> ConfigValue:
    number = _whole_number(value)
    if number is None:
        raise InvalidConfig(f"{key.name}: {_shown(value)} is not a whole number")
    if not key.low <= number <= key.high:
        raise InvalidConfig(f"{key.name}: {_shown(number)} is not between {key.low} and {key.high}")
    return number


def _whole_number(value: ConfigValue) -> int | None:
    """The number that a value stands for. Text is looked at by length first: turning a million
    digits into a number takes long, and no setting has more than twenty."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    text = value.strip()
    digits = text.removeprefix("-")
    return int(text) if len(digits) <= 20 and digits.isascii() and digits.isdigit() else None


def _parse_bool(key: ConfigKey, value: ConfigValue) -> ConfigValue:
    word = str(value).strip().lower()
    if word not in {"true", "false"}:
        raise InvalidConfig(f"{key.name}: {_shown(value)} is neither true nor false")
    return word == "true"


def _parse_word(key: ConfigKey, value: ConfigValue) -> ConfigValue:
    word = str(value).strip().lower()
    if word not in key.choices:
        raise InvalidConfig(f"{key.name}: {_shown(value)} is none of {', '.join(key.choices)}")
    return word


def _parse_words(key: ConfigKey, value: ConfigValue) -> ConfigValue:
    """Some of the choices, each at most once counted, in the table's order."""
    words = {word.strip() for word in str(value).lower().split(",")}
    if not words <= set(key.choices):
        raise InvalidConfig(f"{key.name}: {_shown(value)} is not made of {', '.join(key.choices)}")
    return ",".join(choice for choice in key.choices if choice in words)


def _parse_ratio(key: ConfigKey, value: ConfigValue) -> ConfigValue:
    if isinstance(value, str) and len(value) <= _RATIO_CHARACTERS_MAX:
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, bool | str) or not 0 <= value <= 1:
        raise InvalidConfig(f"{key.name}: {_shown(value)} is not a number from 0 to 1")
    return float(value)


_RATIO_CHARACTERS_MAX = 30


def _shown(value: ConfigValue) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= INT64_MAX else "the number"
    return text if len(text) <= 60 else text[:57] + "..."


_PARSERS: Mapping[str, Callable[[ConfigKey, ConfigValue], ConfigValue]] = {
    "int": _parse_int,
    "bool": _parse_bool,
    "ratio": _parse_ratio,
    "words": _parse_words,
    "word": _parse_word,
}
