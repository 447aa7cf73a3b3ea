"""Where objects are in the API: kinds, their groups and plurals. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from headrace.operator import names


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object."""

    name: str
    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The path of an object, of all of a namespace, or of all there are."""
        root = "api" if "/" not in self.api_version else "apis"
        parts = [root, *self.api_version.split("/")]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


BROKER_CLUSTER = Kind("BrokerCluster", names.API_VERSION, "brokerclusters")
TOPIC = Kind("Topic", names.API_VERSION, "topics")
CONSUMER_GROUP = Kind("ConsumerGroup", names.API_VERSION, "consumergroups")
CUSTOM = (BROKER_CLUSTER, TOPIC, CONSUMER_GROUP)

POD = Kind("Pod", "v1", "pods")
CLAIM = Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims")
CONFIG_MAP = Kind("ConfigMap", "v1", "configmaps")
SECRET = Kind("Secret", "v1", "secrets")
SERVICE = Kind("Service", "v1", "services")
SERVICE_ACCOUNT = Kind("ServiceAccount", "v1", "serviceaccounts")
EVENT = Kind("Event", "v1", "events")
NODE = Kind("Node", "v1", "nodes", namespaced=False)
STATEFUL_SET = Kind("StatefulSet", "apps/v1", "statefulsets")
DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets")
ROLE = Kind("Role", "rbac.authorization.k8s.io/v1", "roles")
ROLE_BINDING = Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings")
NETWORK_POLICY = Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies")
STORAGE_CLASS = Kind("StorageClass", "storage.k8s.io/v1", "storageclasses", namespaced=False)
LEASE = Kind("Lease", "coordination.k8s.io/v1", "leases")

KINDS = {
    each.name: each
    for each in (
        *CUSTOM, POD, CLAIM, CONFIG_MAP, SECRET, SERVICE, SERVICE_ACCOUNT, EVENT, NODE,
        STATEFUL_SET, DISRUPTION_BUDGET, ROLE, ROLE_BINDING, NETWORK_POLICY, STORAGE_CLASS, LEASE,
    )
}  # fmt: skip
"""All kinds that the operator has to do with, by name."""
