"""Calls between brokers over HTTP, with the cluster's secret."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import msgspec

from headrace.broker.peers.base import PeerRefused
from headrace.protocol import routes
from headrace.protocol.errors import ConnectionFailed, HeadraceError, InternalError
from headrace.protocol.models import ErrorBody
from headrace.protocol.requests import BATCH_MEDIA_TYPE, SECRET_HEADER

CONNECTIONS_PER_PEER = 16
"""Calls to one broker at the same time; more wait."""

CONNECT_TIMEOUT_S = 2.0
"""A peer whose machine is gone doesn't refuse, it is silent."""

_errors = msgspec.json.Decoder(ErrorBody)


class HttpPeers:
    """`base.Peers` over one aiohttp session. `address` gives a broker's URL, or None."""

    def __init__(self, address: Callable[[int], str | None], *, secret: bytes) -> None:
        self._address = address
        self._headers = {SECRET_HEADER: secret.decode(), "Content-Type": BATCH_MEDIA_TYPE}
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS_PER_PEER),
            auto_decompress=False,
        )

    async def call(self, broker_id: int, path: str, body: bytes, *, timeout_s: float) -> memoryview:
        """See `base.Peers.call`."""
        address = self._address(broker_id)
        if address is None:
            raise ConnectionFailed(f"broker {broker_id} has not registered, its address is unknown")
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self.session.post(
                f"{address}{routes.INTERNAL_PREFIX}{path}",
                data=body,
                headers=self._headers,
                timeout=timeout,
            ) as response:
                raw = await response.read()
                if response.status == 200:
                    return memoryview(raw)
                raise _refusal(broker_id, response.status, raw)
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                raise PeerRefused(f"nobody listens at {address} (broker {broker_id})") from error
            raise ConnectionFailed(f"broker {broker_id} can't be reached: {error}") from error
        except TimeoutError as error:
            raise ConnectionFailed(
                f"broker {broker_id} didn't answer {path} in {timeout_s:g} s"
            ) from error
        except aiohttp.ClientError as error:
            raise ConnectionFailed(f"the call to broker {broker_id} broke off: {error}") from error

    async def close(self) -> None:
        """Closes all connections."""
        await self.session.close()


def _refusal(broker_id: int, status: int, raw: bytes) -> HeadraceError:
    try:
        return _errors.decode(raw).to_error()
    except msgspec.DecodeError:
        return InternalError(f"broker {broker_id} answered {status} without an error body")
