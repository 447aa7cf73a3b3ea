"""Whom brokers are to the API server, and the little they may do there (docs/store.md)."""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.builders.metadata import metadata
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner

VERBS = ["get", "list", "watch", "create", "update", "delete"]
"""No patch: one without a revision overwrites (replication.md H8c)."""


def service_account(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """The brokers' account."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(owner, names.service_account(owner.name)),
    }


def role(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """State objects and leases of the namespace, nothing else."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(owner, names.service_account(owner.name)),
        "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": VERBS},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": VERBS},
        ],
    }


def role_binding(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """The account has the role."""
    name = names.service_account(owner.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(owner, name),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }
