"""Settings of the whole cluster, changed while brokers run.

What this resource names it rules; a setting that is taken out of the spec goes back to its default;
settings that others made by Admin stay. Which ones are this resource's is noted on the StatefulSet
before they are set.
"""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.builders.config import OPERATORS_OWN, live_config
from headrace.operator.core.actions import SetLiveConfig
from headrace.operator.core.observed import Cluster
from headrace.operator.core.part import Part, warning
from headrace.operator.core.pods import annotation
from headrace.operator.spec import BrokerClusterSpec, ConfigValue

THROTTLE = "reassignment.throttle.bytes.per.second"
MOVES_MAX = "reassignment.max.concurrent.moves"


def wanted(spec: BrokerClusterSpec) -> dict[str, ConfigValue]:
    """What shall be set: `spec.config`, and what `spec.rebalance` says unless that has it too."""
    rebalance: dict[str, ConfigValue] = {
        THROTTLE: spec.rebalance.throttle_bytes_per_second,
        MOVES_MAX: spec.rebalance.max_concurrent_moves,
    }
    return {**rebalance, **live_config(spec)}


def noted(seen: Cluster) -> frozenset[str]:
    """The note on the StatefulSet."""
    found = seen.stateful_set
    text = "" if found is None else annotation(found, names.LIVE_CONFIG) or ""
    return frozenset(filter(None, text.split(",")))


def note(seen: Cluster) -> str:
    """What the note shall say: all that is or will be set, and what still has to be taken back."""
    keys = set(wanted(seen.spec))
    left = noted(seen) - keys
    config = seen.admin.config if seen.admin is not None else dict.fromkeys(left)
    return ",".join(sorted(keys | {key for key in left if key in config}))


def plan_live_config(seen: Cluster) -> Part:
    """What to change."""
    foreign = sorted(OPERATORS_OWN & set(seen.spec.config))
    told = f"spec.config names {', '.join(foreign)}, which the operator decides; ignored"
    conditions = (warning("InvalidConfig", told),) if foreign else ()
    if seen.admin is None or not noted(seen).issuperset(wanted(seen.spec)):
        return Part(conditions=conditions)
    config, keys = seen.admin.config, wanted(seen.spec)
    changes: dict[str, ConfigValue | None] = {
        key: value
        for key, value in keys.items()
        if key not in config or not is_same(config[key], value)
    }
    changes |= {key: None for key in sorted(noted(seen)) if key not in keys and key in config}
    return Part((SetLiveConfig(changes),) if changes else (), conditions)


def is_same(one: object, other: object) -> bool:
    """Whether two values mean the same: resources can only hold numbers and text."""
    return str(one).strip().lower() == str(other).strip().lower()
