"""What there is of a BrokerCluster in Kubernetes, read afresh in each pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from headrace.operator import names
from headrace.operator.builders.brokers import stateful_set
from headrace.operator.builders.config import secret
from headrace.operator.builders.whole import plain_objects
from headrace.operator.core import pods
from headrace.operator.core.observed import Cluster, ObjectKey
from headrace.operator.kube import paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner


def owner_of(raw: JsonObject) -> Owner:
    """Whom objects are made for."""
    meta = raw["metadata"]
    return Owner(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
    )


async def look(kube: KubeClient, raw: JsonObject, spec: BrokerClusterSpec) -> Cluster:
    """All but the brokers' answers.

    Raises:
        KubernetesError: something can't be read.
    """
    owner = owner_of(raw)
    objects, found_pods, claims = await asyncio.gather(
        _objects(kube, owner, spec),
        brokers_pods(kube, owner.namespace, owner.name),
        _by_ordinal(kube, paths.CLAIM, owner),
    )
    return Cluster(
        owner=owner,
        spec=spec,
        annotations=raw["metadata"].get("annotations") or {},
        status=raw.get("status") or {},
        objects=objects,
        pods=found_pods,
        claims=claims,
        expandable=await _expandable(kube, claims.values()),
        racks=await _racks(kube, spec, found_pods),
    )


async def brokers_pods(kube: KubeClient, namespace: str, cluster: str) -> dict[int, JsonObject]:
    """The brokers' pods by ordinal."""
    return await _by_ordinal(kube, paths.POD, Owner(namespace=namespace, name=cluster, uid=""))


async def _by_ordinal(kube: KubeClient, kind: paths.Kind, owner: Owner) -> dict[int, JsonObject]:
    found = await kube.listing(kind, owner.namespace, selector=names.selector_text(owner.name))
    name_of = names.pod if kind is paths.POD else names.claim
    by_ordinal = {}
    for each in found:
        name = each["metadata"]["name"]
        ordinal = pods.ordinal(name)
        if ordinal is not None and name == name_of(owner.name, ordinal):
            by_ordinal[ordinal] = each
    return by_ordinal


async def _objects(
    kube: KubeClient, owner: Owner, spec: BrokerClusterSpec
) -> Mapping[ObjectKey, JsonObject]:
    """By name, not by label: what is in the way has no label of ours."""
    wanted = [*plain_objects(owner, spec), secret(owner, ""), stateful_set(owner, spec, replicas=0)]
    keys = [(each["kind"], each["metadata"]["name"]) for each in wanted]
    found = await asyncio.gather(
        *(kube.get(paths.KINDS[kind], owner.namespace, name) for kind, name in keys)
    )
    return {key: value for key, value in zip(keys, found, strict=True) if value is not None}


async def _expandable(kube: KubeClient, claims: Iterable[JsonObject]) -> dict[str, bool]:
    """Whether storage classes let volumes grow. Where that can't be read it is tried."""
    classes = {each["spec"].get("storageClassName") or "" for each in claims}
    found = {}
    for name in sorted(classes - {""}):
        try:
            storage_class = await kube.get(paths.STORAGE_CLASS, "", name)
            found[name] = bool((storage_class or {}).get("allowVolumeExpansion"))
        except KubernetesError as error:
            if not error.is_refusal:
                raise
            found[name] = True
    return found


async def _racks(
    kube: KubeClient, spec: BrokerClusterSpec, found_pods: Mapping[int, JsonObject]
) -> dict[int, str]:
    if spec.rack is None:
        return {}
    by_node: dict[str, str] = {}
    racks: dict[int, str] = {}
    for ordinal, pod in found_pods.items():
        node = pod["spec"].get("nodeName")
        if not node:
            continue
        if node not in by_node:
            by_node[node] = await _rack_of(kube, node, spec.rack.topology_key)
        if by_node[node]:
            racks[ordinal] = by_node[node]
    return racks


async def _rack_of(kube: KubeClient, node: str, label: str) -> str:
    try:
        found = await kube.get(paths.NODE, "", node)
    except KubernetesError as error:
        if not error.is_refusal:
            raise
        return ""
    labels: dict[str, str] = ((found or {}).get("metadata") or {}).get("labels") or {}
    return labels.get(label, "")
