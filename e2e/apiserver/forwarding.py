"""What the API server doesn't know itself and asks others for: a pod's log, and requests to pods
and services through it (`.../proxy/...`).

As with the real one, the way to a node is its address and port in its status, and to a service one
of the endpoints in its EndpointSlices.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from apiserver.answers import ApiError, Json, bad_request, not_found
from apiserver.state import Ref, State

TIMEOUT_S = 30.0
_PROXY = re.compile(
    r"^/api/v1/namespaces/(?P<namespace>[^/]+)/(?P<plural>pods|services)/"
    r"(?:(?P<scheme>https?):)?(?P<name>[^/:]+)(?::(?P<port>[^/:]*))?/proxy(?P<rest>/.*)?$"
)
_PASSED_ON = ("Content-Type", "Accept", "If-None-Match")
_PASSED_BACK = ("Content-Type", "Retry-After", "ETag")


@dataclass(frozen=True, slots=True)
class Proxied:
    """A request that is meant for a pod or a service."""

    namespace: str
    plural: str
    name: str
    port: str
    rest: str


def proxied(path: str) -> Proxied | None:
    """The request's aim, if it is one of these."""
    found = _PROXY.match(path)
    if found is None:
        return None
    return Proxied(
        found["namespace"], found["plural"], found["name"], found["port"] or "",
        found["rest"] or "/",
    )  # fmt: skip


def unavailable(why: str) -> ApiError:
    """503, as the real proxy answers."""
    return ApiError(503, "ServiceUnavailable", why)


def address_of(state: State, aim: Proxied) -> tuple[str, int]:
    """Where to send it.

    Raises:
        ApiError: 400 (no such port), 404, 503 (nobody is ready).
    """
    found = state.get(Ref("", aim.plural, aim.namespace, aim.name))
    if found is None:
        raise not_found(aim.plural, aim.name)
    if aim.plural == "pods":
        address = found.get("status", {}).get("podIP")
        if not address:
            raise unavailable(f"pod {aim.name} has no address")
        return str(address), int(aim.port or 80)
    return _endpoint(state, found, aim)


def _endpoint(state: State, service: Json, aim: Proxied) -> tuple[str, int]:
    ports = service["spec"].get("ports") or []
    chosen = [p for p in ports if aim.port in ("", p.get("name"), str(p["port"]))]
    if not chosen:
        raise bad_request(f"no service port {aim.port} found for service {aim.name}")
    ready = [
        address
        for ref, piece in state.listed(("discovery.k8s.io", "endpointslices"), aim.namespace)
        if (piece["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == aim.name
        for each in piece.get("endpoints") or ()
        if each["conditions"].get("ready")
        for address in each["addresses"]
    ]
    if not ready:
        raise unavailable(f'no endpoints available for service "{aim.name}"')
    return random.choice(ready), int(chosen[0]["port"])


async def forward(request: web.Request, url: str) -> web.StreamResponse:
    """Sends the request on and its answer back."""
    headers = {key: request.headers[key] for key in _PASSED_ON if key in request.headers}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                request.method, url, data=await request.read(), headers=headers,
                allow_redirects=False,
            ) as response,
        ):  # fmt: skip
            back = {k: response.headers[k] for k in _PASSED_BACK if k in response.headers}
            return web.Response(body=await response.read(), status=response.status, headers=back)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise unavailable(f"error trying to reach {url}: {error}") from error


def log_url(state: State, namespace: str, name: str, query: Json) -> str:
    """Where a pod's log is: at its node.

    Raises:
        ApiError: 400 (it runs nowhere yet), 404.
    """
    pod = state.get(Ref("", "pods", namespace, name))
    if pod is None:
        raise not_found("pods", name)
    node = state.get(Ref("", "nodes", "", pod["spec"].get("nodeName", "")))
    if node is None:
        raise bad_request(f"pod {name} does not have a host assigned")
    address = node["status"]["addresses"][0]["address"]
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    container = query.get("container") or pod["spec"]["containers"][0]["name"]
    tail = f"?tailLines={query['tailLines']}" if query.get("tailLines") else ""
    return f"http://{address}:{port}/containerLogs/{namespace}/{name}/{container}{tail}"
