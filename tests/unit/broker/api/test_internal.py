"""Calls between brokers over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence

import aiohttp
import pytest
from aiohttp import web

from headrace.broker.api.auth import Policy
from headrace.broker.api.internal import WHOLE_BYTES, add_peer_routes
from headrace.broker.peers.base import PeerRefused
from headrace.broker.peers.over_http import HttpPeers
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    ConnectionFailed,
    FencedEpoch,
    Forbidden,
    InternalError,
    Unauthenticated,
)


async def echo(body: memoryview) -> Sequence[Buffer]:
    return [b"<", body, b">"]


async def refuse(body: memoryview) -> Sequence[Buffer]:
    raise FencedEpoch("epoch 3 is over", details={"leader_epoch": 4})


async def fault(body: memoryview) -> Sequence[Buffer]:
    raise KeyError("a fault of ours")


@pytest.fixture
async def address() -> AsyncIterator[str]:
    app = web.Application(client_max_size=1 << 24)
    add_peer_routes(app, {"echo": echo, "refuse": refuse, "fault": fault}, Policy(b"secret"))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ask(
    address: str | None, path: str, body: bytes = b"", secret: bytes = b"secret"
) -> bytes:
    peers = HttpPeers(lambda broker_id: address, secret=secret)
    try:
        return bytes(await peers.call(1, path, body, timeout_s=5))
    finally:
        await peers.close()


async def test_bytes_go_there_and_come_back(address: str) -> None:
    assert await ask(address, "echo", b"abc") == b"<abc>"


async def test_a_large_answer_comes_whole(address: str) -> None:
    body = bytes(range(256)) * (WHOLE_BYTES // 128)
    assert await ask(address, "echo", body) == b"<" + body + b">"


async def test_a_refusal_keeps_its_class_and_details(address: str) -> None:
    with pytest.raises(FencedEpoch) as refusal:
        await ask(address, "refuse")
    assert refusal.value.details == {"leader_epoch": 4}


async def test_a_fault_is_told_as_one(address: str) -> None:
    with pytest.raises(InternalError):
        await ask(address, "fault")


async def test_a_wrong_secret_and_none_are_refused(address: str) -> None:
    with pytest.raises(Unauthenticated):
        await ask(address, "echo", secret=b"another")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{address}/v1/internal/echo") as answer,
    ):
        assert answer.status == Forbidden.status


async def test_nobody_listening_is_told_apart_from_silence() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(PeerRefused):
            await ask(f"http://127.0.0.1:{bound.getsockname()[1]}", "echo")


async def test_a_broker_that_never_registered_has_no_address() -> None:
    with pytest.raises(ConnectionFailed, match="has not registered"):
        await ask(None, "echo")
