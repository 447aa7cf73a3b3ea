"""One partition of `__offsets` while this broker leads it: the groups in it and their log.

Loaded from the log's start to its end, also above the high watermark, and ready once that end is
committed (G2). A change is appended first and then taken into memory; what is told waits until it
is below the high watermark (`settled`, G3). Lost leadership drops all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace.broker.core.groups.machine import Outcome
from headrace.broker.core.groups.model import Group
from headrace.broker.groups.presence import Presence
from headrace.broker.groups.records import Row, encode_change
from headrace.broker.groups.state import GroupOffsets, Loading
from headrace.broker.partition.partition import Partition
from headrace.protocol import batch
from headrace.protocol.batch import read_header
from headrace.protocol.errors import (
    HeadraceError,
    InternalError,
    NotCoordinator,
    RequestTimedOut,
)

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
"""Bytes of `__offsets` replayed between two breaths of the loop."""

LOAD_RETRY_S = 5.0
"""Pause before a load that failed is tried again."""

RECORDS_PER_APPEND = 5_000
"""Records written in one batch; a larger commit becomes several."""

SETTLE_TIMEOUT_S = 15.0
"""How long an answer waits for its changes to be committed."""


class GroupPartition:
    """See the module. `presence`: who was heard when, which is in no log."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.state = GroupOffsets()
        self.groups: dict[str, Group] = {}
        self.unsettled: set[str] = set()
        """Groups that changed since their members were last told what is new."""
        self.presence = Presence()
        self.epoch = partition.leader_epoch
        self.loaded = False
        self.last_offset = -1
        self.failure: HeadraceError | None = None

    # --- loading ----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replays the log from its start to its end, then waits until that end is committed.

        Raises:
            HeadraceError: the log can't be read, or this broker leads no longer.
        """
        partition = self.partition
        offset, end = partition.log.start_offset, partition.log.end_offset
        loading = Loading()
        while offset < end:
            offset = await self._replay(loading, offset, end)
        self.state, self.groups = GroupOffsets(), {}
        for _ in loading.decode_slices(self.state, self.groups):
            await asyncio.sleep(0)
        self.unsettled = set(self.groups)
        if end > 0:
            await partition.committed(end - 1)
            self.last_offset = end - 1
        self.loaded = True

    async def _replay(self, loading: Loading, offset: int, end: int) -> int:
        found = await self.partition.log.locate_cold(offset, max_bytes=LOAD_BYTES, end_offset=end)
        if found is None:
            return end
        try:
            data = await found.read()
        finally:
            found.close()
        for position, header in batch.walk(data):
            columns = batch.decode_columns(
                memoryview(data)[position : position + header.length], header
            )
            none: list[bytes | None] = [None] * header.record_count
            loading.take(columns.keys or none, columns.values or none)
        return found.next_offset

    def require_ready(self) -> None:
        """Refuses while loading, after a failed load, and once leadership is gone.

        Raises:
            NotCoordinator, PartitionOffline, CorruptBatch.
        """
        if self.failure is not None:
            raise self.failure
        self.partition.require_usable()
        if not self.loaded or self.epoch != self.partition.leader_epoch:
            raise NotCoordinator("the group's state is being loaded", retry_after_ms=100)

    # --- changing ---------------------------------------------------------------------------------

    def append(self, rows: Sequence[Row], *, now_ms: int) -> None:
        """Appends the records. On an error nothing of its part was written.

        Raises:
            NotCoordinator, StorageFull, NotEnoughReplicas, NotLeader, PartitionOffline.
        """
        self.require_ready()
        for start in range(0, len(rows), RECORDS_PER_APPEND):
            part = rows[start : start + RECORDS_PER_APPEND]
            data = batch.encode_records([(key, value, now_ms, None) for key, value in part])
            appended = self.partition.append_own(memoryview(data), read_header(data), now_ms=now_ms)
            self.last_offset = appended.last_offset
            for key, value in part:
                self.state.apply(key, value)

    def take(self, name: str, outcome: Outcome, *, now_ms: int) -> None:
        """Appends a decision's changes and only then keeps the group that it made.

        Raises:
            As `append`; then the group is as before.
        """
        if outcome.changes:
            self.append([encode_change(name, each) for each in outcome.changes], now_ms=now_ms)
        if self.groups.get(name) is not outcome.group:
            self.groups[name] = outcome.group
            self.unsettled.add(name)

    async def settled(self) -> None:
        """Waits until all that memory holds is committed: nothing is told before (G3).

        Raises:
            NotLeader, PartitionOffline: this broker can't tell.
            RequestTimedOut: too few replicas for too long.
        """
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self.partition.committed(self.last_offset)
        except TimeoutError as error:
            raise RequestTimedOut(
                f"{self.partition.name}: the change isn't committed after"
                f" {SETTLE_TIMEOUT_S:g} s; it may still be"
            ) from error


async def run_load(part: GroupPartition) -> None:
    """Loads a partition; a failure is kept, told to whoever asks for its groups, and logged. What
    may pass (too many open files) is tried again while this broker leads the partition."""
    while True:
        try:
            await part.load()
            part.failure = None
            return
        except HeadraceError as error:
            part.failure = error
            log.error("groups of %s can't be loaded: %s", part.partition.name, error)
        except Exception as error:
            part.failure = InternalError(f"the group's state can't be loaded: {error!r}")
            log.exception("groups of %s can't be loaded", part.partition.name)
        await asyncio.sleep(LOAD_RETRY_S)
        if part.epoch != part.partition.leader_epoch or part.partition.offline is not None:
            return
