"""The cluster and its brokers, as clients and people see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from headrace.broker.api.endpoint import Call, json_answer
from headrace.broker.controller.coordination import Coordination
from headrace.broker.core.model import Registration
from headrace.broker.disk_space import DiskSpace
from headrace.broker.lifecycle import Lifecycle
from headrace.broker.partition.manager import PartitionManager
from headrace.protocol.errors import BrokerNotFound
from headrace.protocol.models import BrokerDetail, BrokerInfo, BrokerList, ClusterInfo


class BrokerPath(msgspec.Struct, forbid_unknown_fields=True):
    """A broker by id."""

    broker_id: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Cluster:
    """GET /v1/cluster, /v1/brokers, /v1/brokers/{broker_id}."""

    def __init__(
        self,
        coordination: Coordination,
        manager: PartitionManager,
        lifecycle: Lifecycle,
        disk: Callable[[], DiskSpace],
    ) -> None:
        self._coordination = coordination
        self._manager = manager
        self._lifecycle = lifecycle
        self._disk = disk

    async def describe(self, call: Call) -> web.StreamResponse:
        """GET /v1/cluster."""
        view = self._coordination.view
        cluster = view.cluster
        return json_answer(
            ClusterInfo(
                self._coordination.cluster_id,
                self._coordination.controller_id,
                self._brokers(),
                cluster.feature_level if cluster else 0,
                len(view.topics),
                sum(topic.partition_count for topic in view.topics.values()),
            )
        )

    async def brokers(self, call: Call) -> web.StreamResponse:
        """GET /v1/brokers."""
        return json_answer(BrokerList(self._brokers()))

    async def broker(self, call: Call) -> web.StreamResponse:
        """GET /v1/brokers/{broker_id}."""
        found = self._coordination.view.brokers.get(call.path.broker_id)
        if found is None:
            raise BrokerNotFound(f"no broker {call.path.broker_id} is registered")
        disk, info = self._disk(), _info(found)
        return json_answer(
            BrokerDetail(
                id=info.id,
                url=info.url,
                state=self._lifecycle.state,
                rack=info.rack,
                version=info.version,
                session=found.session,
                generation=list(found.generation),
                led_partitions=self._manager.led_count,
                offline_partitions=self._manager.offline_count,
                disk_free_bytes=disk.free_bytes,
                disk_reserve_bytes=disk.reserve_bytes,
                storage_full=disk.is_full,
                recovering=self._lifecycle.recovering,
            )
        )

    def _brokers(self) -> list[BrokerInfo]:
        return [_info(found) for _, found in sorted(self._coordination.view.brokers.items())]


def _info(found: Registration) -> BrokerInfo:
    return BrokerInfo(found.broker_id, found.url, found.state, found.rack, found.software)
