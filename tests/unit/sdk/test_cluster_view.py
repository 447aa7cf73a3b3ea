"""What a client believes about leaders while they change under its hands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import pytest

from headrace.protocol import routes
from headrace.protocol.compression import Buffer
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.errors import ConnectionFailed
from headrace.sdk.settings import ConnectionSettings
from headrace.sdk.testing import InMemoryCluster
from headrace.sdk.transport import Response, Transport

UNREACHABLE = ConnectionFailed("nobody listens", details={"sent": False})


class SlowBrokerList(Transport):
    """Answers what the cluster answers; the list of brokers only once `gate` is set."""

    def __init__(self, within: Transport) -> None:
        self._within = within
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = asyncio.Event()

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: Sequence[Buffer] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Response:
        if url.endswith(routes.CLUSTER):
            self.held.set()
            await self.gate.wait()
        return await self._within.send(method, url, body=body, headers=headers, timeout=timeout)

    async def close(self) -> None:
        await self._within.close()


async def test_a_dead_leader_is_not_called_alive_by_news_from_before_the_election(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with InMemoryCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        transport = SlowBrokerList(cluster.transport())
        client = Client(cluster.url, ConnectionSettings(), transport)
        view = ClusterView(client)
        await view.topic("t")
        dead = view.url_of("t", 1)
        assert dead is not None
        with caplog.at_level(logging.WARNING, logger="headrace.sdk"):
            assert view.went_wrong(dead, UNREACHABLE)
            transport.gate.clear()
            transport.held.clear()
            asked_before = asyncio.create_task(view.refresh("t"))
            await transport.held.wait()
            cluster.set_leader("t", 1, 0)
            view.went_right(client.bootstrap_url, "t", 1)
            transport.gate.set()
            await asked_before
            await view.refresh("t")
            assert view.url_of("t", 1) != dead
            cluster.set_leader("t", 1, 1)
            await view.refresh("t")
            assert view.url_of("t", 1) == dead, "it is back, and asked directly"
        assert not caplog.records
        await view.close()
        await client.close()
