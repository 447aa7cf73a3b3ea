"""The store in the Kubernetes API: etcd under it is the consensus, in a cluster nothing more runs.

    store verb → `kubernetes_objects` (which object, what in it) → `kubernetes_api` (HTTP)
    watch → list, then `kubernetes_watch`

What makes it safe (replication.md H8-H10): creation by POST, change by PUT with uid and
resourceVersion, removal with both as preconditions; never a patch, never a write without a
revision. A conflict is read back before it is called one, since the object there may be one's own
write; an answer that is lost or 5xx is `Unknown`. Reads ask for the newest state (no
resourceVersion), which the API server confirms with a quorum of etcd.
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from urllib.parse import quote

from headrace.broker.store import kubernetes_objects as objects
from headrace.broker.store.base import (
    Applied,
    Change,
    Item,
    Outcome,
    Outcomes,
    Refused,
    Unknown,
    WatchEvent,
)
from headrace.broker.store.kubernetes_api import (
    Answer,
    AnswerLost,
    KubernetesApi,
    NotSent,
    Timing,
)
from headrace.broker.store.kubernetes_objects import Json, Place, Scope
from headrace.broker.store.kubernetes_watch import Watch
from headrace.broker.store.watcher import Mailbox
from headrace.protocol.errors import HeadraceError, InvalidRequest, StoreUnavailable

IN_FLIGHT_MAX = 20
"""Writes of one `cas_many` at once."""

FAILURES_MAX = 20
"""Writes of one `cas_many` that may fail before the rest isn't sent: the store is away then, and
a thousand time-outs one after the other help nobody."""

PAGE = 500
"""Objects in one page of a list."""

PAGES_AGAIN_MAX = 3
"""How often a list is begun again because its pages expired (410)."""

_Ends = list[Outcome | HeadraceError]
_Objects = list[Json]
_Found = tuple[_Objects, str]
_PATHS = {objects.CONFIGMAPS: "/api/v1", objects.LEASES: "/apis/coordination.k8s.io/v1"}


class KubernetesStore:
    """See `base.Store` for the verbs. `KubernetesStore.open` makes one."""

    def __init__(self, api: KubernetesApi, namespace: str, cluster: str) -> None:
        self.namespace = namespace
        self.cluster = cluster
        self._api = api
        self._identity = socket.gethostname()
        self._watches: dict[Mailbox, asyncio.Task[None]] = {}
        self._closed = False

    @classmethod
    async def open(
        cls,
        *,
        cluster: str,
        namespace: str = "",
        kubeconfig: str = "",
        timing: Timing | None = None,
    ) -> KubernetesStore:
        """Finds the API server; doesn't call it yet. `namespace`: empty for the pod's or the
        kubeconfig's. `kubeconfig`: see `KubernetesApi.open`.

        Raises:
            InvalidConfig: no usable configuration, a cluster name that can't be used, or the
                kubernetes package is missing.
        """
        objects.check_cluster(cluster)
        api = await KubernetesApi.open(timing=timing or Timing(), kubeconfig=kubeconfig)
        return cls(api, namespace or api.namespace, cluster)

    # --- reading ---

    async def get(self, key: str) -> Item | None:
        """See `base.Store.get`."""
        found = await self._object(objects.place(self.cluster, key))
        return None if found is None else self._own(key, found)

    async def list(self, prefix: str) -> list[Item]:
        """See `base.Store.list`."""
        scopes = objects.scopes(self.cluster, prefix, with_leases=True)
        parts = await asyncio.gather(*(self.list_scope(scope) for scope in scopes))
        items = (objects.read(self.cluster, found) for part, _ in parts for found in part)
        return sorted(
            (item for item in items if item is not None and item.key.startswith(prefix)),
            key=lambda item: item.key,
        )

    async def list_scope(self, scope: Scope) -> _Found:
        """All objects of a scope at one moment, and the resourceVersion of that moment.

        Raises:
            StoreUnavailable: it can't be read now.
        """
        for _ in range(PAGES_AGAIN_MAX):
            found = await self._pages(scope)
            if found is not None:
                return found
        raise StoreUnavailable("the Kubernetes API forgets pages faster than they can be read")

    async def _pages(self, scope: Scope) -> _Found | None:
        """All pages; None if one has expired."""
        query = {"labelSelector": scope.selector, "limit": str(PAGE)}
        found: _Objects = []
        while True:
            answer = await self._api.read(self._path(scope.resource), query)
            if answer.status == 410:
                return None
            items, meta = answer.body.get("items"), answer.body.get("metadata")
            if answer.status != 200 or not isinstance(meta, dict) or "resourceVersion" not in meta:
                raise StoreUnavailable(f"a list was refused: {answer.status} {answer.message}")
            found += items or []
            if not meta.get("continue"):
                return found, meta["resourceVersion"]
            query["continue"] = meta["continue"]

    async def _object(self, at: Place) -> Json | None:
        answer = await self._api.read(self._path(at.resource, at.name))
        if answer.says_absent:
            return None
        if answer.status != 200 or "metadata" not in answer.body:
            raise StoreUnavailable(f"{at.name} can't be read: {answer.status} {answer.message}")
        return answer.body

    def _own(self, key: str, found: Json) -> Item:
        """The item, if the object is the key's (replication.md H8b)."""
        item = objects.read(self.cluster, found)
        if item is None or item.key != key:
            raise StoreUnavailable(
                f"the object {found['metadata']['name']} in namespace {self.namespace} isn't"
                f" {key!r}, it says {item.key if item else None!r}: it was made or edited by"
                " somebody else; rename or restore it"
            )
        return item

    # --- writing ---

    async def cas(self, change: Change) -> Outcome:
        """See `base.Store.cas`.

        Raises:
            StoreUnavailable: not done: unreachable, throttled or forbidden.
            InvalidRequest: the value is too large for an object.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if change.expected is None:
            return await (
                self._absent(change.key) if change.value is None else self._create(change)
            )
        tied = objects.split_revision(change.expected)
        if tied is None:
            return Refused()
        if change.value is None:
            return await self._delete(change.key, *tied)
        return await self._replace(change, *tied)

    async def cas_many(self, changes: Sequence[Change]) -> Outcomes:
        """See `base.Store.cas_many`: up to `IN_FLIGHT_MAX` at once, those of one
        key one after the other. What couldn't be done because
        the store is unavailable is `Unknown` here, as the others' outcomes must be told; it raises
        only if that is so for all."""
        outcomes: _Ends = [NotSent("not sent: the store is away")] * len(changes)
        by_key: dict[str, list[int]] = {}
        for number, change in enumerate(changes):
            by_key.setdefault(change.key, []).append(number)
        waiting = iter(by_key.values())
        failures = 0

        async def work() -> None:
            nonlocal failures
            for number in (each for numbers in waiting for each in numbers):
                if failures >= FAILURES_MAX:
                    return
                try:
                    outcomes[number] = await self.cas(changes[number])
                except (StoreUnavailable, InvalidRequest) as error:
                    outcomes[number] = error
                failures += not isinstance(outcomes[number], (Applied, Refused))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(IN_FLIGHT_MAX, len(by_key))):
                group.create_task(work())
        errors = [each for each in outcomes if isinstance(each, HeadraceError)]
        if errors and len(errors) == len(changes):
            raise errors[0]
        return [Unknown(str(o)) if isinstance(o, HeadraceError) else o for o in outcomes]

    async def _absent(self, key: str) -> Outcome:
        there = await self._object(objects.place(self.cluster, key))
        return Applied("") if there is None else Refused()

    async def _create(self, change: Change) -> Outcome:
        at, body = self._body(change)
        try:
            answer = await self._api.send("POST", self._path(at.resource), body=body)
        except AnswerLost as error:
            return Unknown(str(error))
        if answer.status == 404:
            raise NotSent(f"there is no namespace {self.namespace}: create it, or name another")
        return await self._outcome(answer, at, body)

    async def _replace(self, change: Change, uid: str, version: str) -> Outcome:
        at, body = self._body(change)
        body["metadata"] |= {"uid": uid, "resourceVersion": version}
        try:
            answer = await self._api.send("PUT", self._path(at.resource, at.name), body=body)
        except AnswerLost as error:
            return Unknown(str(error))
        return Refused() if answer.says_absent else await self._outcome(answer, at, body)

    async def _delete(self, key: str, uid: str, version: str) -> Outcome:
        at = objects.place(self.cluster, key)
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        }
        try:
            answer = await self._api.send("DELETE", self._path(at.resource, at.name), body=body)
        except AnswerLost as error:
            return Unknown(str(error))
        if answer.says_absent or answer.status == 409:
            return Refused()
        return Applied("") if answer.status in (200, 202) else _not_ok(answer, key)

    async def _outcome(self, answer: Answer, at: Place, body: Json) -> Outcome:
        """What an answer to a POST or PUT means."""
        if answer.status == 409:
            return await self._settle(at, objects.writer_of(body))
        if answer.status not in (200, 201):
            return _not_ok(answer, at.name)
        try:
            return Applied(objects.revision(answer.body))
        except (KeyError, TypeError):
            return Unknown("the Kubernetes API's answer can't be read")

    async def _settle(self, at: Place, writer: str) -> Outcome:
        """After a conflict: was it one's own write that a proxy on the way sent twice?"""
        try:
            there = await self._object(at)
        except StoreUnavailable as error:
            return Unknown(f"a conflict that couldn't be read back: {error}")
        if there is not None and objects.writer_of(there) == writer:
            return Applied(objects.revision(there))
        return Refused()

    def _body(self, change: Change) -> tuple[Place, Json]:
        assert change.value is not None
        at = objects.place(self.cluster, change.key)
        writer = f"{self._identity}/{secrets.token_hex(8)}"
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return at, objects.manifest(at, change.key, change.value, writer=writer, now=now)

    # --- watching, closing ---

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        """See `base.Store.watch`."""
        mailbox = Mailbox(prefix)
        scope = objects.scopes(self.cluster, prefix, with_leases=False)[0]
        watch = Watch(
            self._api, self._path(scope.resource), self.cluster, scope, self.list_scope, mailbox
        )
        task = asyncio.create_task(watch.run(), name=f"watch {prefix}")
        self._watches[mailbox] = task
        try:
            if self._closed:
                mailbox.close()
            async for event in mailbox.events():
                yield event
        finally:
            self._watches.pop(mailbox, None)
            await _end(task)

    async def close(self) -> None:
        """See `base.Store.close`."""
        self._closed = True
        for mailbox, task in list(self._watches.items()):
            mailbox.close()
            await _end(task)
        await self._api.close()

    def _path(self, resource: str, name: str = "") -> str:
        path = f"{_PATHS[resource]}/namespaces/{quote(self.namespace)}/{resource}"
        return f"{path}/{quote(name)}" if name else path


def _not_ok(answer: Answer, what: str) -> Outcome:
    """An answer that is neither success nor conflict."""
    if answer.status >= 500:
        return Unknown(f"the Kubernetes API failed: {answer.status} {answer.message}")
    raise NotSent(f"the Kubernetes API refuses {what}: {answer.status} {answer.message}")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
