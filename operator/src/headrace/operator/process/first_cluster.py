"""A resource that comes with the operator itself: the chart's first cluster. Helm can't make an
object of a kind that the same chart brings, so the operator applies it (server-side, so that fields
that people have set beside it stay)."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import msgspec

from headrace.operator import names
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.spec import JsonObject
from headrace.protocol.errors import InvalidConfig

log = logging.getLogger("headrace.operator")

MANAGER = "headrace-chart"
"""Whose fields they are."""

PAUSE_S = (1.0, 30.0)
"""Between two tries, growing: the rights or the kind may come a moment later than the operator."""


def read(path: str) -> JsonObject:
    """The resource in the file, as JSON.

    Raises:
        InvalidConfig: it isn't a custom resource of ours with a name and a namespace.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
        is_ours = found["apiVersion"] == names.API_VERSION
        where = found["kind"], found["metadata"]["namespace"], found["metadata"]["name"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise InvalidConfig(f"{path} holds no resource to apply: {error!r}") from error
    if not is_ours or not all(isinstance(each, str) and each for each in where):
        raise InvalidConfig(f"{path} holds no resource of {names.API_VERSION}: {where}")
    return dict(found)


async def apply(kube: KubeClient, wanted: JsonObject) -> None:
    """Applies it, however long the API server or its rights need; says so once."""
    low, high = PAUSE_S
    pause_s, said = low, ""
    what = f"{wanted['kind']} {wanted['metadata']['namespace']}/{wanted['metadata']['name']}"
    while True:
        try:
            await kube.apply(wanted, manager=MANAGER)
        except KubernetesError as error:
            if str(error) != said:
                log.warning("%s can't be applied, trying on: %s", what, error)
            said = str(error)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(high, pause_s * 2)
        else:
            log.info("%s is applied", what)
            return
