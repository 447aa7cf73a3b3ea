"""From sockets to endpoints: what happens to every request, whoever serves it.

state → principal → parameters → authorisation → body (bounded in size, memory and time) →
handler, or the broker whose it is → answer or `ErrorBody`, counted either way.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from aiohttp import web

from headrace.broker.api.auth import Policy
from headrace.broker.api.endpoint import Call, Endpoint, parse_json, parse_parameters
from headrace.broker.api.errors import error_answer, from_aiohttp, unexpected
from headrace.broker.api.forwarding import Forwarder
from headrace.broker.api.freshness import Freshness
from headrace.broker.api.inflight import Inflight
from headrace.broker.api.internal import add_peer_routes
from headrace.broker.lifecycle import Lifecycle
from headrace.broker.metrics import Metrics
from headrace.broker.peers.base import PeerHandler
from headrace.broker.settings import MIB, Settings
from headrace.protocol.errors import (
    BrokerUnavailable,
    HeadraceError,
    InvalidRequest,
    PayloadTooLarge,
    SlowRequest,
    UnsupportedMediaType,
)
from headrace.protocol.requests import BATCH_MEDIA_TYPE

KEEPALIVE_S = 75.0
"""A connection on which no whole request head arrives for so long is closed."""

LINGER_S = 2.0
"""How long the rest of a refused body is still read, so that its sender gets to see the answer."""

LAST_WRITES_S = 2.0
"""How long answers that are ready may take to be written when the broker stops."""

SLOWEST_BYTES_PER_S = 65_536
"""A body that comes slower than this on the whole is given up."""


class Server:
    """Serves a table of endpoints on one port."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        settings: Settings,
        policy: Policy,
        lifecycle: Lifecycle,
        metrics: Metrics,
        inflight: Inflight,
        forwarder: Forwarder,
        fresh: Freshness,
        peer_handlers: Mapping[str, PeerHandler] | None = None,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._inflight = inflight
        self._forwarder = forwarder
        self._fresh = fresh
        self._app = web.Application(
            middlewares=[_refusals], client_max_size=settings.request_bytes_max + 1
        )
        for endpoint in endpoints:
            self._app.router.add_route(endpoint.method, endpoint.path, self._serve(endpoint))
        add_peer_routes(self._app, peer_handlers or {}, policy)
        self._runner = web.AppRunner(
            self._app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            read_bufsize=MIB,
            handle_signals=False,
            lingering_time=LINGER_S,
            shutdown_timeout=LAST_WRITES_S,
        )
        self._listener: asyncio.Server | None = None
        self._under_way = 0
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()

    async def start(self) -> int:
        """Listens; answers the port (which one, if the settings say 0).

        Raises:
            OSError: the port is taken.
        """
        await self._runner.setup()
        self._listener = await asyncio.get_running_loop().create_server(
            self._accept, self._settings.host, self._settings.port, backlog=1024
        )
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self, *, drain: bool = True) -> None:
        """Takes no new connections, lets requests end within `drain.timeout.ms`, closes all. To be
        called when the state says that nothing new is served. Without `drain` it aborts what is
        under way: another process has this broker's id and may be writing already."""
        if self._listener is not None:
            self._listener.close()
        if not drain and self._runner.server is not None:
            for connection in self._runner.server.connections:
                connection.force_close()
        # Not left to aiohttp, whose shutdown begins by reading nothing more from any connection:
        # a body that is under way would never arrive, and each stop would take the whole time.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_ms / 1000 if drain else 0):
                await self._none_under_way.wait()
        await self._runner.cleanup()

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._settings.connections_max:
            self._metrics.connections_refused.inc()
            return _Hangup()
        return server()

    def _serve(self, endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        measure = self._metrics.request_timer(endpoint.method, endpoint.path)

        async def serve(request: web.Request) -> web.StreamResponse:
            started = time.monotonic()
            status = 499  # nginx's number for a client that went away
            try:
                answer = await self._answer(endpoint, request)
                status = answer.status
                return answer
            except HeadraceError as error:
                status = error.status
                answer = error_answer(error)
                if isinstance(error, SlowRequest):
                    answer.force_close()
                return answer
            except web.HTTPException as error:
                status = error.status
                return error_answer(from_aiohttp(error, request))
            except (ConnectionError, asyncio.CancelledError):
                raise  # the client went away; there is nobody to answer
            except Exception as error:
                status = 500
                return error_answer(unexpected(error, request))
            finally:
                measure(status, time.monotonic() - started)

        return serve

    async def _answer(self, endpoint: Endpoint, request: web.Request) -> web.StreamResponse:
        if not (self._lifecycle.serving or endpoint.while_starting):
            raise BrokerUnavailable(
                f"the broker is {self._lifecycle.state}; try again shortly", retry_after_ms=500
            )
        with self._counted():
            return await self._serve_one(endpoint, request)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a request as under way; a stop waits for it."""
        self._under_way += 1
        self._none_under_way.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._none_under_way.set()

    async def _serve_one(self, endpoint: Endpoint, request: web.Request) -> web.StreamResponse:
        principal = self._policy.authenticate(request)
        path = parse_parameters(endpoint.path_model, dict(request.match_info), where="path")
        query = parse_parameters(endpoint.query_model, _query(request), where="query")
        self._policy.authorize(principal, endpoint.action, endpoint.resource(path))
        if hasattr(path, "topic"):
            await self._fresh.of_names([path.topic])
        owner = None
        if endpoint.owner is not None and self._forwarder.may_forward(request):
            owner = endpoint.owner(path)
        if not endpoint.binary and endpoint.body is None:
            if owner is not None:
                return await self._forwarder.pass_on(owner, request, principal, b"")
            return await endpoint.handler(Call(principal, path, query, None, request))
        with self._inflight.hold(self._expected_bytes(request)):
            raw = await self._read(request)
            if owner is not None:
                return await self._forwarder.pass_on(owner, request, principal, raw)
            body: object = raw
            if endpoint.binary:
                _require_batches(request)
            elif endpoint.body is not None:
                body = parse_json(endpoint.body, request.content_type, raw)
            return await endpoint.handler(Call(principal, path, query, body, request))

    def _expected_bytes(self, request: web.Request) -> int:
        """What the body will take in memory; one without a length counts as the largest."""
        length = request.content_length
        limit = self._settings.request_bytes_max
        if length is None:
            return limit if request.can_read_body else 0
        if length > limit:
            raise PayloadTooLarge(
                f"the body is {length:,} bytes, the broker takes {limit:,}; send less at once"
            )
        return length

    async def _read(self, request: web.Request) -> bytes:
        """The whole body. A sender that is silent for the idle time-out is given up, and one that
        stays under `SLOWEST_BYTES_PER_S` too: it would hold its memory for hours."""
        if request.content.is_eof():
            return await request.read()
        idle_s = self._settings.request_idle_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        latest = loop.time() + idle_s + self._expected_bytes(request) / SLOWEST_BYTES_PER_S
        parts: list[bytes] = []
        size_bytes = 0
        try:
            async with asyncio.timeout(idle_s) as deadline:
                while part := await request.content.readany():
                    size_bytes += len(part)
                    if size_bytes > self._settings.request_bytes_max:
                        raise PayloadTooLarge(
                            f"the body is over {self._settings.request_bytes_max:,} bytes; send"
                            " less at once"
                        )
                    parts.append(part)
                    deadline.reschedule(min(latest, loop.time() + idle_s))
        except TimeoutError as error:
            raise SlowRequest(
                f"the body came too slowly: {size_bytes:,} bytes had arrived, nothing for"
                f" {idle_s:g} s or less than {SLOWEST_BYTES_PER_S:,} bytes a second"
            ) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _query(request: web.Request) -> dict[str, str]:
    query = request.query
    if not query:
        return {}
    found = dict(query)
    if len(found) != len(query):
        raise InvalidRequest("a query parameter is given twice")
    return found


def _require_batches(request: web.Request) -> None:
    if request.content_type != BATCH_MEDIA_TYPE:
        raise UnsupportedMediaType(
            f"this path takes {BATCH_MEDIA_TYPE}, the request says {request.content_type};"
            " for JSON use /v1/topics/{topic}/records"
        )


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """aiohttp's own 404 and 405, which no endpoint sees."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return error_answer(from_aiohttp(error, request))


class _Hangup(asyncio.Protocol):
    """What a connection over the limit meets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes it."""
        transport.close()
