"""One broker: a `Node` with the HTTP servers in front, started and stopped in a safe order.

Start: health port → data directory (lock, markers) → store → registration (session, generation)
→ API port (answers "starting") → logs recovered → elections → running.
Stop (SIGTERM): draining → requests end → logs synced → `clean` marker → registration → store.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
from importlib.metadata import version
from pathlib import Path

from headrace.broker.api.anywhere import OffsetsAnywhere, ProduceAnywhere
from headrace.broker.api.auth import Policy
from headrace.broker.api.cluster import Cluster
from headrace.broker.api.cluster_health import HealthOfCluster
from headrace.broker.api.fetch import Fetch
from headrace.broker.api.fetch_anywhere import FetchAnywhere
from headrace.broker.api.forwarding import Forwarder
from headrace.broker.api.freshness import Freshness
from headrace.broker.api.groups import Groups
from headrace.broker.api.health import HealthServer
from headrace.broker.api.inflight import Inflight
from headrace.broker.api.offsets import Offsets
from headrace.broker.api.owners import Owners
from headrace.broker.api.produce import Produce
from headrace.broker.api.reassignments import ReassignmentsApi
from headrace.broker.api.records import Records
from headrace.broker.api.server import Server
from headrace.broker.api.shielding import end_all
from headrace.broker.api.table import Handlers
from headrace.broker.api.topics import Topics
from headrace.broker.api.upkeep import Upkeep
from headrace.broker.api.whole_cluster import WholeCluster
from headrace.broker.clock import Clock, SystemClock
from headrace.broker.group_metrics import GroupCollector
from headrace.broker.lifecycle import DRAINING, STATES, STOPPED, Lifecycle
from headrace.broker.log.volume import Volume
from headrace.broker.metrics import BrokerSample, Metrics, StateCollector
from headrace.broker.node import GOODBYE_S, Node, Ports
from headrace.broker.peers.over_http import HttpPeers
from headrace.broker.rack import rack_of
from headrace.broker.replication.collector import ReplicationCollector
from headrace.broker.sampling import broker_sample, topic_samples
from headrace.broker.settings import Settings, static_keys
from headrace.broker.stall import StallMeter
from headrace.broker.store.base import Store
from headrace.broker.store.sqlite import SqliteStore
from headrace.protocol.errors import InvalidConfig

log = logging.getLogger(__name__)

SECRET_BYTES = 32


class Broker:
    """One broker: `start`, then serve until somebody calls `stop`."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._lifecycle = Lifecycle()
        self._metrics = Metrics()
        self._inflight = Inflight(settings.inflight_bytes_max)
        self._stall = StallMeter(self._clock.monotonic)
        self._overtaken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._health = HealthServer(self._lifecycle, self._metrics.registry)
        self._secret = b""
        self._store: Store | None = None
        self._peers: HttpPeers | None = None
        self._node: Node | None = None
        self._server: Server | None = None
        self._fetch: Fetch | None = None
        self._forwarder: Forwarder | None = None

    @property
    def lifecycle(self) -> Lifecycle:
        """What the broker is doing."""
        return self._lifecycle

    async def overtaken(self) -> str:
        """Returns, with the reason, once another process has taken this broker's id."""
        return await asyncio.shield(self._overtaken)

    def _set_overtaken(self, reason: str) -> None:
        if not self._overtaken.done():
            self._overtaken.set_result(reason)

    # --- start ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts everything; returns once clients are served.

        Raises:
            HeadraceError, OSError: why it can't; call `stop(clean=False)` then.
        """
        settings = self.settings
        await self._health.start(settings.health_host or settings.host, settings.health_port)
        rack = await rack_of(settings.rack, settings.rack_file)
        self.settings = dataclasses.replace(settings, rack=rack or "")
        node = await self._make_node()
        await node.join()
        self._server = self._make_server(node)
        await self._server.start()
        node.tasks.once(self._stall.run(), name="stall-meter")
        await node.serve()
        log.info(
            "broker %d of cluster %s serves %s, %d partitions led",
            settings.broker_id, node.coordination.cluster_id, settings.url,
            node.partitions.led_count,
        )  # fmt: skip

    async def _make_node(self) -> Node:
        settings = self.settings
        volume = Volume.open(settings.data_dir, broker_id=settings.broker_id)
        try:
            self._secret = load_secret(settings)
            store = self._store = await open_store(settings.store_url)
        except BaseException:
            volume.release()
            raise
        peers = self._peers = HttpPeers(self._address_of, secret=self._secret)
        self._node = Node(
            settings,
            volume,
            Ports(store=store, peers=peers, clock=self._clock),
            software=version("headrace"),
            on_overtaken=self._set_overtaken,
            lifecycle=self._lifecycle,
        )
        return self._node

    def _address_of(self, broker_id: int) -> str | None:
        return None if self._node is None else self._node.address_of(broker_id)

    def _make_server(self, node: Node) -> Server:
        settings, clock, manager = self.settings, self._clock, node.partitions
        policy = Policy(self._secret)
        fetch = self._fetch = Fetch(
            manager, policy=policy, clock=clock, settings=settings, inflight=self._inflight,
            lifecycle=self._lifecycle, quotas=node.quotas,
        )  # fmt: skip
        produce = Produce(
            manager, policy=policy, clock=clock, metrics=self._metrics, disk=node.disk_guard,
            quotas=node.quotas,
        )  # fmt: skip
        owners = Owners(node.coordination.view, broker_id=settings.broker_id)
        forwarder = self._forwarder = Forwarder(
            node.address_of, broker_id=settings.broker_id, secret=self._secret,
            inflight=self._inflight, metrics=self._metrics,
        )  # fmt: skip
        assert self._store is not None
        fresh = Freshness(
            self._store, node.coordination.view, manager, broker_id=settings.broker_id
        )
        produce_anywhere = ProduceAnywhere(produce, owners, forwarder, fresh)
        offsets = OffsetsAnywhere(Offsets(manager), owners, forwarder, fresh)
        handlers = Handlers(
            produce=produce_anywhere,
            fetch=FetchAnywhere(fetch, owners, forwarder, fresh, self._inflight),
            records=Records(
                manager,
                produce_anywhere,
                fetch,
                fresh=fresh,
                clock=clock,
                inflight=self._inflight,
            ),
            offsets=offsets,
            owners=owners,
            whole=WholeCluster(owners, forwarder, offsets),
            health=HealthOfCluster(node.coordination),
            reassignments=ReassignmentsApi(
                node.coordination.reassignments, bytes_left=node.bytes_left.find_out
            ),
            topics=Topics(node.coordination, manager),
            groups=Groups(node.groups, manager, settings.broker_id),
            cluster=Cluster(
                node.coordination, manager, self._lifecycle, lambda: node.disk_guard.space
            ),
            upkeep=Upkeep(node.coordination, manager, static_keys=static_keys()),
        )
        self._metrics.registry.register(GroupCollector(node.groups, node.group_lag))
        self._metrics.registry.register(
            StateCollector(
                lambda: self._sample(node), lambda: topic_samples(manager), STATES
            )
        )  # fmt: skip
        self._metrics.registry.register(ReplicationCollector(node.replication, manager))
        return Server(
            handlers.endpoints, settings=settings, policy=policy, lifecycle=self._lifecycle,
            metrics=self._metrics, inflight=self._inflight, peer_handlers=node.peer_handlers,
            forwarder=forwarder, fresh=fresh,
        )  # fmt: skip

    def _sample(self, node: Node) -> BrokerSample:
        self._metrics.loop_stall.set(self._stall.max_s)
        return broker_sample(node, self._inflight)

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self, *, clean: bool = True) -> None:
        """Stops what was started, in reverse. `clean`: requests end and logs are synced first, and
        the next start needs no recovery; otherwise it is as if the process had been killed."""
        node, is_told = self._node, False
        if clean and node is not None:
            is_told = await node.drain()
        self._lifecycle.state = DRAINING
        if self._fetch is not None:
            self._fetch.wake_all()
        if self._server is not None:
            await self._server.stop(drain=clean)
        await end_all(GOODBYE_S)
        if node is not None:
            await node.close_logs(clean=clean)
            await node.leave(clean=is_told)
        if self._forwarder is not None:
            await self._forwarder.close()
        if self._peers is not None:
            await self._peers.close()
        if self._store is not None:
            await self._store.close()
        self._lifecycle.state = STOPPED
        await self._health.stop()
        log.info("stopped %s", "cleanly" if clean else "without a clean marker")


async def open_store(url: str) -> Store:
    """The store that the settings name.

    Raises:
        StoreUnavailable: it can't be opened.
        InvalidConfig: there is no usable way to the Kubernetes API.
    """
    if url.startswith("kubernetes:"):
        from headrace.broker.store.kubernetes import KubernetesStore

        namespace, _, cluster = url.removeprefix("kubernetes:").partition("/")
        return await KubernetesStore.open(cluster=cluster, namespace=namespace)
    path = Path(url.removeprefix("sqlite:"))
    path.parent.mkdir(parents=True, exist_ok=True)
    return await SqliteStore.open(path)


def load_secret(settings: Settings) -> bytes:
    """The secret between brokers: from the file that the settings name, else from one in the
    data folder, made at the first start (0600).

    Raises:
        InvalidConfig: the file can't be read or is empty.
    """
    named = settings.cluster_secret_file
    path = Path(named) if named else Path(settings.data_dir) / "cluster-secret"
    try:
        if not named and not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(SECRET_BYTES))
        secret = path.read_bytes().strip()
    except OSError as error:
        raise InvalidConfig(f"the cluster secret can't be read: {error}") from error
    if not secret:
        raise InvalidConfig(f"the cluster secret in {path} is empty")
    return secret
