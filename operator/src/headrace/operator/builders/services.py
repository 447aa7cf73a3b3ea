"""Two Services: a headless one that names each pod, also before it is ready (brokers find each
other while they recover), and one for clients, with ready brokers only."""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.builders.metadata import metadata
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner


def headless(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """What gives each pod a name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, names.headless_service(owner.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(owner.name),
            "ports": [_port("http", names.PORT), _port("health", names.HEALTH_PORT)],
        },
    }


def client(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """Where clients connect first."""
    template = spec.template.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(
            owner, names.client_service(owner.name), annotations=template.annotations
        ),
        "spec": {
            "type": template.type,
            "selector": names.selector(owner.name),
            "ports": [_port("http", names.PORT)],
        },
    }


def _port(name: str, number: int) -> JsonObject:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
