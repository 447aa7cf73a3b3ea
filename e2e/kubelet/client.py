"""HTTP to the API server, as any program does it: one request, one watch, and what is refused.

No rule of any controller lives here. Everything in this package reads and writes through `Api`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""

REQUEST_TIMEOUT_S = 10.0
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource as paths name it."""

    base: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of a collection or an object."""
        where = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return self.base + where + "".join(f"/{p}" for p in (self.plural, name, subresource) if p)


KINDS = {
    "Node": Kind("/api/v1", "nodes", False),
    "Pod": Kind("/api/v1", "pods"),
    "Service": Kind("/api/v1", "services"),
    "ConfigMap": Kind("/api/v1", "configmaps"),
    "Secret": Kind("/api/v1", "secrets"),
    "Event": Kind("/api/v1", "events"),
    "Namespace": Kind("/api/v1", "namespaces", False),
    "ServiceAccount": Kind("/api/v1", "serviceaccounts"),
    "PersistentVolumeClaim": Kind("/api/v1", "persistentvolumeclaims"),
    "PersistentVolume": Kind("/api/v1", "persistentvolumes", False),
    "StatefulSet": Kind("/apis/apps/v1", "statefulsets"),
    "Deployment": Kind("/apis/apps/v1", "deployments"),
    "ControllerRevision": Kind("/apis/apps/v1", "controllerrevisions"),
    "PodDisruptionBudget": Kind("/apis/policy/v1", "poddisruptionbudgets"),
    "EndpointSlice": Kind("/apis/discovery.k8s.io/v1", "endpointslices"),
    "StorageClass": Kind("/apis/storage.k8s.io/v1", "storageclasses", False),
}


class Refused(Exception):
    """The API server said no."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


def key_of(value: Mapping[str, Any]) -> Key:
    """An object's namespace and name."""
    meta = value["metadata"]
    return meta.get("namespace", ""), meta["name"]


class Api:
    """One client."""

    def __init__(self, url: str, *, token: str = "admin") -> None:
        self.url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(limit=0, ssl=False),
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """One request; its answer.

        Raises:
            Refused: any answer but 2xx.
            aiohttp.ClientError, TimeoutError: none.
        """
        async with self._session.request(
            method,
            self.url + path,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            params=query,
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        ) as response:
            found = await response.json(content_type=None)
            if response.status >= 300:
                raise Refused(response.status, str((found or {}).get("message", "")))
            return dict(found)

    async def watch(self, path: str, revision: str) -> AsyncIterator[tuple[str, Json]]:
        """The events of a collection from a revision on, until the stream ends."""
        async with self._session.get(
            self.url + path,
            params={"watch": "true", "resourceVersion": revision},
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=8 << 20,
        ) as response:
            async for line in response.content:
                event = json.loads(line)
                yield event["type"], event["object"]
