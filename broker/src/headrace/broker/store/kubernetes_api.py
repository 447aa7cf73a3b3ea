"""HTTP to the Kubernetes API: who we are, one request, one stream, and what an error means.

The kubernetes package finds the server and the credentials (kubeconfig with its plugins, or the
pod's service account, whose token it reads again as it is rotated). The requests are plain aiohttp:
the package's generated classes would parse each object into Python classes, and its session sends a
PUT again by itself when a kept connection was closed, which turns one's own write into a conflict
(replication.md R7b). Here nothing is sent twice but reads and what the server refused with 429.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import random
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from headrace.protocol.errors import InvalidConfig, StoreUnavailable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LINE_BYTES_MAX = 8 << 20
"""The longest event of a watch; an object has at most 1.5 MiB, escaped a little more."""

CONNECTIONS_MAX = 48
"""Connections to the API: 20 writes in flight, watches, reads."""

_BODY_IN_ONE_PIECE = 1 << 19
_GONE_AT_CONNECT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All times of the store's traffic.

    `request_timeout_s`: one request. `connect_timeout_s`: its connection. `throttled_s`: how long a
    request waits in all when it is answered 429. `watch_s`: between these a watch is ended by the
    server, by chance. `silence_s`: a watch that says nothing, not even a bookmark (the server sends
    one a minute), is opened again. `relist_s`: a watch is checked against a full list so often.
    `backoff_s`: pause after a failure, from and to.
    """

    request_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    throttled_s: float = 5.0
    watch_s: tuple[float, float] = (60.0, 300.0)
    silence_s: float = 75.0
    relist_s: float = 300.0
    backoff_s: tuple[float, float] = (0.1, 5.0)

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row, with jitter."""
        low, high = self.backoff_s
        return random.uniform(0.5, 1.0) * min(high, low * 2.0 ** min(failures, 16))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    body: dict[str, Any]

    @property
    def says_absent(self) -> bool:
        """Whether the API server itself says that there is no such object; a 404 of anybody else
        on the way, or of a path, proves nothing."""
        details = self.body.get("details") or {}
        return self.status == 404 and bool(details.get("name"))

    @property
    def message(self) -> str:
        """Its words."""
        return str(self.body.get("message") or self.body.get("reason") or self.status)


class NotSent(StoreUnavailable):
    """The request never reached the server, or the server refused to look at it."""


class AnswerLost(StoreUnavailable):
    """The request was sent and no answer that can be read came back."""


class KubernetesApi:
    """One client of the API. `open` makes one."""

    def __init__(self, timing: Timing, kubeconfig: str) -> None:
        self.timing = timing
        self.namespace = "default"
        self._kubeconfig = kubeconfig
        self._configuration: Any = None
        self._session: aiohttp.ClientSession | None = None
        self._loading = asyncio.Lock()

    @classmethod
    async def open(cls, *, timing: Timing, kubeconfig: str = "") -> KubernetesApi:
        """Finds the server and the credentials; doesn't call it yet. `kubeconfig`: its path; else
        `$KUBECONFIG`, else the pod's service account, else the user's file.

        Raises:
            InvalidConfig: there is nothing usable, or the kubernetes package is missing.
        """
        api = cls(timing, kubeconfig or os.environ.get("KUBECONFIG", ""))
        await api._load()
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=api._ssl_context())
        session = aiohttp.ClientSession(connector=connector, trust_env=True)
        # aiohttp sends a PUT or DELETE again when a kept connection turns out to be closed.
        session._retry_connection = False
        api._session = session
        return api

    async def close(self) -> None:
        """Ends all connections."""
        if self._session is not None:
            await self._session.close()

    # --- requests ---

    async def read(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """GET; asked once more if a connection broke.

        Raises:
            StoreUnavailable: no answer, or one of the server's own troubles (5xx, 429, 401, 403).
        """
        try:
            answer = await self.send("GET", path, query=query)
        except AnswerLost:
            answer = await self.send("GET", path, query=query)
        if answer.status >= 500:
            raise StoreUnavailable(f"the Kubernetes API has trouble: {answer.message}")
        return answer

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """One request. Only 401 (once) and 429 (for a while) are asked again: those weren't done.

        Raises:
            NotSent: it can't have been done.
            AnswerLost: nobody knows.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.timing.throttled_s
        has_reloaded = False
        while True:
            answer, retry_after_s = await self._once(method, path, query, body)
            if answer.status == 429 and loop.time() + retry_after_s <= until_s:
                await asyncio.sleep(retry_after_s)
            elif answer.status == 401 and not has_reloaded:
                has_reloaded = True
                await self._load()
            else:
                return _checked(answer)

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
    ) -> tuple[Answer, float]:
        data = None if body is None else msgspec.json.encode(body)
        timing = self.timing
        timeout = aiohttp.ClientTimeout(
            total=timing.request_timeout_s, connect=timing.connect_timeout_s
        )
        try:
            async with self._request(method, path, query, data, timeout) as response:
                raw = await response.read()
                return Answer(response.status, _object(raw)), _retry_after_s(response)
        except _GONE_AT_CONNECT as error:
            raise NotSent(f"the Kubernetes API can't be reached: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            what = str(error) or f"no answer within {timing.request_timeout_s:g} s"
            raise AnswerLost(f"the Kubernetes API's answer was lost: {what}") from error

    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """A watch's lines, until it ends.

        Raises:
            StoreUnavailable: it was refused, broke, or was silent for too long.
            WatchExpired: 410.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self.timing.connect_timeout_s, sock_read=self.timing.silence_s
        )
        try:
            async with self._request("GET", path, query, None, timeout) as response:
                if response.status != 200:
                    answer = _checked(Answer(response.status, _object(await response.read())))
                    raise watch_error(answer.status, answer.message)
                rest = b""
                async for piece in response.content.iter_any():
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        yield line
                    if len(rest) > LINE_BYTES_MAX:
                        raise StoreUnavailable("a watch's event is too long")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise StoreUnavailable(f"the watch broke: {error or 'silent for too long'}") from error

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        if self._session is None or self._session.closed:
            raise NotSent("the store is closed")
        configuration = self._configuration
        headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
        headers |= await self._credentials()
        async with self._session.request(
            method,
            configuration.host.rstrip("/") + path,
            params=query,
            data=io.BytesIO(data) if data and len(data) > _BODY_IN_ONE_PIECE else data,
            headers=headers,
            timeout=timeout,
            proxy=configuration.proxy,
            proxy_headers=configuration.proxy_headers,
            server_hostname=configuration.tls_server_name or None,
            allow_redirects=False,
        ) as response:
            yield response

    # --- configuration ---

    async def _credentials(self) -> dict[str, str]:
        try:
            settings = await self._configuration.auth_settings()
        except Exception as error:
            raise NotSent(f"the service account's token can't be read: {error}") from error
        return {each["key"]: each["value"].strip() for each in settings.values() if each["value"]}

    def _ssl_context(self) -> Any:
        from kubernetes.aio.client.rest import RESTClientObject

        return RESTClientObject(self._configuration).ssl_context

    async def _load(self) -> None:
        async with self._loading:
            self._configuration = await self._loaded()

    async def _loaded(self) -> Any:
        try:
            config: Any = importlib.import_module("kubernetes.aio.config")
            from kubernetes.aio.client import Configuration
        except ImportError as error:
            raise InvalidConfig(
                "store=kubernetes needs the kubernetes package:"
                " pip install 'headrace[broker,kubernetes]'"
            ) from error
        configuration = Configuration()
        # A pod without a kubeconfig has its service account; everything else a kubeconfig.
        token = SERVICE_ACCOUNT / "token"
        try:
            if not self._kubeconfig and token.exists():
                certificate = SERVICE_ACCOUNT / "ca.crt"
                pod: Any = importlib.import_module("kubernetes.aio.config.incluster_config")
                loader = pod.InClusterConfigLoader(str(token), str(certificate))
                loader.load_and_set(configuration)
                self.namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
                return configuration
            file = self._kubeconfig or str(Path.home() / ".kube" / "config")
            await config.load_kube_config(
                config_file=file, client_configuration=configuration, persist_config=False
            )
            _, context = config.list_kube_config_contexts(config_file=file)
            self.namespace = context["context"].get("namespace") or "default"
        except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
            raise InvalidConfig(
                f"store=kubernetes: no usable way to the Kubernetes API: {error}; run in a pod"
                " with a service account, or set KUBECONFIG"
            ) from error
        return configuration


class WatchExpired(StoreUnavailable):
    """410: events were missed, list again."""


def watch_error(status: int, message: str) -> StoreUnavailable:
    """What a watch's refusal means."""
    if status == 410:
        return WatchExpired(f"the watch is too far behind: {message}")
    return StoreUnavailable(f"the watch was refused: {status} {message}")


def _checked(answer: Answer) -> Answer:
    """The answer, unless it says that we weren't let in."""
    match answer.status:
        case 401:
            raise NotSent("the Kubernetes API doesn't know us (401): check the service account")
        case 403:
            raise NotSent(
                f"the Kubernetes API forbids it: {answer.message}; see docs/store.md for the"
                " rights a broker needs"
            )
        case 429:
            raise NotSent("the Kubernetes API has too much to do (429), the store waits")
    return answer


def _object(raw: bytes) -> dict[str, Any]:
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
