"""The port for kubelets and Prometheus: no data, no authentication, answers in every state.

`/livez` is about the process alone: a broker that recovers its log for an hour is alive, and
killing it would start the hour again. `/readyz` says whether clients are served.
"""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from headrace.broker.api.endpoint import json_answer
from headrace.broker.lifecycle import Lifecycle
from headrace.protocol import routes
from headrace.protocol.models import Health


class HealthServer:
    """Serves /livez, /readyz and /metrics from before the first byte of recovery on."""

    def __init__(self, lifecycle: Lifecycle, registry: CollectorRegistry) -> None:
        self._lifecycle = lifecycle
        self._registry = registry
        app = web.Application()
        app.router.add_get(routes.LIVEZ, self._live)
        app.router.add_get(routes.READYZ, self._ready)
        app.router.add_get(routes.METRICS, self._metrics)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self, host: str, port: int) -> None:
        """Listens.

        Raises:
            OSError: the port is taken.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        """Closes the port."""
        await self._runner.cleanup()

    async def _live(self, request: web.Request) -> web.Response:
        return json_answer(self._health())

    async def _ready(self, request: web.Request) -> web.Response:
        health = self._health()
        return json_answer(health, status=200 if health.ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    def _health(self) -> Health:
        lifecycle = self._lifecycle
        return Health(lifecycle.state, lifecycle.ready, lifecycle.recovering)
