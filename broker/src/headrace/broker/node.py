"""One broker without its HTTP: logs, coordination, partitions, groups, and the work behind them.

Everything stands on ports (store, peers, clocks, the volume's disk), so that the deterministic
simulation runs what production runs. `assembly` puts the HTTP servers in front.

Start: `join` (register: session, generation, view) → `serve` (recover the logs, elections).
Stop: `drain` → requests end → `close_logs` → `leave`. Each step leaves what a crash at that point
may leave: the next start can't tell a stop that was cut short from a kill, and needn't.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headrace.broker.clock import Clock, SystemClock
from headrace.broker.controller.coordination import Coordination
from headrace.broker.controller.membership import Identity
from headrace.broker.controller.timing import SYSTEM_TIME, TimeSource
from headrace.broker.controller.view import TopicChanged, TopicTombstoned, ViewEvent
from headrace.broker.core.election import NO_LOG, LogEnd
from headrace.broker.core.model import TopicObject
from headrace.broker.core.standing import Standing
from headrace.broker.disk_space import DiskGuard
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.lag import ENDS_PATH, REFRESH_INTERVAL_S, GroupLag
from headrace.broker.groups.leadership import Leadership, read_from
from headrace.broker.groups.topics import ReadableTopics
from headrace.broker.groups.upkeep import LOOK_INTERVAL_S, GroupUpkeep
from headrace.broker.lifecycle import DRAINING, RECOVERING, RUNNING, STOPPED, Lifecycle
from headrace.broker.log.compaction_process import CompactionProcess
from headrace.broker.log.files import Workers
from headrace.broker.log.logs import Logs
from headrace.broker.log.volume import Volume
from headrace.broker.partition.cleaner import Cleaner, Runner
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.quotas import Quotas
from headrace.broker.peers.base import PeerHandler, Peers
from headrace.broker.replication.bytes_left import BytesLeft
from headrace.broker.replication.replication import Replication
from headrace.broker.settings import Settings
from headrace.broker.store.base import Store
from headrace.broker.tasks import TaskGroup
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicId, TopicIdPartition, new_topic_id

log = logging.getLogger(__name__)

FLUSH_TICK_S = 0.1
"""How exactly flush.ms is kept."""

GOODBYE_S = 5.0
"""How long each of the two words to the store at a stop may take (draining, lease given up)."""

HANDOVER_TIMEOUT_S = 10.0
"""How long a stop waits for others to lead what this broker led."""

LAST_REFUSALS_S = 0.25
"""How long it serves on after that: whoever comes late is told that somebody else leads, at once,
instead of finding nobody there."""

SPACE_INTERVAL_S = 1.0
"""Pause between two looks at the free space, besides those that writes cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a node stands on. `store` and `peers` are closed by whoever made them."""

    store: Store
    peers: Peers
    clock: Clock = field(default_factory=SystemClock)
    time: TimeSource = SYSTEM_TIME
    workers: Callable[[int, str], Workers] = Workers
    cleaning: Runner = field(default_factory=CompactionProcess)
    new_id: Callable[[], TopicId] = new_topic_id


class Node:
    """One broker's state and background work. Its parts are public: they are its interface."""

    def __init__(
        self,
        settings: Settings,
        volume: Volume,
        ports: Ports,
        *,
        software: str = "",
        on_overtaken: Callable[[str], None],
        lifecycle: Lifecycle | None = None,
    ) -> None:
        """`volume`: the data directory, locked; closed with the logs."""
        self.settings = settings
        self.clock = ports.clock
        self._timing = ports.time
        self.lifecycle = lifecycle or Lifecycle()
        self.tasks = TaskGroup()
        self.logs = Logs(
            volume, files_max=settings.files_max, io_threads=settings.io_threads,
            flush_threads=settings.flush_threads, workers=ports.workers,
        )  # fmt: skip
        self.coordination = Coordination(
            ports.store,
            Identity(
                broker_id=settings.broker_id, url=settings.url, rack=settings.rack or None,
                software=software, nonce=ports.new_id().hex()[:16],
            ),
            local=self.logs.local_state,
            prepare=self.logs.prepare,
            on_overtaken=on_overtaken,
            peers=ports.peers,
            log_end_of=self._log_end_of,
            disk=self.logs,
            rebuild=settings.store_rebuild == "yes",
            clock=ports.time,
            new_id=ports.new_id,
            brokers_expected=settings.brokers_expected,
            failures=self.tasks.failures,
        )  # fmt: skip
        self.disk_guard = DiskGuard(
            volume.disk, settings.data_dir, reserve_bytes=settings.disk_reserve_bytes
        )
        self.quotas = Quotas(
            ports.clock, client_produce=settings.client_produce_rate,
            client_fetch=settings.client_fetch_rate,
        )  # fmt: skip
        self.partitions = PartitionManager(
            self.logs, self.coordination.view, broker_id=settings.broker_id,
            partitions_max=settings.partitions_max, quotas=self.quotas, clock=ports.clock,
        )  # fmt: skip
        self.replication = Replication(
            self.partitions, self.coordination, ports.store, ports.peers, clock=ports.clock,
            time=ports.time, lag_ms=settings.replica_lag_ms,
            require_room=self.disk_guard.require_room,
            chance=random.Random(ports.new_id()),
        )  # fmt: skip
        self.bytes_left = BytesLeft(
            self.partitions, self.coordination.view, ports.peers, own_id=settings.broker_id
        )
        self.cleaner = Cleaner(
            self.partitions, ports.cleaning, clock=ports.clock,
            memory_bytes=settings.compaction_memory_bytes,
            bytes_per_second=settings.compaction_rate,
            free_bytes=lambda: self.disk_guard.space.free_bytes
            - self.disk_guard.space.reserve_bytes,
        )  # fmt: skip
        self._make_groups(ports)
        self.peer_handlers: dict[str, PeerHandler] = {
            **self.coordination.peer_handlers, **self.replication.handlers,
            ENDS_PATH: self.group_lag.answer,
            **self.bytes_left.handlers,
        }  # fmt: skip
        """What other brokers may ask of this one, by path below `/v1/internal/`."""
        self._standing: Standing | None = None
        self._let_groups_follow()

    def _make_groups(self, ports: Ports) -> None:
        self._readable = ReadableTopics(self.coordination.view)
        self.groups = GroupCoordinator(
            ports.clock,
            spawn=lambda name, work: self.tasks.once(work, name=name),
            is_dead=self.coordination.view.is_tombstoned,
            topics=self._readable,
            confirm=Leadership(read_from(ports.store), ports.clock).confirm,
        )
        self.group_lag = GroupLag(self.groups, self.partitions, self.coordination.view, ports.peers)
        self.group_upkeep = GroupUpkeep(
            self.groups, ports.clock, offsets_retention_ms=self.settings.offsets_retention_ms
        )

    def address_of(self, broker_id: int) -> str | None:
        """Where a broker said it is reached, or None."""
        found = self.coordination.view.brokers.get(broker_id)
        return None if found is None else found.url

    def _log_end_of(self, topic_id: TopicId, partition: int) -> LogEnd | None:
        """How far the replica here goes; None while its log isn't open."""
        where = TopicIdPartition(topic_id, partition)
        found = self.partitions.get(where)
        if self.partitions.has_lost(where) or (found and found.log.failure is not None):
            return NO_LOG
        if found is None:
            return None
        return LogEnd(found.log.last_epoch, found.log.end_offset)

    # --- start ------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Registers this process and learns the cluster.

        Raises:
            InvalidConfig, Conflict, StoreUnavailable: as `Coordination.start`.
        """
        self._standing = await self.coordination.start()

    async def serve(self) -> None:
        """Recovers the logs and takes part; returns once this broker leads what it is to lead.

        Raises:
            HeadraceError: why it can't.
        """
        assert self._standing is not None
        manager = self.partitions
        self.lifecycle.state = RECOVERING
        await manager.recover(self.lifecycle)
        await self.logs.begin()
        standing = self._standing
        manager.serve_as(standing.session, standing.generation)
        self.replication.start(
            broker_id=self.settings.broker_id, session=standing.session,
            generation=standing.generation,
            spawn=lambda work, name: self.tasks.forever(work, name=name),
        )  # fmt: skip
        self.coordination.view.listen(manager.on_event)
        self._run_upkeep()
        await self.coordination.activate()
        await manager.settled()
        self.lifecycle.state = RUNNING

    def _let_groups_follow(self) -> None:
        """Groups follow the partitions of `__offsets`, and the topics that they read."""
        manager, groups = self.partitions, self.groups

        def lead(partition: Partition, topic: TopicObject) -> None:
            groups.lead(partition, topic.partition_count)

        def look(event: ViewEvent) -> None:
            self._readable.note(event)
            if isinstance(event, (TopicChanged, TopicTombstoned)):
                self.group_upkeep.topics_changed = True
            # Offsets of a topic may be coordinated where no partition of it ever was.
            if isinstance(event, TopicTombstoned) and event.topic is not None:
                forgetting = groups.forget_topic(event.topic.topic_id)
                self.tasks.once(forgetting, name="forget-offsets")

        manager.on_lead = lead
        manager.on_resign = lambda partition: groups.resign(partition.id.partition)
        self.coordination.view.listen(look)

    def _run_upkeep(self) -> None:
        settings, every = self.settings, self.tasks.every
        self.tasks.forever(self.partitions.run, name="partitions")
        every(FLUSH_TICK_S, self._flush_tick, name="flush")
        every(LOOK_INTERVAL_S, self.group_upkeep.work, name="groups")
        every(REFRESH_INTERVAL_S, self.group_lag.refresh, name="group-lag")
        every(SPACE_INTERVAL_S, self._look_at_space, name="disk-space")
        every(
            settings.retention_interval_ms / 1000, self.partitions.apply_retention, name="retention"
        )
        every(settings.checkpoint_interval_ms / 1000, self.partitions.checkpoint, name="checkpoint")
        every(settings.compaction_interval_ms / 1000, self.cleaner.work, name="compaction")

    async def _flush_tick(self) -> None:
        self.logs.flusher.tick(int(self.clock.monotonic() * 1000))

    async def _look_at_space(self) -> None:
        self.disk_guard.refresh()

    # --- stop -------------------------------------------------------------------------------------

    async def drain(self) -> bool:
        """Says that this broker leaves, and serves on until others lead what they can; whether the
        cluster was told. Clients find the new leaders by the old one's refusals, not by its end."""
        self.lifecycle.leaving = True
        is_told = await _tell(self.coordination.drain())
        if is_told and self.lifecycle.serving and await self._hand_over():
            await self._timing.sleep(LAST_REFUSALS_S)
        self.lifecycle.state = DRAINING
        return is_told

    async def _hand_over(self) -> bool:
        """Whether anything was led here that others lead now."""
        led = self.partitions.led_count
        left = await self.coordination.handed_over(timeout_s=HANDOVER_TIMEOUT_S)
        if left:
            log.warning("%d partitions have no other leader yet, the broker stops anyway", left)
        await self.partitions.settled()
        return self.partitions.led_count < led

    async def close_logs(self, *, clean: bool) -> None:
        """Ends the background work and closes the logs; `clean` syncs them and says so on disk."""
        self.replication.stop()
        await self.tasks.stop()
        await self.coordination.copies.close()
        await self.logs.close(clean=clean)

    async def leave(self, *, clean: bool) -> None:
        """Gives the leases up (`clean`), and ends what coordination does."""
        await _tell(self.coordination.stop(clean=clean))
        self.lifecycle.state = STOPPED


async def _tell(goodbye: Awaitable[None]) -> bool:
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
