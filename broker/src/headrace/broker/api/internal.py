"""The paths between brokers (`/v1/internal/...`): `Node.peer_handlers` carried by HTTP.

Not in the OpenAPI document: they may change with every version. They are served as soon as the
port is open, also while the broker starts or drains; each handler says what it can't do yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web

from headrace.broker.api.auth import Policy
from headrace.broker.api.errors import error_answer, unexpected
from headrace.broker.peers.base import PeerHandler
from headrace.protocol import routes
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import HeadraceError
from headrace.protocol.requests import BATCH_MEDIA_TYPE

WHOLE_BYTES = 256 << 10
"""Answers up to this go out in one write."""


def add_peer_routes(
    app: web.Application, handlers: Mapping[str, PeerHandler], policy: Policy
) -> None:
    """Serves each handler as POST, for those who show the cluster's secret."""
    for name, handler in handlers.items():
        path = routes.INTERNAL_PREFIX + name
        app.router.add_post(path, _serve(path, handler, policy))


def _serve(
    path: str, handler: PeerHandler, policy: Policy
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            policy.authorize(policy.authenticate(request), "call", path)
            pieces = await handler(memoryview(await request.read()))
        except HeadraceError as error:
            return error_answer(error)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception as error:
            return error_answer(unexpected(error, request))
        return await _send(request, pieces)

    return serve


async def _send(request: web.Request, pieces: Sequence[Buffer]) -> web.StreamResponse:
    size_bytes = sum(len(piece) for piece in pieces)
    if size_bytes <= WHOLE_BYTES:
        return web.Response(body=b"".join(pieces), content_type=BATCH_MEDIA_TYPE)
    response = web.StreamResponse()
    response.content_type = BATCH_MEDIA_TYPE
    response.content_length = size_bytes
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)  # a fast reader's socket never makes `write` wait
    await response.write_eof()
    return response
