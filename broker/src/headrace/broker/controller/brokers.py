"""Who is alive, as far as this broker can tell from their leases (replication.md H6)."""

from __future__ import annotations

from headrace.broker.controller.leases import LeaseWatch
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ClusterView
from headrace.broker.core.liveness import DEAD_AFTER_S
from headrace.broker.core.model import BrokerStatus, Registration
from headrace.broker.store import keys
from headrace.broker.store.base import Store


class BrokerStatuses:
    """The registered brokers with a judgement on each. One that was never watched counts as live:
    only an observation kills."""

    def __init__(self, store: Store, view: ClusterView, clock: TimeSource, *, own_id: int) -> None:
        self._store = store
        self._view = view
        self._clock = clock
        self._own_id = own_id
        self._watch = LeaseWatch()

    async def look(self) -> bool:
        """Reads the others' leases once; whether somebody came to life or died by it."""
        if len(self._view.brokers) < 2:
            return False
        before = self._dead()
        seen = {item.key: item.value for item in await self._store.list(keys.BROKER_LEASES)}
        now_s = self._clock.monotonic()
        for broker_id in self._view.brokers:
            key = keys.broker_lease(broker_id)
            self._watch.saw(key, seen.get(key, b""), now_s=now_s)
        return self._dead() != before

    def current(self) -> dict[int, BrokerStatus]:
        """All registered brokers."""
        dead = self._dead()
        return {
            broker_id: _status(registration, live=broker_id not in dead)
            for broker_id, registration in self._view.brokers.items()
        }

    def _dead(self) -> set[int]:
        """Who has left or stood still. If most of the others seem dead, it is likelier that this
        observer is the one cut off: then it waits twice as long."""
        others = {b: r for b, r in self._view.brokers.items() if b != self._own_id}
        left = {b for b, r in others.items() if self._has_left(b, r)}
        silent = {b for b in others if self._silent(b, DEAD_AFTER_S)}
        if len(silent) * 2 > len(others) and len(others) > 1:
            silent = {b for b in silent if self._silent(b, 2 * DEAD_AFTER_S)}
        return left | silent

    def _has_left(self, broker_id: int, registration: Registration) -> bool:
        return self._watch.released(keys.broker_lease(broker_id), registration.session)

    def _silent(self, broker_id: int, for_s: float) -> bool:
        return self._watch.stood_still(keys.broker_lease(broker_id), for_s=for_s)


def _status(registration: Registration, *, live: bool) -> BrokerStatus:
    return BrokerStatus(
        session=registration.session,
        generation=registration.generation,
        live=live,
        state=registration.state,
        rack=registration.rack,
    )
