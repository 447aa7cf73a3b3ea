"""Waits, on a broker that is leaving, until nothing waits for it any more.

The broker has said that it is draining; the controller moves what others can lead and takes it out
of the ISRs that can do without it (`election`), and the view tells of each step. So nobody is asked
and nothing is polled: this only watches.
"""

from __future__ import annotations

import asyncio

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import BrokerChanged, ClusterView, RecordChanged, ViewEvent
from headrace.broker.core import election
from headrace.broker.core.model import Leader, PartitionRecord

LOOK_AGAIN_S = 1.0
"""Who is live is not told by events: it is looked at anew so often."""


class Handover:
    """What `leader`, the process that is leaving, still leads though another could, and the ISRs
    that it is still in."""

    def __init__(
        self, view: ClusterView, statuses: BrokerStatuses, leader: Leader, *, clock: TimeSource
    ) -> None:
        self._view = view
        self._statuses = statuses
        self._leader = leader
        self._clock = clock
        self._changed = asyncio.Event()

    async def wait(self, *, timeout_s: float) -> int:
        """Until nothing is left or the time is over; how many partitions are left that another
        could lead."""
        deadline_s = self._clock.monotonic() + timeout_s
        end = self._view.listen(self._on_event)
        try:
            left = self._all_held()
            while left := self._unsettled(left):
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    break
                self._changed.clear()
                await self._clock.wait(self._changed, min(left_s, LOOK_AGAIN_S))
            return sum(record.leader == self._leader for record in left)
        finally:
            end()

    def _on_event(self, event: ViewEvent) -> None:
        if isinstance(event, (RecordChanged, BrokerChanged)):
            self._changed.set()

    def _all_held(self) -> list[PartitionRecord]:
        """What it leads or is in sync with."""
        return [
            record
            for topic in self._view.topics.values()
            for record in self._view.records(topic.topic_id).values()
            if isinstance(record, PartitionRecord) and record.in_isr(self._leader.broker_id)
        ]

    def _unsettled(self, records: list[PartitionRecord]) -> list[PartitionRecord]:
        """Of these, as they are now, those that the controller has a step for."""
        brokers = self._statuses.current()
        fresh = [self._view.record(r.topic_id, r.partition) for r in records]
        return [
            record
            for record in fresh
            if isinstance(record, PartitionRecord) and self._is_awaited(record, brokers)
        ]

    def _is_awaited(self, record: PartitionRecord, brokers: election.Brokers) -> bool:
        if record.leader == self._leader:
            return isinstance(election.decide(record, brokers), election.Elected)
        return self._leader.broker_id in election.leaving(record, brokers)
