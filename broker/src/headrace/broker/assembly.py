"""The one place where a broker is built and wired, started in order and stopped in order.

Start: health port → lock and markers of the data directory → store → registration → client port
(answers `broker_unavailable`) → recovery → elections → running.
Stop (SIGTERM): draining → requests end → logs synced → `clean` marker → registration → store.
Each step leaves what a crash at that point may leave: the next start can't tell a stop that was
cut short from a kill, and needn't.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from headrace.broker.api.auth import Policy
from headrace.broker.api.cluster import Cluster
from headrace.broker.api.fetch import Fetch
from headrace.broker.api.groups import Groups
from headrace.broker.api.health import HealthServer
from headrace.broker.api.inflight import Inflight
from headrace.broker.api.offsets import Offsets
from headrace.broker.api.produce import Produce
from headrace.broker.api.records import Records
from headrace.broker.api.server import Server
from headrace.broker.api.shielding import end_all
from headrace.broker.api.table import Handlers
from headrace.broker.api.topics import Topics
from headrace.broker.clock import Clock, SystemClock
from headrace.broker.controller.coordination import Coordination
from headrace.broker.controller.membership import Identity
from headrace.broker.core.model import TopicObject
from headrace.broker.disk_space import DiskGuard
from headrace.broker.groups.offsets import GroupCoordinator
from headrace.broker.lifecycle import (
    DRAINING,
    RECOVERING,
    RUNNING,
    STATES,
    STOPPED,
    Lifecycle,
)
from headrace.broker.log.compaction_process import CompactionProcess
from headrace.broker.log.logs import Logs
from headrace.broker.log.volume import Volume
from headrace.broker.metrics import BrokerSample, Metrics, StateCollector, TopicSample
from headrace.broker.partition.cleaner import Cleaner, CleaningStats
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.quotas import Quotas
from headrace.broker.settings import Settings
from headrace.broker.stall import StallMeter
from headrace.broker.store.base import Store
from headrace.broker.store.sqlite import SqliteStore
from headrace.broker.tasks import TaskGroup
from headrace.protocol.errors import HeadraceError, InvalidConfig
from headrace.protocol.ids import TopicId

log = logging.getLogger(__name__)

SECRET_BYTES = 32
FLUSH_TICK_S = 0.1
"""How exactly flush.ms is kept."""

GOODBYE_S = 5.0
"""How long each of the two words to the store at a stop may take (draining, lease given up), and
what was begun for clients who have hung up."""

SPACE_INTERVAL_S = 1.0
"""Pause between two looks at the free space, besides those that writes cause."""


class Broker:
    """One broker: `start`, then serve until somebody calls `stop`."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self.lifecycle = Lifecycle()
        self._metrics = Metrics()
        self._inflight = Inflight(settings.inflight_bytes_max)
        self._stall = StallMeter(self._clock.monotonic)
        self._tasks = TaskGroup()
        self._overtaken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._health = HealthServer(self.lifecycle, self._metrics.registry)
        self._logs: Logs | None = None
        self._store: Store | None = None
        self._coordination: Coordination | None = None
        self._server: Server | None = None
        self._fetch: Fetch | None = None
        self._cleaner: Cleaner | None = None

    async def overtaken(self) -> str:
        """Returns, with the reason, once another process has taken this broker's id."""
        return await asyncio.shield(self._overtaken)

    # --- start ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts everything; returns once clients are served.

        Raises:
            HeadraceError, OSError: why it can't; call `stop(clean=False)` then.
        """
        settings = self.settings
        await self._health.start(settings.health_host or settings.host, settings.health_port)
        volume = Volume.open(settings.data_dir, broker_id=settings.broker_id)
        logs = self._logs = Logs(
            volume, files_max=settings.files_max, io_threads=settings.io_threads,
            flush_threads=settings.flush_threads,
        )  # fmt: skip
        store = self._store = await open_store(settings.store_url)
        coordination = self._coordination = Coordination(
            store,
            Identity(
                broker_id=settings.broker_id, url=settings.url, rack=settings.rack or None,
                software=version("headrace"),
            ),
            local=logs.local_state,
            prepare=logs.prepare,
            on_overtaken=self._set_overtaken,
        )  # fmt: skip
        standing = await coordination.start()
        manager = self._wire(logs, coordination)
        assert self._server is not None
        await self._server.start()
        self.lifecycle.state = RECOVERING
        await manager.recover(self.lifecycle)
        await logs.begin()
        manager.serve_as(standing.session)
        coordination.view.listen(manager.on_event)
        self._run_upkeep(manager)
        await coordination.activate()
        await manager.settled()
        self.lifecycle.state = RUNNING
        log.info(
            "broker %d of cluster %s serves %s, %d partitions led",
            settings.broker_id, coordination.cluster_id, settings.url, manager.led_count,
        )  # fmt: skip

    def _wire(self, logs: Logs, coordination: Coordination) -> PartitionManager:
        settings, clock = self.settings, self._clock
        policy = Policy(load_secret(settings))
        disk = DiskGuard(settings.data_dir, reserve_bytes=settings.disk_reserve_bytes)
        quotas = Quotas(
            clock, client_produce=settings.client_produce_rate,
            client_fetch=settings.client_fetch_rate,
        )  # fmt: skip
        manager = PartitionManager(
            logs, coordination.view, broker_id=settings.broker_id,
            partitions_max=settings.partitions_max, quotas=quotas, clock=clock,
        )  # fmt: skip
        groups = GroupCoordinator(
            clock,
            spawn=lambda name, work: self._tasks.once(work, name=name),
            is_dead=coordination.view.is_tombstoned,
        )
        self._connect(manager, groups)
        fetch = self._fetch = Fetch(
            manager, policy=policy, clock=clock, settings=settings, inflight=self._inflight,
            lifecycle=self.lifecycle, quotas=quotas,
        )  # fmt: skip
        produce = Produce(
            manager, policy=policy, clock=clock, metrics=self._metrics, disk=disk, quotas=quotas
        )
        handlers = Handlers(
            produce=produce,
            fetch=fetch,
            records=Records(manager, produce, fetch, clock=clock, inflight=self._inflight),
            offsets=Offsets(manager),
            topics=Topics(coordination, manager),
            groups=Groups(groups, manager, settings.broker_id),
            cluster=Cluster(coordination, manager, self.lifecycle, lambda: disk.space),
        )
        self._server = Server(
            handlers.endpoints, settings=settings, policy=policy, lifecycle=self.lifecycle,
            metrics=self._metrics, inflight=self._inflight,
        )  # fmt: skip
        self._tasks.every(SPACE_INTERVAL_S, refresh(disk), name="disk-space")
        cleaner = self._cleaner = Cleaner(
            manager, CompactionProcess(), clock=clock,
            memory_bytes=settings.compaction_memory_bytes,
            bytes_per_second=settings.compaction_rate,
            free_bytes=lambda: disk.space.free_bytes - disk.space.reserve_bytes,
        )  # fmt: skip
        self._metrics.registry.register(
            StateCollector(
                lambda: self._broker_sample(manager, disk, quotas, cleaner.stats),
                lambda: topic_samples(manager),
                STATES,
            )
        )
        return manager

    def _connect(self, manager: PartitionManager, groups: GroupCoordinator) -> None:
        """Groups follow the partitions of `__offsets`."""

        def lead(partition: Partition, topic: TopicObject) -> None:
            groups.lead(partition, topic.partition_count)

        def gone(topic_id: TopicId) -> None:
            self._tasks.once(groups.forget_topic(topic_id), name="forget-offsets")

        manager.on_lead = lead
        manager.on_resign = lambda partition: groups.resign(partition.id.partition)
        manager.on_topic_gone = gone

    def _run_upkeep(self, manager: PartitionManager) -> None:
        settings = self.settings
        self._tasks.once(manager.run(), name="partitions")
        self._tasks.every(FLUSH_TICK_S, self._flush_tick, name="flush")
        self._tasks.once(self._stall.run(), name="stall-meter")
        self._tasks.every(
            settings.retention_interval_ms / 1000, manager.apply_retention, name="retention"
        )
        self._tasks.every(
            settings.checkpoint_interval_ms / 1000, manager.checkpoint, name="checkpoint"
        )
        assert self._cleaner is not None
        self._tasks.every(
            settings.compaction_interval_ms / 1000, self._cleaner.work, name="compaction"
        )

    async def _flush_tick(self) -> None:
        assert self._logs is not None
        self._logs.flusher.tick(int(self._clock.monotonic() * 1000))

    def _set_overtaken(self, reason: str) -> None:
        if not self._overtaken.done():
            self._overtaken.set_result(reason)

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self, *, clean: bool = True) -> None:
        """Stops what was started, in reverse. `clean`: requests end and logs are synced first, and
        the next start needs no recovery; otherwise it is as if the process had been killed."""
        self.lifecycle.state = DRAINING
        if self._fetch is not None:
            self._fetch.wake_all()
        is_told = False
        if clean and self._coordination is not None:
            is_told = await tell_cluster(self._coordination.drain())
        if self._server is not None:
            await self._server.stop(drain=clean)
        await end_all(GOODBYE_S)
        await self._tasks.stop()
        if self._logs is not None:
            await self._logs.close(clean=clean)
        if self._coordination is not None:
            await tell_cluster(self._coordination.stop(clean=is_told))
        if self._store is not None:
            await self._store.close()
        self.lifecycle.state = STOPPED
        await self._health.stop()
        log.info("stopped %s", "cleanly" if clean else "without a clean marker")

    # --- numbers ----------------------------------------------------------------------------------

    def _broker_sample(
        self,
        manager: PartitionManager,
        disk: DiskGuard,
        quotas: Quotas,
        cleaning: CleaningStats,
    ) -> BrokerSample:
        assert self._logs is not None
        self._metrics.loop_stall.set(self._stall.max_s)
        return BrokerSample(
            state=self.lifecycle.state,
            led_partitions=manager.led_count,
            offline_partitions=manager.offline_count,
            open_files=self._logs.open_files,
            inflight_bytes=self._inflight.used_bytes,
            throttled=self._inflight.refused + quotas.throttled,
            disk_free_bytes=disk.space.free_bytes,
            storage_full=disk.space.is_full,
            syncs=self._logs.flusher.syncs,
            recovering_remaining=self.lifecycle.recovering_remaining,
            compactions=cleaning.passes,
            compaction_failures=cleaning.failures,
            compaction_bytes_read=cleaning.bytes_read,
            compaction_bytes_written=cleaning.bytes_written,
            compaction_records_removed=cleaning.records_removed,
            compaction_seconds=cleaning.seconds,
            dirty_ratio_max=cleaning.dirty_ratio_max,
        )


async def tell_cluster(goodbye: Awaitable[None]) -> bool:
    """One word to the store at the end; whether it was taken. A store that can't be reached is no
    reason to skip the rest of a clean stop, nor to wait for long: others then learn of it by the
    lease."""
    try:
        async with asyncio.timeout(GOODBYE_S):
            await goodbye
        return True
    except TimeoutError:
        log.warning("the cluster wasn't told of the stop: no answer in %g s", GOODBYE_S)
    except HeadraceError as error:
        log.warning("the cluster wasn't told of the stop: %s", error)
    return False


def topic_samples(manager: PartitionManager) -> Iterator[TopicSample]:
    """Each topic's sums over its partitions here."""
    sums: dict[str, TopicSample] = {}
    for partition in manager:
        found = sums.setdefault(partition.topic, TopicSample(partition.topic))
        stats = partition.stats
        found.partitions += 1
        found.offline += partition.log.failure is not None
        found.size_bytes += partition.log.size_bytes
        found.bytes_in += stats.bytes_in
        found.records_in += stats.records_in
        found.batches_in += stats.batches_in
        found.duplicates += stats.duplicates
        found.bytes_out += stats.bytes_out
    yield from sums.values()


def refresh(disk: DiskGuard) -> Callable[[], Awaitable[None]]:
    """The look at the free space as background work."""

    async def work() -> None:
        disk.refresh()

    return work


async def open_store(url: str) -> Store:
    """The store that the settings name.

    Raises:
        StoreUnavailable: it can't be opened.
    """
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
