"""Which settings a topic has: one table of key, type, default, bounds and meaning.

Keys are Kafka's where the meaning is. A value comes from the topic, else the cluster's defaults,
else the table; `effective` says which, `resolve` gives typed values to those who act on them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from headrace.broker.core.model import ConfigValue
from headrace.protocol.errors import InvalidConfig
from headrace.protocol.limits import BATCH_BYTES_MAX

INT64_MAX = (1 << 63) - 1
REPLICAS_MAX = 32

CleanupPolicy = Literal["delete", "compact"]
Overflow = Literal["discard", "reject"]
FlushPolicy = Literal["none", "interval", "batch"]
CompressionType = Literal["producer", "none", "lz4", "zstd"]
Source = Literal["topic", "cluster", "default"]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting. `default` None: it depends on the replica count. `low` and `high` bound a
    number, `choices` a word."""

    name: str
    kind: Literal["int", "bool", "word"]
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
        "cleanup.policy", "word", "delete", "What happens to old segments.",
        choices=("delete", "compact"),
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
    config: Mapping[str, ConfigValue], *, internal: bool = False
) -> dict[str, ConfigValue]:
    """The settings with values of the right type ("7" becomes 7).

    Raises:
        InvalidConfig: names the key, what is wrong with it, and a similar key if there is one.
    """
    checked = {name: normalise(name, value) for name, value in config.items()}
    if checked.get("cleanup.policy") == "compact" and not internal:
        raise InvalidConfig(
            "cleanup.policy: compact is not available for topics yet; leave it out or use delete"
        )
    return checked


def check_key(name: str) -> str:
    """`name` itself if there is such a setting.

    Raises:
        InvalidConfig: there is none; names a similar one.
    """
    if name not in TOPIC_CONFIG:
        raise InvalidConfig(f"{name[:80]!r} is no topic setting{_suggestion(name)}")
    return name


def normalise(name: str, value: ConfigValue) -> ConfigValue:
    """One value as the table wants it.

    Raises:
        InvalidConfig: see `validate`.
    """
    key = TOPIC_CONFIG[check_key(name)]
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
    found: dict[str, Setting] = {}
    for key in _KEYS:
        setting = _first_valid(key, (("topic", config), ("cluster", defaults)))
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
    value = {
        name: setting.value
        for name, setting in effective(config, defaults, replicas=replicas).items()
    }
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


def _first_valid(
    key: ConfigKey, sources: tuple[tuple[Source, Mapping[str, ConfigValue]], ...]
) -> Setting | None:
    for source, values in sources:
        if key.name in values:
            try:
                return Setting(normalise(key.name, values[key.name]), source)
            except InvalidConfig:
                continue
    return None


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(
        name[:80].lower().replace("_", ".").replace("-", "."), TOPIC_CONFIG, n=1
    )
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(TOPIC_CONFIG)}"


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


def _shown(value: ConfigValue) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= INT64_MAX else "the number"
    return text if len(text) <= 60 else text[:57] + "..."


_PARSERS: Mapping[str, Callable[[ConfigKey, ConfigValue], ConfigValue]] = {
    "int": _parse_int,
    "bool": _parse_bool,
    "word": _parse_word,
}
