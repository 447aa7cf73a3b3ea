"""Who may reach the brokers."""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.builders.metadata import metadata
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner


def network_policy(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """The two ports from anywhere, nothing else; what brokers reach is left open (the API server's
    address can't be selected)."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(owner, names.stateful_set(owner.name)),
        "spec": {
            "podSelector": {"matchLabels": names.selector(owner.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "ports": [
                        {"port": names.PORT, "protocol": "TCP"},
                        {"port": names.HEALTH_PORT, "protocol": "TCP"},
                    ]
                }
            ],
        },
    }
