"""Writes what is to be seen of a resource: status, only where it differs, and the finalizer."""

from __future__ import annotations

import datetime

from headrace.operator import names
from headrace.operator.core.conditions import news, status_patch
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.events import Events, Severity
from headrace.operator.kube.paths import KINDS
from headrace.operator.spec import JsonObject

SAID_BY_THE_CLUSTER = frozenset({"BrokerUnavailable", "UnderReplicated"})
"""Reasons that all topics have at once when a broker stops: the events of their cluster tell."""


def now() -> str:
    """The time, as in conditions."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def write_status(
    kube: KubeClient,
    events: Events,
    raw: JsonObject,
    wanted: JsonObject,
    *,
    quiet: bool = False,
) -> JsonObject:
    """Writes the difference, if there is one, and tells what is new; `quiet`: only what a person
    should look at. The resource as it is now.

    Raises:
        KubernetesError.
    """
    present = raw.get("status") or {}
    patch = status_patch(present, wanted)
    if not patch:
        return raw
    meta = raw["metadata"]
    written = await kube.patch(
        KINDS[raw["kind"]], meta["namespace"], meta["name"], {"status": patch},
        subresource="status",
    )  # fmt: skip
    before = present.get("conditions") or []
    for is_bad, each in news(before, wanted.get("conditions") or []):
        if quiet and (not is_bad or each.reason in SAID_BY_THE_CLUSTER):
            continue
        severity: Severity = "Warning" if is_bad else "Normal"
        reason = "Ready" if (each.type, each.status) == ("Ready", "True") else each.reason
        events.tell(raw, severity, reason, each.message)
    return written


def has_finalizer(raw: JsonObject) -> bool:
    """Whether the resource isn't gone before the operator says so."""
    return names.FINALIZER in (raw["metadata"].get("finalizers") or ())


async def set_finalizer(kube: KubeClient, raw: JsonObject, *, wanted: bool) -> JsonObject:
    """Adds or takes away the operator's finalizer; others' stay. The resource as it is now.

    Raises:
        KubernetesError: 409 if the resource has changed since it was read.
    """
    if has_finalizer(raw) == wanted:
        return raw
    meta = raw["metadata"]
    others = [each for each in meta.get("finalizers") or () if each != names.FINALIZER]
    patch = {
        "metadata": {
            "resourceVersion": meta["resourceVersion"],
            "finalizers": [*others, names.FINALIZER] if wanted else others,
        }
    }
    return await kube.patch(KINDS[raw["kind"]], meta["namespace"], meta["name"], patch)
