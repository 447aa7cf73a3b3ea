"""Whether a broker may be stopped, and whether it is back: asked anew of the store and the peers.

Nothing that is merely remembered counts: records and registrations are read from the store, and
every other broker is called. What `core.restart_check` then says is as good as this moment's truth;
what can't be read or reached speaks against the stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.probing import Prober
from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import AnyRecord, BrokerStatus
from headrace.broker.core.restart_check import Blocker, Phase, blockers_after, blockers_before
from headrace.broker.peers.base import PeerRefused
from headrace.broker.store import keys
from headrace.broker.store.base import Put, Store
from headrace.protocol.errors import BrokerNotFound, StoreUnavailable

CALLS_AT_ONCE = 64


class Restarts:
    """The check, on whichever broker is asked."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        statuses: BrokerStatuses,
        prober: Prober,
        *,
        own_id: int,
    ) -> None:
        self._store = store
        self._view = view
        self._statuses = statuses
        self._prober = prober
        self._own_id = own_id

    async def blockers(self, broker_id: int, phase: Phase) -> list[Blocker]:
        """What speaks against the stop (`before`), or isn't whole yet (`after`).

        Raises:
            BrokerNotFound: no such broker is registered.
        """
        try:
            await self._read_anew()
        except StoreUnavailable as error:
            return [Blocker("", -1, f"the store doesn't answer: {error}")]
        if broker_id not in self._view.brokers:
            raise BrokerNotFound(f"no broker {broker_id} is registered")
        brokers = await self._who_answers()
        records = [(topic, record) for topic, record in self._records() if record is not None]
        check = blockers_before if phase == "before" else blockers_after
        return [*self._doubts(), *check(records, broker_id, brokers)]

    async def _read_anew(self) -> None:
        for prefix in (keys.CLUSTER, keys.BROKERS, keys.TOPICS, keys.PARTITIONS):
            self._view.apply(Put(item) for item in await self._store.list(prefix))

    async def _who_answers(self) -> dict[int, BrokerStatus]:
        """All brokers; live are those whose registered process answers now."""
        statuses = self._statuses.current()
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        async def look(broker_id: int, status: BrokerStatus) -> BrokerStatus:
            if broker_id == self._own_id:
                return status
            async with gate:
                try:
                    session = await self._prober.ping(broker_id)
                except PeerRefused:
                    session = None
            return replace(status, live=status.live and session == status.session)

        looked = await asyncio.gather(*(look(b, s) for b, s in statuses.items()))
        return dict(zip(statuses, looked, strict=True))

    def _records(self) -> Iterator[tuple[str, AnyRecord | None]]:
        for name, topic in self._view.topics.items():
            for partition in range(topic.partition_count):
                yield name, self._view.record(topic.topic_id, partition)

    def _doubts(self) -> list[Blocker]:
        """What makes any answer unsure: objects that can't be read, records that aren't there."""
        faults = [
            Blocker("", -1, f"the store's object {key} is in doubt: {fault}")
            for key, fault in sorted(self._view.faults.items())
        ]
        missing = [
            Blocker(name, partition, "it has no record yet")
            for name, topic in self._view.topics.items()
            for partition in range(topic.partition_count)
            if self._view.record(topic.topic_id, partition) is None
        ]
        return faults + missing
