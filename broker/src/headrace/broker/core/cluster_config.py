"""What may be changed for the whole cluster while it runs: one table of key, default and meaning.

Two kinds of keys: those of the cluster itself, and every topic setting as the default of topics
that don't set it. A broker's own settings are not among them: they are read once, at its start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headrace.broker.core import topic_config
from headrace.broker.core.model import ConfigValue
from headrace.broker.core.topic_config import REPLICAS_MAX, ConfigKey, Setting
from headrace.protocol.errors import InvalidConfig
from headrace.protocol.limits import PARTITIONS_PER_TOPIC_MAX

_KEYS = (
    ConfigKey(
        "num.partitions", "int", 6, "Partitions of a topic that is created without a number.",
        low=1, high=PARTITIONS_PER_TOPIC_MAX,
    ),
    ConfigKey(
        "default.replication.factor", "int", 3,
        "Replicas of a topic that is created without a number; as many as there are live brokers if"
        " those are fewer.",
        low=1, high=REPLICAS_MAX,
    ),
    ConfigKey(
        "reassignment.throttle.bytes.per.second", "int", -1,
        "Bytes a second that a broker copies for replicas that are being added; -1 is no bound.",
        low=-1,
    ),
    ConfigKey(
        "reassignment.max.concurrent.moves", "int", 4,
        "Partitions that one broker may be receiving at a time while replicas are moved.",
        low=1, high=1_000,
    ),
    ConfigKey(
        "leader.rebalance.enable", "bool", True,
        "Whether leadership returns to the first replica of each assignment once it is in sync.",
    ),
    ConfigKey(
        "leader.rebalance.delay.ms", "int", 30_000,
        "How long that replica must have been in sync before, so that nothing flaps; up to a fifth"
        " more, not to move all at once.",
        low=0,
    ),
)  # fmt: skip

CLUSTER_CONFIG: Mapping[str, ConfigKey] = {
    **{key.name: key for key in _KEYS},
    **topic_config.TOPIC_CONFIG,
}
"""The table, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The cluster's own settings in force, typed."""

    num_partitions: int
    default_replication_factor: int
    reassignment_throttle: int
    reassignment_moves_max: int
    leader_rebalance: bool
    leader_rebalance_delay_ms: int


def altered(
    before: Mapping[str, ConfigValue],
    changes: Mapping[str, ConfigValue | None],
    *,
    static_keys: Collection[str] = (),
) -> dict[str, ConfigValue]:
    """The configuration after changes (None: back to the default).

    Raises:
        InvalidConfig: an unknown key, a value that isn't one, or one of the `static_keys`.
    """
    after = dict(before)
    for name, value in changes.items():
        _check_key(name, static_keys)
        if value is None:
            after.pop(name, None)
        else:
            after[name] = topic_config.normalise_by(CLUSTER_CONFIG[name], value)
    together = {*changes, "min.compaction.lag.ms", "max.compaction.lag.ms"}
    topics = topic_config.TOPIC_CONFIG.keys() & after.keys() & together
    topic_config.validate({name: after[name] for name in topics})
    return after


def effective(config: Mapping[str, ConfigValue]) -> dict[str, Setting]:
    """All settings in force. `min.insync.replicas` has no value of its own unless it is set: it
    depends on each topic's replicas."""
    found = {}
    for name, key in CLUSTER_CONFIG.items():
        setting = topic_config.first_valid(key, (("cluster", config),))
        if setting is not None:
            found[name] = setting
        elif key.default is not None:
            found[name] = Setting(key.default, "default")
    return found


def resolve(config: Mapping[str, ConfigValue]) -> ClusterConfig:
    """The cluster's own settings in force, typed."""
    value = {name: setting.value for name, setting in effective(config).items()}
    return ClusterConfig(
        num_partitions=int(value["num.partitions"]),
        default_replication_factor=int(value["default.replication.factor"]),
        reassignment_throttle=int(value["reassignment.throttle.bytes.per.second"]),
        reassignment_moves_max=int(value["reassignment.max.concurrent.moves"]),
        leader_rebalance=bool(value["leader.rebalance.enable"]),
        leader_rebalance_delay_ms=int(value["leader.rebalance.delay.ms"]),
    )


def _check_key(name: str, static_keys: Collection[str]) -> None:
    if name in CLUSTER_CONFIG:
        return
    if name in static_keys:
        raise InvalidConfig(
            f"{name} is each broker's own setting, read at its start: set it there (flag,"
            " environment or file) and restart the broker"
        )
    raise InvalidConfig(
        f"{name[:80]!r} is no cluster setting{topic_config.suggestion(name, CLUSTER_CONFIG)}"
    )
