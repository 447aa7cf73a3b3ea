"""Replication of one broker: everything that copies partitions, put together.

Above the partitions, which know their role, and below groups and HTTP. `handlers` answers other
brokers; `follow` and `unfollow` are what the partition manager tells; `run` is the background work.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from headrace.broker.clock import Clock
from headrace.broker.controller.coordination import Coordination
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ClusterChanged, ViewEvent
from headrace.broker.core import cluster_config
from headrace.broker.core.model import Generation, PartitionRecord
from headrace.broker.core.quota import ByteRate
from headrace.broker.core.replica_set import LeaderLog
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.peers.base import PeerHandler, Peers
from headrace.broker.replication.fetcher import FetcherContext, LeaderLoop, Self
from headrace.broker.replication.isr import IsrChanges
from headrace.broker.replication.serving import ReplicaServer
from headrace.broker.replication.stats import ReplicationStats
from headrace.broker.store import keys
from headrace.broker.store.base import Store
from headrace.protocol.errors import HeadraceError
from headrace.protocol.replication import FETCH, FETCH_WAKE

log = logging.getLogger(__name__)

LOOKS_PER_LAG = 4
"""How often in one `replica.lag.time.max.ms` the leader looks for followers that lag."""

PARTITIONS_PER_TURN = 500
"""Partitions looked at before the loop gets its turn."""

Spawn = Callable[[Callable[[], Awaitable[None]], str], object]


class Replication:
    """Leader's and follower's side of one broker. Made before `join`, used from `start` on."""

    def __init__(
        self,
        manager: PartitionManager,
        coordination: Coordination,
        store: Store,
        peers: Peers,
        *,
        clock: Clock,
        time: TimeSource,
        lag_ms: int,
        require_room: Callable[[int], None],
        chance: random.Random | None = None,
    ) -> None:
        """`lag_ms`: replica.lag.time.max.ms. `require_room` raises StorageFull where the volume has
        no room for so many bytes."""
        self._manager = manager
        self._coordination = coordination
        self._store = store
        self._peers = peers
        self._clock = clock
        self._time = time
        self._lag_s = lag_ms / 1000
        self._require_room = require_room
        self._chance = chance or random.Random()
        self._context: FetcherContext | None = None
        self._loops: dict[int, LeaderLoop] = {}
        self._spawn: Spawn = lambda work, name: None
        self.stats = ReplicationStats()
        self.throttle = ByteRate()
        """Bytes a second for replicas that are being added, all together."""
        self.isr = IsrChanges(
            store, coordination.view, clock=clock, time=time, lag_s=lambda: self._lag_s,
            brokers=coordination.broker_statuses, find=manager.get, stats=self.stats,
        )  # fmt: skip
        self.server = ReplicaServer(
            manager, clock=clock, consider=self.isr.consider, stats=self.stats
        )
        manager.on_follow = self.follow
        manager.on_unfollow = self.unfollow
        manager.on_foreign = self._remove_foreign
        manager.mark_failed = coordination.mark_failed

    @property
    def handlers(self) -> dict[str, PeerHandler]:
        """What followers call, by path."""
        return {FETCH: self.server.fetch, FETCH_WAKE: self.server.wake}

    def start(
        self,
        *,
        broker_id: int,
        session: int,
        generation: Generation,
        spawn: Spawn,
    ) -> None:
        """From now on partitions are followed; `spawn` runs loops under a name, and again after
        they failed."""
        self._context = FetcherContext(
            me=Self(broker_id=broker_id, session=session, generation=generation),
            peers=self._peers, clock=self._clock, time=self._time, stats=self.stats,
            require_room=self._require_room, throttle=self.throttle, chance=self._chance,
        )  # fmt: skip
        self._spawn = spawn
        self._coordination.view.listen(self._on_event)
        spawn(self.isr.run, "isr")
        spawn(self._look_for_ever, "replica-lag")

    def _on_event(self, event: ViewEvent) -> None:
        if isinstance(event, ClusterChanged):
            rate = cluster_config.resolve(event.cluster.config).reassignment_throttle
            # A rate of 0 can't be divided by; a byte a second is as good as nothing.
            self.throttle.configure(rate or 1, now_s=self._clock.monotonic())

    def stop(self) -> None:
        """Answers the followers that wait; the tasks are whoever's who spawned them."""
        self.server.close()

    # --- following --------------------------------------------------------------------------------

    def follow(self, partition: Partition, record: PartitionRecord) -> None:
        """Copies the partition from the record's leader from now on."""
        assert self._context is not None
        assert record.leader is not None
        leader_id = record.leader.broker_id
        for other_id, loop in self._loops.items():
            if other_id != leader_id:
                loop.unfollow(partition.id)
        found = self._loops.get(leader_id)
        if found is None:
            found = self._loops[leader_id] = LeaderLoop(leader_id, self._context)
            self._spawn(found.run, f"copy-from-{leader_id}")
        found.follow(partition, record.leader, record.leader_epoch)

    def unfollow(self, partition: Partition) -> None:
        """Copies it from nobody."""
        for loop in self._loops.values():
            loop.unfollow(partition.id)

    def _remove_foreign(self, partition: Partition) -> None:
        """Somebody wrote into the store what only the leader may (R4): whoever was added may lack
        records, and could be elected."""
        assert partition.replicas is not None
        log.error(
            "%s: somebody other than its leader added broker %s to the in-sync replicas, which may"
            " lose records; it is taken out, and comes back by itself once it has all of them",
            partition.name, ", ".join(str(m.broker_id) for m in partition.replicas.foreign),
        )  # fmt: skip
        self.isr.consider(partition)

    # --- looking ----------------------------------------------------------------------------------

    async def _look_for_ever(self) -> None:
        while True:
            await self._time.sleep(self._lag_s / LOOKS_PER_LAG)
            await self.look()

    async def look(self) -> None:
        """Looks at all partitions led: whose ISR has to change, and who may be a leader that others
        have replaced (H4)."""
        self.server.expire()
        statuses = self._coordination.broker_statuses()
        silent: list[Partition] = []
        for place, partition in enumerate(self._manager):
            if partition.replicas is not None and len(partition.replicas.record.replicas) > 1:
                replicas, now_s = partition.replicas, self._clock.monotonic()
                self._refresh(partition)
                log_ = LeaderLog(
                    high_watermark=partition.high_watermark, end_offset=partition.log.end_offset
                )
                if replicas.has_changes(statuses, log=log_, now_s=now_s, lag_s=self._lag_s):
                    self.isr.consider(partition)
                if replicas.is_silent(now_s=now_s, for_s=self._lag_s):
                    silent.append(partition)
            if place % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
        if silent:
            is_isolated = not await self._store_answers()
            for partition in silent:
                partition.isolated = is_isolated and partition.leading

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(self._lag_s / LOOKS_PER_LAG):
                await self._store.get(keys.CLUSTER)
        except (HeadraceError, TimeoutError):
            return False
        return True

    def _refresh(self, partition: Partition) -> None:
        """Takes in that followers were heard of whose listing of this partition hasn't changed."""
        for broker_id, session in self.server.sessions.items():
            listing = session.listings.get(partition.id)
            if listing is not None and listing.is_idle and partition.replicas is not None:
                partition.replicas.still_there(
                    broker_id, seen_s=session.seen_s, end_offset=partition.log.end_offset,
                    confirmed_s=session.confirmed_s,
                )  # fmt: skip
