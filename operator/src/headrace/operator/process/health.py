"""/livez, /readyz and /metrics of the operator. A candidate that waits for its turn is ready: it is
where it should be."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from headrace.operator.process.metrics import Metrics
from headrace.protocol import routes

log = logging.getLogger("headrace.operator.health")


class Health:
    """The server. `is_alive`: whether the process does what it is there for; `state`: what it is
    doing, None while it can't do anything yet."""

    def __init__(
        self, metrics: Metrics, *, is_alive: Callable[[], bool], state: Callable[[], str | None]
    ) -> None:
        self._metrics = metrics
        self._is_alive = is_alive
        self._state = state
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens; a port below 0: doesn't.

        Raises:
            OSError: the port is taken.
        """
        if port < 0:
            return
        app = web.Application()
        app.router.add_get(routes.LIVEZ, self._livez)
        app.router.add_get(routes.READYZ, self._readyz)
        app.router.add_get(routes.METRICS, self._read_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        log.info("health on port %s", self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Listens no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        is_alive = self._is_alive()
        return web.json_response({"alive": is_alive}, status=200 if is_alive else 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        state = self._state()
        body = {"state": state or "starting"}
        return web.json_response(body, status=200 if state is not None else 503)

    async def _read_metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
