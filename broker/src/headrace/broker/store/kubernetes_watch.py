"""One watch of the Kubernetes store: list, then watch, and again, for ever.

Level-triggered (replication.md H9): what a broken, silent or overtaken watch may have missed is
repaired by going on from the last revision, and by a full list after 410, after repeated failures
and every few minutes. Absence in a list is told as a `Snapshot`, whose reader deletes nothing for
it. Events aren't ordered by revision here: the readers order records by (topic_id, pe).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec

from headrace.broker.store import kubernetes_objects as objects
from headrace.broker.store.base import Gone, Item, Put
from headrace.broker.store.kubernetes_api import KubernetesApi, WatchExpired, watch_error
from headrace.broker.store.kubernetes_objects import Json, Scope
from headrace.broker.store.watcher import Mailbox
from headrace.protocol.errors import StoreUnavailable

log = logging.getLogger(__name__)

FAILURES_BEFORE_LIST = 3
"""Watches that fail one after the other before everything is listed anew: the revision may be one
that the server doesn't know, as after an etcd restore."""

Lister = Callable[[Scope], Awaitable[tuple[list[Json], str]]]


class Watch:
    """Feeds a mailbox until it is cancelled."""

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        cluster: str,
        scope: Scope,
        lister: Lister,
        mailbox: Mailbox,
    ) -> None:
        self._api = api
        self._path = path
        self._cluster = cluster
        self._scope = scope
        self._list = lister
        self._mailbox = mailbox
        self._known: dict[str, Item] | None = None
        self._version = ""
        self._failures = 0
        self._listed_s = float("-inf")

    async def run(self) -> None:
        """Lists and watches without end."""
        while True:
            try:
                if self._is_list_due():
                    await self._relist()
                await self._follow()
                self._failures = 0
            except WatchExpired:
                self._listed_s = float("-inf")
                await asyncio.sleep(self._api.timing.pause_s(0))
            except StoreUnavailable as error:
                self._failures += 1
                log.info("watching the store: %s", error)
                await asyncio.sleep(self._api.timing.pause_s(self._failures))
            except Exception:
                # Without its watch a broker would go on for ever with what it knows.
                self._failures += 1
                log.exception("watching the store failed, it goes on with a new list")
                self._listed_s = float("-inf")
                await asyncio.sleep(self._api.timing.pause_s(self._failures))

    def _is_list_due(self) -> bool:
        if self._failures and self._failures % FAILURES_BEFORE_LIST == 0:
            return True
        return self._now_s() - self._listed_s >= self._api.timing.relist_s

    async def _relist(self) -> None:
        """Reads everything; a `Snapshot` if it differs from what was told."""
        found, self._version = await self._list(self._scope)
        known = {name: item for name, item in map(self._item, found) if item is not None}
        if known != self._known:
            self._known = known
            self._mailbox.put_snapshot(sorted(known.values(), key=lambda item: item.key))
        self._listed_s = self._now_s()

    async def _follow(self) -> None:
        """One watch, until the server or a failure ends it."""
        timeout_s = random.uniform(*self._api.timing.watch_s)
        query = {
            "labelSelector": self._scope.selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        async with aclosing(self._api.lines(self._path, query)) as lines:
            async for line in lines:
                if line.strip():
                    self._take(line)
                    self._failures = 0

    def _take(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line)
            kind, found = event["type"], event["object"]
            if kind == "ERROR":
                raise watch_error(int(found.get("code", 0)), str(found.get("message", "")))
            version = found["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._tell(kind, found)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreUnavailable(f"an event of the watch can't be read: {error!r}") from error
        self._version = version

    def _tell(self, kind: str, found: Json) -> None:
        assert self._known is not None
        name, item = self._item(found)
        before = self._known.pop(name, None)
        if kind != "DELETED" and item is not None:
            self._known[name] = item
        if before is not None and before.key != (item.key if item and kind != "DELETED" else None):
            self._mailbox.put_change(Gone(before.key))
        if kind != "DELETED" and item is not None:
            self._mailbox.put_change(Put(item))

    def _item(self, found: Json) -> tuple[str, Item | None]:
        name = found["metadata"]["name"]
        item = objects.read(self._cluster, found)
        if item is None:
            log.warning("%s has the store's label but isn't its object: left alone", name)
        return name, item

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
