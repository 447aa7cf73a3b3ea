"""The one place where bytes leave the process: `Transport.send`, and aiohttp behind it.

Everything above speaks to the small interface, so tests put `headrace.sdk.testing` there (or a
fault-injecting wrapper) and no socket is opened. Errors of aiohttp never get past this file:

    ConnectionFailed   details["sent"] is False if the request can't have reached a broker
    RequestTimedOut    no answer in time; the request may have been carried out
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import aiohttp
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter

from headrace.protocol.compression import Buffer
from headrace.protocol.errors import Closed, ConnectionFailed, InvalidRequest, RequestTimedOut
from headrace.sdk.settings import ConnectionSettings

READ_BUFFER_BYTES = 1 << 20
"""aiohttp's default of 64 KiB halves the speed of large answers (measured)."""

JOIN_BYTES = 256 << 10
"""Bodies up to this are joined and leave with their headers in one system call: two wake the broker
twice. Above it, copying costs more than the call."""

KEEPALIVE_S = 30.0
"""Idle connections are given up sooner than servers and load balancers usually do (60 s and up), so
that a request seldom meets a connection that is just being closed."""


class Response(NamedTuple):
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Carries one request to one address."""

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: Sequence[Buffer] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Response:
        """The answer, whatever its status. `body` is pieces that are sent end to end.

        Raises:
            ConnectionFailed: see the module.
            RequestTimedOut: no answer within `timeout` seconds.
        """

    async def close(self) -> None:
        """Gives up all connections."""


class _Pieces(payload.Payload):
    """A body of several buffers, written one after another without joining them first."""

    def __init__(self, pieces: Sequence[Buffer], content_type: str) -> None:
        super().__init__(pieces, content_type=content_type)
        self._size = sum(len(piece) for piece in pieces)
        self._pieces = pieces if self._size > JOIN_BYTES else (b"".join(pieces),)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"".join(self._pieces)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._pieces:
            await writer.write(piece)


class HttpTransport:
    """HTTP/1.1 through aiohttp: a pool of kept connections, opened on first use."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: Sequence[Buffer] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Response:
        """See `Transport.send`."""
        session = self._session or self._open()
        sent_headers = {**(headers or {}), **await self._credentials()}
        content_type = sent_headers.pop("Content-Type", "application/json")
        data = _Pieces(body, content_type) if body else None
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=self._settings.connect_timeout)
        try:
            async with session.request(
                method, url, data=data, headers=sent_headers, timeout=limit, allow_redirects=False
            ) as answer:
                return Response(answer.status, answer.headers, await answer.read())
        except aiohttp.ConnectionTimeoutError as error:
            raise _failed(url, "connecting took too long", sent=False) from error
        except TimeoutError as error:
            raise RequestTimedOut(
                f"{url} did not answer within {timeout:.1f} s", details={"sent": True}
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise _failed(url, str(error), sent=False) from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise InvalidRequest(f"{url!r} is not an address") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise _failed(url, reason, sent=True) from error
        except RuntimeError as error:
            if session.closed:
                raise Closed("the client was closed while a request was under way") from error
            raise

    async def close(self) -> None:
        """See `Transport.close`."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise Closed("the client is closed")
        tls = self._settings.tls
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=KEEPALIVE_S,
            ssl=True if tls is None else tls,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            read_bufsize=READ_BUFFER_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"X-Headrace-Client": self._settings.client_id},
            skip_auto_headers=("User-Agent",),
        )
        return self._session

    async def _credentials(self) -> Mapping[str, str]:
        given = self._settings.credentials
        if given is None:
            return {}
        if isinstance(given, Mapping):
            return given
        found = given()
        return await found if inspect.isawaitable(found) else found

    def __del__(self) -> None:
        if self._session is not None and not self._session.closed:
            warnings.warn(
                "a Headrace client was not closed; use `async with`", ResourceWarning, stacklevel=2
            )


def _failed(url: str, reason: str, *, sent: bool) -> ConnectionFailed:
    return ConnectionFailed(f"{url} could not be reached: {reason}", details={"sent": sent})


def open_transport(url: str, settings: ConnectionSettings) -> Transport:
    """The transport for an address: aiohttp, or for `memory://` an in-memory cluster's."""
    if url.startswith("memory://"):
        from headrace.sdk.testing import transport_of

        return transport_of(url)
    return HttpTransport(settings)
