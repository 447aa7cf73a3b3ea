"""A BrokerCluster on its way out. What it owns goes by Kubernetes' own garbage collection; only one
with `deleteClaim` waits for the operator, which deletes the data, and then the state of the cluster
that would be wrong without it: first the brokers, so that nobody writes it again.

Brokers whose pods don't go (a lost node) aren't waited for without end.
"""

from __future__ import annotations

import datetime

from headrace.operator import names
from headrace.operator.kube import paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.reconcile.look_at_cluster import brokers_pods, owner_of
from headrace.operator.reconcile.write_status import has_finalizer, set_finalizer
from headrace.operator.spec import JsonObject

POLL_S = 1.0
GIVE_UP_S = 600.0
"""Seconds after which brokers that still have a pod are waited for no more."""

STATE_LABEL = f"{names.GROUP}/cluster"
"""Label of the objects in which brokers keep the cluster's state (docs/store.md)."""


async def remove(kube: KubeClient, raw: JsonObject) -> float | None:
    """One step; in how many seconds the next.

    Raises:
        KubernetesError.
    """
    if not has_finalizer(raw):
        return None
    owner = owner_of(raw)
    stateful_set = await kube.get(paths.STATEFUL_SET, owner.namespace, owner.name)
    if stateful_set is not None and _is_owned(stateful_set, owner.uid):
        meta = stateful_set["metadata"]
        if not meta.get("deletionTimestamp"):
            await kube.delete(paths.STATEFUL_SET, owner.namespace, meta["name"], uid=meta["uid"])
        if deleting_s(raw) < GIVE_UP_S:
            return POLL_S
    if deleting_s(raw) < GIVE_UP_S and await brokers_pods(kube, owner.namespace, owner.name):
        return POLL_S
    await _delete_all(kube, owner.namespace, owner.name)
    await set_finalizer(kube, raw, wanted=False)
    return None


async def _delete_all(kube: KubeClient, namespace: str, cluster: str) -> None:
    brokers, state = names.selector_text(cluster), f"{STATE_LABEL}={cluster}"
    found = await kube.listing(paths.CLAIM, namespace, selector=brokers)
    found += await kube.listing(paths.CONFIG_MAP, namespace, selector=state)
    found += await kube.listing(paths.LEASE, namespace, selector=state)
    secret = await kube.get(paths.SECRET, namespace, names.secret(cluster))
    labels = names.labels(cluster).items()
    if secret is not None and labels <= (secret["metadata"].get("labels") or {}).items():
        found.append(secret)
    for each in found:
        meta = each["metadata"]
        await kube.delete(paths.KINDS[each["kind"]], namespace, meta["name"], uid=meta["uid"])


def _is_owned(value: JsonObject, uid: str) -> bool:
    return any(each["uid"] == uid for each in value["metadata"].get("ownerReferences") or ())


def deleting_s(raw: JsonObject) -> float:
    """Seconds since it was deleted, by the API server's clock and this machine's: enough for giving
    up after minutes."""
    since = datetime.datetime.fromisoformat(raw["metadata"]["deletionTimestamp"])
    return (datetime.datetime.now(datetime.UTC) - since).total_seconds()
