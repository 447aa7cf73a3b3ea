"""What brokers may ask each other, whatever carries it.

A call is a path below `/v1/internal/`, bytes there and bytes back. Production carries it by HTTP
with the cluster's secret (`over_http.HttpPeers`, `api.internal`), a simulation by its own network.
Calls may be lost, late, repeated or answered after the caller has gone: nothing here promises more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from headrace.protocol.compression import Buffer
from headrace.protocol.errors import ConnectionFailed


class PeerRefused(ConnectionFailed):
    """Nobody listens at the peer's address: unlike silence, that says its process is gone."""


PeerHandler = Callable[[memoryview], Awaitable[Sequence[Buffer]]]
"""Answers one path: the request's body in, the answer's pieces out (sent one after another). Raises
HeadraceError to refuse; the caller gets the same class."""


class Peers(Protocol):
    """The other brokers, as one broker reaches them."""

    async def call(self, broker_id: int, path: str, body: bytes, *, timeout_s: float) -> memoryview:
        """Asks a broker; `path` is relative to `/v1/internal/`.

        Raises:
            PeerRefused: nobody listens at its address: the process isn't there (H7).
            ConnectionFailed: no answer; it may have been carried out, or be carried out later.
            HeadraceError: the peer's own refusal.
        """
