"""Calls between brokers in one process: a network of dictionaries that can be broken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.broker.peers.base import PeerHandler, PeerRefused
from headrace.protocol.errors import ConnectionFailed


class PeerNet:
    """Who listens, by broker id. `silent`: brokers whose machine is gone or whose process is
    stopped; `cut`: pairs (from, to) between which nothing arrives."""

    def __init__(self) -> None:
        self.handlers: dict[int, Mapping[str, PeerHandler]] = {}
        self.silent: set[int] = set()
        self.cut: set[tuple[int, int]] = set()
        self.calls = 0

    def peers_of(self, broker_id: int) -> NetPeers:
        """The way of one broker to the others."""
        return NetPeers(self, broker_id)


class NetPeers:
    """`Peers` over a `PeerNet`."""

    def __init__(self, net: PeerNet, own_id: int) -> None:
        self._net = net
        self._own_id = own_id

    async def call(self, broker_id: int, path: str, body: bytes, *, timeout_s: float) -> memoryview:
        """See `Peers.call`."""
        self._net.calls += 1
        await asyncio.sleep(0)
        if broker_id in self._net.silent or (self._own_id, broker_id) in self._net.cut:
            raise ConnectionFailed(f"broker {broker_id} is silent")
        handlers = self._net.handlers.get(broker_id)
        if handlers is None:
            raise PeerRefused(f"nobody listens for broker {broker_id}")
        return memoryview(b"".join(await handlers[path](memoryview(body))))
