"""How many brokers a node drain may take away at once."""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.builders.metadata import metadata
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner


def disruption_budget(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """One at a time. The broker's stop hands leadership over, and the next eviction waits until the
    pod is ready again, which it is with its replicas back in sync."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(owner, names.stateful_set(owner.name)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(owner.name)},
        },
    }
