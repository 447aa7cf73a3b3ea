"""The metadata that all built objects have."""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.spec import JsonObject, Owner


def metadata(
    owner: Owner,
    name: str,
    *,
    annotations: dict[str, str] | None = None,
) -> JsonObject:
    """Name, labels, and the owner, with which the object goes."""
    found: JsonObject = {
        "name": name,
        "namespace": owner.namespace,
        "labels": names.labels(owner.name),
        "ownerReferences": [owner_reference(owner)],
    }
    if annotations:
        found["annotations"] = dict(annotations)
    return found


def owner_reference(owner: Owner) -> JsonObject:
    """The BrokerCluster as owner. It isn't kept from being deleted by what it owns."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "BrokerCluster",
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
