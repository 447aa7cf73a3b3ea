"""Requests to the Kubernetes API, each with a deadline, as plain JSON.

    get, listing → objects        create, replace, patch, delete → the object written

Reads are asked once more when a connection broke; writes never are: whoever plans looks again and
sees what became of them. 429 is waited out for a moment, 401 reads the credentials again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import kopf
import msgspec

from headrace.operator.kube import credentials
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.paths import KINDS, Kind
from headrace.operator.spec import JsonObject

log = logging.getLogger("headrace.operator.kube")

REQUEST_TIMEOUT_S = 10.0
"""Seconds that one request may take."""

CONNECT_TIMEOUT_S = 5.0
"""Seconds for a connection."""

THROTTLED_S = 5.0
"""Seconds that a request waits in all where it is answered 429."""

PAGE = 500
"""Objects in one answer of a list."""

CONNECTIONS_MAX = 24
"""Connections at a time."""

RELOAD_S = 60.0
"""Seconds after which credentials are read again: tokens of service accounts are rotated."""

JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"

Counted = Callable[[str, str, int], None]
"""Told of each request: verb, kind, status (0: no answer)."""


def _uncounted(verb: str, kind: str, status: int) -> None:
    """Nobody wants to know."""


class KubeClient:
    """One client. Use as `async with KubeClient() as kube`."""

    def __init__(self, counted: Counted = _uncounted) -> None:
        self._counted = counted
        self._info: kopf.ConnectionInfo | None = None
        self._loaded_s = 0.0
        self._ssl: ssl.SSLContext | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubeClient:
        self._load()
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=True, json_serialize=_written
        )
        # aiohttp sends a PUT or DELETE again when a kept connection turns out to be closed.
        self._session._retry_connection = False
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    # --- verbs ---

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """An object, or None if the server says that there is none."""
        try:
            return await self._read("get", kind, kind.path(namespace, name))
        except KubernetesError as error:
            if error.is_absent:
                return None
            raise

    async def listing(
        self, kind: Kind, namespace: str | None = None, *, selector: str = ""
    ) -> list[JsonObject]:
        """All objects of a namespace, or of all, that have the labels."""
        found: list[JsonObject] = []
        query = {"limit": str(PAGE)}
        if selector:
            query["labelSelector"] = selector
        while True:
            page = await self._read("list", kind, kind.path(namespace), query)
            found += page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                break
            query["continue"] = token
        for each in found:
            each.setdefault("kind", kind.name)
            each.setdefault("apiVersion", kind.api_version)
        return found

    async def create(self, value: JsonObject) -> JsonObject:
        """Makes an object."""
        kind = KINDS[value["kind"]]
        path = kind.path(value["metadata"].get("namespace"))
        return await self._send("create", kind, "POST", path, body=value)

    async def replace(self, value: JsonObject) -> JsonObject:
        """Writes an object over the one it was made from (409 if that has changed)."""
        kind, meta = KINDS[value["kind"]], value["metadata"]
        path = kind.path(meta.get("namespace"), meta["name"])
        return await self._send("update", kind, "PUT", path, body=value)

    async def patch(
        self, kind: Kind, namespace: str, name: str, patch: JsonObject, *, subresource: str = ""
    ) -> JsonObject:
        """Merges fields into an object. With `metadata.resourceVersion` in it: only into that."""
        path = kind.path(namespace, name, subresource)
        return await self._send("patch", kind, "PATCH", path, body=patch, content_type=MERGE)

    async def apply(self, value: JsonObject, *, manager: str) -> JsonObject:
        """Makes an object, or sets these fields of it as `manager`'s (server-side apply)."""
        kind, meta = KINDS[value["kind"]], value["metadata"]
        path = kind.path(meta.get("namespace"), meta["name"])
        query = {"fieldManager": manager, "force": "true"}
        return await self._send(
            "apply", kind, "PATCH", path, query=query, body=value, content_type=APPLY
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Deletes this very object; that it is gone, or another one by now, is fine."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._send("delete", kind, "DELETE", kind.path(namespace, name), body=body)
        except KubernetesError as error:
            if not (error.is_absent or error.is_conflict):
                raise

    # --- one request ---

    async def _read(
        self, verb: str, kind: Kind, path: str, query: Mapping[str, str] | None = None
    ) -> JsonObject:
        try:
            return await self._send(verb, kind, "GET", path, query=query)
        except KubernetesError as error:
            if error.status:
                raise
        return await self._send(verb, kind, "GET", path, query=query)

    async def _send(
        self,
        verb: str,
        kind: Kind,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = JSON,
    ) -> JsonObject:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + THROTTLED_S
        has_reloaded = False
        while True:
            try:
                status, found, pause_s = await self._once(method, path, query, body, content_type)
            except KubernetesError:
                self._counted(verb, kind.name, 0)
                raise
            self._counted(verb, kind.name, status)
            if status == 429 and loop.time() + pause_s <= until_s:
                await asyncio.sleep(pause_s)
            elif status == 401 and not has_reloaded:
                has_reloaded = True
                self._load()
            elif status < 300:
                return found
            else:
                said = str(found.get("message") or found.get("reason") or status)
                raise KubernetesError(status, str(found.get("reason") or ""), said)

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: JsonObject | None,
        content_type: str,
    ) -> tuple[int, JsonObject, float]:
        if asyncio.get_running_loop().time() - self._loaded_s > RELOAD_S:
            self._load()
        session, info = self._session, self._info
        assert session is not None, "the client isn't open"
        assert info is not None
        headers = {**info.as_http_headers(), "Content-Type": content_type, "Accept": JSON}
        headers["User-Agent"] = "headrace-operator"
        try:
            async with session.request(
                method,
                info.server.rstrip("/") + path,
                params=query,
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
                ssl=self._ssl if self._ssl is not None else True,
                proxy=info.proxy_url,
                allow_redirects=False,
            ) as response:
                raw = await response.read()
                return response.status, _object(raw), _retry_after_s(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            said = str(error) or f"no answer within {REQUEST_TIMEOUT_S:g} s"
            raise KubernetesError(0, "NoAnswer", f"the Kubernetes API: {said}") from error

    def _load(self) -> None:
        """Reads the credentials; those there are stay if that can't be done just now.

        Raises:
            kopf.LoginError: there never were any.
        """
        self._loaded_s = asyncio.get_running_loop().time()
        try:
            found = credentials.find()
        except (kopf.LoginError, OSError, ValueError) as error:
            if self._info is None:
                raise
            log.warning("the credentials can't be read again: %s", error)
            return
        if self._info is None or found != self._info:
            self._info = found
            self._ssl = found.as_ssl_context() if found.server.startswith("https") else None


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _object(raw: bytes) -> JsonObject:
    """The body; what isn't an object is a proxy's page, whose status says enough."""
    try:
        found = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    try:
        return max(0.05, float(response.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
