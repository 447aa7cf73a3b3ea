"""The HTTP paths, used by client and server alike. `{…}` are path parameters."""

from __future__ import annotations

from urllib.parse import quote

CLUSTER = "/v1/cluster"
CLUSTER_CONFIG = "/v1/cluster/config"
CLUSTER_HEALTH = "/v1/cluster/health"
CLUSTER_RECOVER = "/v1/cluster/recover"
BROKERS = "/v1/brokers"
BROKER = "/v1/brokers/{broker_id}"
RESTART_CHECK = "/v1/brokers/{broker_id}/restart-check"
CORDON = "/v1/brokers/{broker_id}/cordon"
UNCORDON = "/v1/brokers/{broker_id}/uncordon"
DRAIN = "/v1/brokers/{broker_id}/drain"
PLACEMENT = "/v1/brokers/{broker_id}/placement"
REASSIGNMENTS = "/v1/reassignments"
TOPICS = "/v1/topics"
CREATE_TOPICS = "/v1/topics:create"
ALTER_TOPICS = "/v1/topics:alter"
DESCRIBE_TOPICS = "/v1/topics:describe"
TOPIC = "/v1/topics/{topic}"
RECORDS = "/v1/topics/{topic}/records"
PARTITION_RECORDS = "/v1/topics/{topic}/partitions/{partition}/records"
ELECT_LEADER = "/v1/topics/{topic}/partitions/{partition}/elect-leader"
PRODUCE = "/v1/produce"
FETCH = "/v1/fetch"
OFFSETS = "/v1/offsets"
DELETE_RECORDS = "/v1/delete-records"
GROUPS = "/v1/groups"
GROUP = "/v1/groups/{group}"
GROUP_HEARTBEAT = "/v1/groups/{group}/heartbeat"
GROUP_OFFSETS = "/v1/groups/{group}/offsets"
OPENAPI = "/openapi.json"

INTERNAL_PREFIX = "/v1/internal/"
"""Paths between brokers; always with the cluster secret."""

LIVEZ = "/livez"
READYZ = "/readyz"
METRICS = "/metrics"

DEFAULT_PORT = 9420
HEALTH_PORT = 9421


def fill(path: str, **values: object) -> str:
    """The path with its parameters put in, quoted."""
    return path.format(**{name: quote(str(value), safe="") for name, value in values.items()})
