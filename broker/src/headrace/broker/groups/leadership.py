"""Whether this broker surely still leads a partition of `__offsets` (replication.md G4).

A leader that was cut off can't commit, but it could still tell a member "you own p" while its
successor gives p away. So it answers about members only if its leadership was confirmed a short
while ago: every other member of ISR and ELR still followed it then (any later leader is one of
them; what they had answered before their last fetch tells), or a read of the store that began since
shows its epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.broker.clock import Clock
from headrace.broker.core import encoding
from headrace.broker.core.model import PartitionRecord, Shard
from headrace.broker.core.replica_set import NEVER_S
from headrace.broker.partition.partition import Partition
from headrace.broker.store import keys
from headrace.broker.store.base import Store
from headrace.protocol.errors import HeadraceError, NotCoordinator
from headrace.protocol.names import OFFSETS_TOPIC

READ_TIMEOUT_S = 2.0
"""How long the store may take to confirm."""

ReadRecord = Callable[[int], Awaitable[PartitionRecord | None]]
"""A partition's record as the store has it now."""


class Leadership:
    """Confirms leaderships; one read of the store per partition at a time."""

    def __init__(self, read: ReadRecord, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._read_at: dict[tuple[int, int], float] = {}
        self._reading: dict[tuple[int, int], asyncio.Task[None]] = {}

    def age_s(self, partition: Partition) -> float:
        """How long ago the leadership was confirmed last."""
        replicas = partition.replicas
        if replicas is None:
            return float("inf")
        now, record = self._clock.monotonic(), replicas.record
        others = {each.broker_id for each in (*record.isr, *record.elr)}
        others |= {each.broker_id for each in replicas.waits_for}
        others.discard(replicas.me.broker_id)
        if not others:
            return 0.0  # Nobody else can be elected.
        known = replicas.followers
        seen = [known[each].confirmed_s for each in others if each in known]
        by_followers = min(seen) if len(seen) == len(others) else NEVER_S
        by_store = self._read_at.get((partition.id.partition, partition.leader_epoch), NEVER_S)
        return now - max(by_followers, by_store)

    async def confirm(self, partition: Partition, within_s: float) -> None:
        """Returns if the leadership was confirmed within the last `within_s` seconds.

        Raises:
            NotCoordinator: it can't be.
        """
        if self.age_s(partition) <= within_s:
            return
        key = (partition.id.partition, partition.leader_epoch)
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.ensure_future(self._ask(*key))
            task.add_done_callback(lambda _: self._reading.pop(key, None))
        await asyncio.shield(task)
        if self.age_s(partition) > within_s:
            raise NotCoordinator(
                "this broker can't tell whether it still coordinates the group: neither the other"
                " replicas nor the store have answered it lately",
                retry_after_ms=500,
            )

    async def _ask(self, index: int, epoch: int) -> None:
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                record = await self._read(index)
        except (HeadraceError, TimeoutError):
            return
        if record is not None and record.leader_epoch == epoch:
            self._read_at = {key: at for key, at in self._read_at.items() if key[0] != index}
            self._read_at[index, epoch] = began


def read_from(store: Store) -> ReadRecord:
    """Reads records of `__offsets` from the store."""

    async def read(index: int) -> PartitionRecord | None:
        for item in await store.list(keys.shards(OFFSETS_TOPIC)):
            shard = encoding.decode_shard(item.value)
            for record in shard.records if isinstance(shard, Shard) else ():
                if isinstance(record, PartitionRecord) and record.partition == index:
                    return record
        return None

    return read
