"""Names and labels of what the operator makes. Pure; everything else asks here.

The store's own objects (docs/store.md) have another label, so that none of these is ever taken for
one of them: `headrace.dev/cluster` is the store's.
"""

from __future__ import annotations

GROUP = "headrace.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

PORT = 9420
HEALTH_PORT = 9421

PAUSE = f"{GROUP}/pause-reconciliation"
ROLL = f"{GROUP}/manual-rolling-update"
DELETE_POD_AND_PVC = f"{GROUP}/delete-pod-and-pvc"
SKIP_SCALE_DOWN_CHECK = f"{GROUP}/skip-broker-scaledown-check"
RACK = f"{GROUP}/rack"
"""Annotation of a pod: the rack of its node, copied by the operator."""

REVISION = f"{GROUP}/revision"
"""Annotation of a pod: a hash of the template it was made from."""

ROLLED_FOR = f"{GROUP}/rolled-for"
"""Annotation of the pod template: the last `manual-rolling-update` of the BrokerCluster."""

CORDONED = f"{GROUP}/cordoned"
"""Annotation of the StatefulSet: brokers that the operator has cordoned."""

LIVE_CONFIG = f"{GROUP}/live-config"
"""Annotation of the StatefulSet: settings of the whole cluster that the operator has set."""

FINALIZER = f"{GROUP}/finalizer"

MANAGED_BY = "headrace-operator"
DATA = "data"
"""Name of the volume claim template; a claim is `data-<pod>`."""


def labels(cluster: str) -> dict[str, str]:
    """What every object of a cluster carries."""
    return {**selector(cluster), "app.kubernetes.io/managed-by": MANAGED_BY}


def selector(cluster: str) -> dict[str, str]:
    """What finds the brokers' pods. Never changes: a StatefulSet's selector can't."""
    return {
        "app.kubernetes.io/name": "headrace",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": "broker",
    }


def selector_text(cluster: str) -> str:
    """The selector as a string, for the scale subresource."""
    return ",".join(f"{key}={value}" for key, value in selector(cluster).items())


def stateful_set(cluster: str) -> str:
    """The brokers."""
    return cluster


def client_service(cluster: str) -> str:
    """Where clients connect first."""
    return cluster


def headless_service(cluster: str) -> str:
    """What gives each pod a name."""
    return f"{cluster}-brokers"


def config_map(cluster: str) -> str:
    """The brokers' settings file."""
    return f"{cluster}-config"


def secret(cluster: str) -> str:
    """What brokers know each other by."""
    return f"{cluster}-secret"


def service_account(cluster: str) -> str:
    """Whom brokers are to the API server; its Role and RoleBinding have the same name."""
    return f"{cluster}-broker"


def pod(cluster: str, broker_id: int) -> str:
    """A broker's pod: its ordinal is the broker's id."""
    return f"{cluster}-{broker_id}"


def claim(cluster: str, broker_id: int) -> str:
    """A broker's volume claim."""
    return f"{DATA}-{pod(cluster, broker_id)}"


def bootstrap(namespace: str, cluster: str) -> str:
    """The address that clients in the Kubernetes cluster are told."""
    return f"http://{client_service(cluster)}.{namespace}.svc:{PORT}"
