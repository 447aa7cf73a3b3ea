"""kopf's handlers: each event of a resource, or of what is made for it, is passed on. Nothing else
happens here: passes are level-triggered, an event only says that looking is worth while.

`on.event` writes nothing to resources: no finalizers, no annotations of kopf's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from headrace.operator import names
from headrace.operator.kube import credentials, paths
from headrace.operator.spec import JsonObject

Heard = Callable[[str, JsonObject], None]
"""Told of an event: its type (ADDED, MODIFIED, DELETED; empty while kopf lists) and the object."""

LABELS = "app.kubernetes.io/name=headrace,app.kubernetes.io/component=broker"
"""What brokers' objects are found by."""

CHILDREN = (paths.STATEFUL_SET, paths.POD, paths.CLAIM)
"""Objects of a cluster whose changes say something about it."""


def registry_for(heard: Heard) -> kopf.OperatorRegistry:
    """The handlers, passing on to `heard`."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(**_: Any) -> kopf.ConnectionInfo:
        return credentials.find()

    @kopf.on.event(names.GROUP, names.VERSION, paths.BROKER_CLUSTER.plural, registry=registry)
    async def cluster_seen(event: Any, **_: Any) -> None:
        heard(event["type"] or "", event["object"])

    @kopf.on.event(names.GROUP, names.VERSION, paths.TOPIC.plural, registry=registry)
    async def topic_seen(event: Any, **_: Any) -> None:
        heard(event["type"] or "", event["object"])

    @kopf.on.event(names.GROUP, names.VERSION, paths.CONSUMER_GROUP.plural, registry=registry)
    async def group_seen(event: Any, **_: Any) -> None:
        heard(event["type"] or "", event["object"])

    @kopf.on.event("apps", "v1", paths.STATEFUL_SET.plural, registry=registry)
    @kopf.on.event("v1", paths.POD.plural, registry=registry)
    @kopf.on.event("v1", paths.CLAIM.plural, registry=registry)
    async def child_seen(event: Any, **_: Any) -> None:
        heard(event["type"] or "", event["object"])

    return registry


def settings() -> kopf.OperatorSettings:
    """kopf's settings: watches only what is ours, gives up slow requests, posts nothing."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.process.ultimate_exiting_timeout = None
    found.networking.request_timeout = 30.0
    found.networking.connect_timeout = 5.0
    found.networking.error_backoffs = [0.2, 1, 2, 5]
    found.networking.trust_env = True
    # An integer: the API server refuses 240.0.
    found.watching.server_timeout = 240
    found.watching.connect_timeout = 5.0
    found.watching.chunk_size = 500
    found.queueing.idle_timeout = 1.0
    for kind in CHILDREN:
        group = kind.api_version.rpartition("/")[0]
        key = (group, kind.plural) if group else ("v1", kind.plural)
        found.watching.label_selectors[key] = LABELS
    return found
