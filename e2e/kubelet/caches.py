"""What there is, kept up to date by list and watch: every controller reads here.

A write's answer is taken in at once (`Caches.write` and friends), so that a controller never does
something twice because its watch is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import aiohttp

from kubelet.client import KINDS, MERGE_PATCH, Api, Json, Key, Refused, key_of

WATCHED = (
    "Node", "Pod", "Service", "PersistentVolumeClaim", "PersistentVolume", "StatefulSet",
    "Deployment", "ControllerRevision", "PodDisruptionBudget", "EndpointSlice", "StorageClass",
)  # fmt: skip
RETRY_S = 0.2


class Caches:
    """Objects by kind, and writes that show in them."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.changed = asyncio.Event()
        self._objects: dict[str, dict[Key, Json]] = {kind: {} for kind in WATCHED}
        self._gone: dict[str, int] = {}
        self._listeners: list[Callable[[str, Json], None]] = []

    def all(self, kind: str, namespace: str | None = None) -> list[Json]:
        """Every object of a kind, by namespace and name."""
        found = sorted(self._objects[kind].items())
        return [value for key, value in found if namespace in (None, key[0])]

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """One object."""
        return self._objects[kind].get((namespace, name))

    def owned(self, kind: str, owner: Json) -> list[Json]:
        """What an object controls."""
        uid = owner["metadata"]["uid"]
        return [
            value
            for value in self.all(kind, owner["metadata"].get("namespace", ""))
            if any(each["uid"] == uid for each in value["metadata"].get("ownerReferences") or ())
        ]

    # --- writes ---

    async def create(self, value: Json) -> Json:
        """POST. Raises Refused."""
        kind = KINDS[value["kind"]]
        path = kind.path(value["metadata"].get("namespace", ""))
        return self._take(value["kind"], await self.api.call("POST", path, value))

    async def patch(self, value: Json, change: Json, *, subresource: str = "") -> Json:
        """A merge patch of the object with this uid. Raises Refused."""
        kind = value["kind"]
        uid = {"metadata": {"uid": value["metadata"]["uid"]}}
        path = KINDS[kind].path(*key_of(value), subresource)
        body = {**change, "metadata": {**change.get("metadata", {}), **uid["metadata"]}}
        return self._take(kind, await self.api.call("PATCH", path, body, content_type=MERGE_PATCH))

    async def set_status(self, value: Json, status: Json) -> Json:
        """Replaces the status if it isn't so already; lost races are left to the next look."""
        present = value.get("status") or {}
        change: Json = {key: item for key, item in status.items() if present.get(key) != item}
        if not change:
            return value
        with contextlib.suppress(Refused):
            return await self.patch(value, {"status": change}, subresource="status")
        return value

    async def delete(self, value: Json, *, grace_s: int | None = None) -> None:
        """DELETE of the object with this uid; one that is gone already is fine."""
        path = KINDS[value["kind"]].path(*key_of(value))
        body: Json = {"preconditions": {"uid": value["metadata"]["uid"]}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            left = await self.api.call("DELETE", path, body)
        except Refused as error:
            if error.code not in (404, 409):
                raise
            return
        if left.get("kind") == value["kind"]:
            self._take(value["kind"], left)

    # --- reading along ---

    async def follow(self, kind: str) -> None:
        """List and watch, for ever."""
        path = KINDS[kind].path()
        while True:
            try:
                listed = await self.api.call("GET", path)
                found = {key_of(item): {**item, "kind": kind} for item in listed["items"]}
                self._replace(kind, found)
                revision = listed["metadata"]["resourceVersion"]
                async for event, value in self.api.watch(path, revision):
                    if event in ("ADDED", "MODIFIED"):
                        self._take(kind, value)
                    elif event == "DELETED":
                        self._drop(kind, value)
                    elif event == "ERROR":
                        break
            except (aiohttp.ClientError, TimeoutError, Refused, ValueError):
                await asyncio.sleep(RETRY_S)

    def listen(self, listener: Callable[[str, Json], None]) -> None:
        """Calls `listener(kind, object)` for what is new, and for what is gone."""
        self._listeners.append(listener)

    def _replace(self, kind: str, found: dict[Key, Json]) -> None:
        before = self._objects[kind]
        self._objects[kind] = found
        self._tell(kind, [value for key, value in before.items() if key not in found])
        self._tell(kind, found.values())

    def _take(self, kind: str, value: Json) -> Json:
        value = {**value, "kind": kind}
        if kind not in self._objects:
            return value
        key = key_of(value)
        present = self._objects[kind].get(key)
        newest = max(_revision(present), self._gone.get(value["metadata"]["uid"], 0))
        if _revision(value) > newest:
            self._objects[kind][key] = value
            self._tell(kind, [value])
        return value

    def _drop(self, kind: str, value: Json) -> None:
        self._gone[value["metadata"]["uid"]] = _revision(value)
        present = self._objects[kind].get(key_of(value))
        if present is not None and present["metadata"]["uid"] == value["metadata"]["uid"]:
            del self._objects[kind][key_of(value)]
            self._tell(kind, [present])

    def _tell(self, kind: str, values: Iterable[Json]) -> None:
        self.changed.set()
        for value in values:
            for listener in self._listeners:
                listener(kind, value)


def _revision(value: Json | None) -> int:
    return int(value["metadata"]["resourceVersion"]) if value else 0
