"""The StatefulSet of the brokers: the ordinal is the broker's id.

Parallel, so that a whole cluster comes up at once and a broken pod doesn't keep others from
starting; OnDelete, so that the operator decides when a pod is restarted; claims are kept whatever
happens to it.
"""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.builders.metadata import metadata
from headrace.operator.builders.pods import pod_template
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner


def stateful_set(
    owner: Owner,
    spec: BrokerClusterSpec,
    *,
    replicas: int,
    annotations: dict[str, str] | None = None,
    rolled_for: str | None = None,
) -> JsonObject:
    """`replicas`: how many pods now, which is more than the spec says while brokers are being
    emptied. `annotations`: the operator's notes. `rolled_for`: see `pod_template`."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(owner, names.stateful_set(owner.name), annotations=annotations),
        "spec": {
            "replicas": replicas,
            "serviceName": names.headless_service(owner.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "selector": {"matchLabels": names.selector(owner.name)},
            "template": pod_template(owner, spec, rolled_for=rolled_for),
            "volumeClaimTemplates": [_claim(owner, spec)],
        },
    }


def _claim(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    storage = spec.storage
    claim: JsonObject = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(storage.size)}},
    }
    if storage.storage_class_name is not None:
        claim["storageClassName"] = storage.storage_class_name
    return {
        "metadata": {"name": names.DATA, "labels": names.selector(owner.name)},
        "spec": claim,
    }
