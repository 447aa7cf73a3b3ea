"""The HTTP transport against real sockets: bodies, headers, and errors that are ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from headrace.protocol.compression import Buffer
from headrace.sdk import Admin, Closed, ConnectionFailed, RequestTimedOut, Throttled
from headrace.sdk.errors import BrokerUnavailable, InternalError
from headrace.sdk.settings import ConnectionSettings
from headrace.sdk.transport import HttpTransport

Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.ServerRunner] = []

    async def start(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        runner = web.ServerRunner(web.Server(handler))  # type: ignore[arg-type]
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_pieces_arrive_end_to_end_with_the_clients_headers(serve: Serve) -> None:
    seen: list[web.BaseRequest] = []

    async def echo(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        return web.Response(body=await request.content.read())

    async def token() -> dict[str, str]:
        return {"Authorization": "Bearer x"}

    for credentials in (
        {"Authorization": "Bearer x"},
        lambda: {"Authorization": "Bearer x"},
        token,
    ):
        settings = ConnectionSettings(client_id="me", credentials=credentials)
        transport = HttpTransport(settings)
        pieces: list[Buffer] = [b"a", bytearray(b"b" * 3_000_000), memoryview(b"c")]
        answer = await transport.send("POST", await serve(echo), body=pieces, timeout=10)
        assert answer.status == 200
        assert answer.body == b"".join(pieces)
        assert seen[-1].headers["X-Headrace-Client"] == "me"
        assert seen[-1].headers["Authorization"] == "Bearer x"
        assert seen[-1].headers["Content-Length"] == "3000002"
        await transport.close()


async def test_nobody_there_is_connection_failed_and_surely_not_sent() -> None:
    transport = HttpTransport(ConnectionSettings())
    with pytest.raises(ConnectionFailed) as caught:
        await transport.send("GET", "http://127.0.0.1:1/x", timeout=5)
    assert caught.value.details == {"sent": False}
    with pytest.raises(ConnectionFailed):
        await transport.send("GET", "http://no-such-host.invalid/x", timeout=5)
    await transport.close()
    with pytest.raises(Closed):
        await transport.send("GET", "http://127.0.0.1:1/x", timeout=5)


async def test_no_answer_in_time_is_request_timed_out(serve: Serve) -> None:
    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    transport = HttpTransport(ConnectionSettings())
    with pytest.raises(RequestTimedOut) as caught:
        await transport.send("GET", await serve(slow), timeout=0.05)
    assert caught.value.details == {"sent": True}
    await transport.close()


async def test_a_connection_cut_in_the_answer_may_have_been_sent(serve: Serve) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    transport = HttpTransport(ConnectionSettings())
    with pytest.raises(ConnectionFailed) as caught:
        await transport.send("POST", await serve(cut), body=[b"x"], timeout=5)
    assert caught.value.details == {"sent": True}
    await transport.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [(429, Throttled), (502, BrokerUnavailable), (503, BrokerUnavailable), (404, InternalError)],
)
async def test_a_proxys_page_is_told_by_its_status(
    serve: Serve, status: int, error: type[Exception]
) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="<html>", headers={"Retry-After": "1"})

    async with Admin(await serve(page), request_timeout=0.2) as admin:
        with pytest.raises(error, match="form that is not Headrace's"):
            await admin.list_topics()


async def test_an_answer_of_another_form_is_no_json_error(serve: Serve) -> None:
    async def other(_: web.Request) -> web.StreamResponse:
        return web.Response(text="{}")

    async with Admin(await serve(other)) as admin:
        with pytest.raises(InternalError, match="is this a Headrace broker"):
            await admin.list_topics()


async def test_the_next_bootstrap_address_is_tried(serve: Serve) -> None:
    async def topics(_: web.Request) -> web.StreamResponse:
        return web.json_response({"topics": []})

    url = await serve(topics)
    async with Admin(f"http://127.0.0.1:1, {url}/", retry_backoff_ms=1) as admin:
        assert (await admin.list_topics()).topics == []
    async with Admin(["http://127.0.0.1:1", url], retry_backoff_ms=1) as admin:
        assert (await admin.list_topics()).topics == []
