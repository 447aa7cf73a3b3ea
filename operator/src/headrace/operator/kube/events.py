"""Events for people, told in the background: nothing waits for them, and losing one harms nobody.

The same event of the same object isn't told again within `QUIET_S`.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections import OrderedDict
from typing import Literal

from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.spec import JsonObject

log = logging.getLogger("headrace.operator.events")

WAITING_MAX = 1_000
"""Events that wait to be sent; more are only logged."""

QUIET_S = 600.0
"""Seconds in which an event isn't repeated."""

REMEMBERED_MAX = 4_096
"""Events that are remembered for that."""

MESSAGE_MAX = 1_000
"""Bytes; the API server takes 1,024."""

Severity = Literal["Normal", "Warning"]


class Events:
    """The teller. `run` sends."""

    def __init__(self, kube: KubeClient, reporter: str) -> None:
        self._kube = kube
        self._reporter = reporter
        self._waiting: asyncio.Queue[JsonObject] = asyncio.Queue(WAITING_MAX)
        self._told: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def tell(self, about: JsonObject, severity: Severity, reason: str, message: str) -> None:
        """Says something about a resource; `reason` in PascalCase."""
        meta = about["metadata"]
        if self._is_known((meta.get("uid", ""), reason, message)):
            return
        log.info(
            "%s %s/%s: %s: %s", about["kind"], meta["namespace"], meta["name"], reason, message
        )
        try:
            self._waiting.put_nowait(self._event(about, severity, reason, message))
        except asyncio.QueueFull:
            pass

    def _is_known(self, key: tuple[str, str, str]) -> bool:
        now = time.monotonic()
        before = self._told.pop(key, None)
        if before is not None and now - before < QUIET_S:
            self._told[key] = before
            return True
        self._told[key] = now
        while len(self._told) > REMEMBERED_MAX:
            self._told.popitem(last=False)
        return False

    def _event(
        self, about: JsonObject, severity: Severity, reason: str, message: str
    ) -> JsonObject:
        meta = about["metadata"]
        now = datetime.datetime.now(datetime.UTC)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{meta['name'][:200]}.{time.time_ns():x}",
                "namespace": meta["namespace"],
            },
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta.get("uid", ""),
                "resourceVersion": meta.get("resourceVersion", ""),
            },
            "type": severity,
            "reason": reason,
            "message": message.encode()[:MESSAGE_MAX].decode(errors="ignore"),
            "action": reason,
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "firstTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lastTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "count": 1,
            "source": {"component": "headrace-operator"},
            "reportingComponent": "headrace.dev/operator",
            "reportingInstance": self._reporter,
        }

    async def run(self) -> None:
        """Sends for ever."""
        while True:
            event = await self._waiting.get()
            try:
                await self._kube.create(event)
            except KubernetesError as error:
                log.debug("an event is lost: %s", error)
            except Exception:
                log.exception("an event is lost")
