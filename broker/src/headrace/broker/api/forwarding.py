"""The one hop from the broker that a client reached to the broker that has to answer.

Whole requests are passed on byte by byte (`pass_on`), parts of requests are asked for (`ask`). The
hop carries the cluster's secret, the client's id and principal, and this broker's id: what arrives
with that is never passed on again, so nothing can go round in circles. Clients that go to leaders
themselves (`X-Headrace-Route: direct`) aren't forwarded either: they want to hear `not_leader`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from aiohttp import payload, web
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from headrace.broker.api.auth import Principal, principal_text
from headrace.broker.api.endpoint import JSON
from headrace.broker.api.inflight import Inflight
from headrace.broker.metrics import Metrics
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    BrokerUnavailable,
    HeadraceError,
    InternalError,
    RequestTimedOut,
    Throttled,
)
from headrace.protocol.models import ErrorBody
from headrace.protocol.requests import (
    BATCH_MEDIA_TYPE,
    CLIENT_HEADER,
    FORWARDED_HEADER,
    PRINCIPAL_HEADER,
    ROUTE_DIRECT,
    ROUTE_HEADER,
    SECRET_HEADER,
)

log = logging.getLogger(__name__)

HOP_TIMEOUT_S = 90.0
"""For requests that don't say how long they may take: longer than the longest poll."""

GRACE_S = 5.0
"""What a hop may take beyond the wait that the request itself asks for."""

CONNECT_TIMEOUT_S = 1.0
"""A broker whose machine is gone doesn't refuse, it is silent; the client tries again anyway."""

HOPS_MAX = 1_024
"""Requests passed on at the same time; parked polls are most of them. More are refused with 429."""

RETRY_AFTER_MS = 100
"""What a client is told to wait while a leader is gone: about the time until there is another."""

PIECE_BYTES = 256 * 1024
"""Answers up to this are passed on in one write, larger ones as they come."""

_errors = msgspec.json.Decoder(ErrorBody)
_KEPT_HEADERS = ("Content-Type", "Retry-After")


class Forwarder:
    """Reaches the other brokers in the name of clients. `address` gives a broker's URL, or None."""

    def __init__(
        self,
        address: Callable[[int], str | None],
        *,
        broker_id: int,
        secret: bytes,
        inflight: Inflight,
        metrics: Metrics,
    ) -> None:
        self._address = address
        self._own_headers = {SECRET_HEADER: secret.decode(), FORWARDED_HEADER: str(broker_id)}
        self._inflight = inflight
        self._metrics = metrics
        self._under_way = 0
        self._session: aiohttp.ClientSession | None = None

    def may_forward(self, request: web.BaseRequest) -> bool:
        """Whether the request may go to another broker from here."""
        headers = request.headers
        return FORWARDED_HEADER not in headers and headers.get(ROUTE_HEADER) != ROUTE_DIRECT

    async def pass_on(
        self,
        broker_id: int,
        request: web.Request,
        principal: Principal,
        body: Buffer,
        *,
        timeout_s: float = HOP_TIMEOUT_S,
    ) -> web.StreamResponse:
        """Another broker's answer to the whole request, whatever its status.

        Raises:
            BrokerUnavailable: it can't be reached; nothing was done.
            RequestTimedOut: no answer; it may have been done.
            Throttled: too many requests are being passed on.
        """
        path = request.rel_url.raw_path_qs
        content = _Pieces([body], request.headers.get("Content-Type", JSON)) if body else None
        async with self._hop(
            broker_id, request.method, path, content, request, principal, timeout_s
        ) as answer:
            headers = {key: answer.headers[key] for key in _KEPT_HEADERS if key in answer.headers}
            length = answer.content_length
            if length is not None and length <= PIECE_BYTES:
                data = await answer.read()
                return web.Response(status=answer.status, headers=headers, body=data)
            return await _stream(request, answer, headers)

    async def ask(
        self,
        broker_id: int,
        method: str,
        path: str,
        body: Sequence[Buffer],
        *,
        request: web.Request,
        principal: Principal,
        binary: bool = False,
        timeout_s: float = HOP_TIMEOUT_S,
    ) -> bytes:
        """The body of another broker's good answer to a part of `request`; `binary` says that the
        part is batches, not JSON.

        Raises:
            HeadraceError: its refusal, and what `pass_on` raises.
        """
        kind = BATCH_MEDIA_TYPE if binary else JSON
        async with self._hop(
            broker_id, method, path, _Pieces(body, kind), request, principal, timeout_s
        ) as answer:
            with self._inflight.hold(answer.content_length or 0):
                data = await answer.read()
            if answer.status >= 300:
                raise _refusal(broker_id, answer.status, data)
            return data

    @asynccontextmanager
    async def _hop(
        self,
        broker_id: int,
        method: str,
        path: str,
        content: _Pieces | None,
        request: web.Request,
        principal: Principal,
        timeout_s: float,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        address = self._address(broker_id)
        if address is None:
            raise _unreachable(broker_id, "its address is unknown")
        if self._under_way >= HOPS_MAX:
            raise Throttled(
                f"this broker passes {HOPS_MAX} requests on already; go to the leaders directly"
                " (route='auto') or try again shortly",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._under_way += 1
        result = "failed"
        try:
            async with self._open().request(
                method,
                URL(address + path, encoded=True),
                data=content,
                headers=self._headers(request, principal),
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                allow_redirects=False,
            ) as answer:
                result = "answered"
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _unreachable(broker_id, str(error)) from error
        except TimeoutError as error:
            raise RequestTimedOut(
                f"broker {broker_id} did not answer within {timeout_s:g} s; it may still do what"
                " was asked"
            ) from error
        except aiohttp.ClientError as error:
            raise RequestTimedOut(
                f"the connection to broker {broker_id} broke ({error or type(error).__name__}); it"
                " may have done what was asked"
            ) from error
        finally:
            self._under_way -= 1
            self._metrics.forwarded.labels(result).inc()

    def _headers(self, request: web.Request, principal: Principal) -> dict[str, str]:
        headers = {**self._own_headers, PRINCIPAL_HEADER: principal_text(principal)}
        client = request.headers.get(CLIENT_HEADER)
        return headers if client is None else {**headers, CLIENT_HEADER: client}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=4 * PIECE_BYTES,
                auto_decompress=False,
                skip_auto_headers=("User-Agent",),
            )
        return self._session

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()


class _Pieces(payload.Payload):
    """A body of several buffers with a known length, written one after another."""

    def __init__(self, pieces: Sequence[Buffer], content_type: str) -> None:
        super().__init__(pieces, content_type=content_type)
        self._pieces = pieces
        self._size = sum(len(piece) for piece in pieces)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"".join(self._pieces)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._pieces:
            await writer.write(piece)


async def _stream(
    request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = answer.content_length
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_chunked(PIECE_BYTES):
            await response.write(piece)
        await response.write_eof()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        # The status is out already: cutting the connection is the one way left to say "not so".
        log.debug("an answer that was passed on broke off: %r", error)
        request.protocol.force_close()
    return response


def _unreachable(broker_id: int, reason: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"broker {broker_id} has to answer this and can't be reached ({reason}); try again shortly",
        retry_after_ms=RETRY_AFTER_MS,
    )


def _refusal(broker_id: int, status: int, raw: bytes) -> HeadraceError:
    try:
        return _errors.decode(raw).to_error()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return InternalError(f"broker {broker_id} answered {status} without an error body")
