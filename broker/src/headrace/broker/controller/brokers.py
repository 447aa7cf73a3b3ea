"""Who is alive, as far as this broker can tell from leases and probes (replication.md H6, H7)."""

from __future__ import annotations

from headrace.broker.controller import leases
from headrace.broker.controller.leases import LeaseWatch
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ClusterView
from headrace.broker.core import liveness
from headrace.broker.core.liveness import Evidence, LeaseSight, ProbeSight
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
        self._probes: dict[int, ProbeSight] = {}

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

    def refused(self, broker_id: int) -> bool:
        """Nobody listened at the broker's address; whether that changed who is dead. One that is
        starting has registered and doesn't listen yet."""
        registration = self._view.brokers.get(broker_id)
        if registration is None or registration.state == "starting":
            return False
        return self._probed(broker_id, None)

    def answered(self, broker_id: int, session: int) -> bool:
        """A process of that session answered there (0: it has none yet); whether that changed who
        is dead."""
        return self._probed(broker_id, session)

    def proven_gone(self, broker_id: int, session: int) -> bool:
        """Whether probes proved that the process of that session has ended."""
        return self._probes.get(broker_id, ProbeSight()).gone >= session

    def has_left(self, broker_id: int) -> bool:
        """Whether the broker left in good order, as far as its lease was read."""
        registration = self._view.brokers.get(broker_id)
        return registration is not None and self._has_left(broker_id, registration)

    def current(self) -> dict[int, BrokerStatus]:
        """All registered brokers."""
        dead, cluster = self._dead(), self._view.cluster
        cordoned = cluster.cordoned if cluster else frozenset()
        return {
            broker_id: _status(
                registration, live=broker_id not in dead, cordoned=broker_id in cordoned
            )
            for broker_id, registration in self._view.brokers.items()
        }

    def _probed(self, broker_id: int, answered: int | None) -> bool:
        registration = self._view.brokers.get(broker_id)
        if registration is None:
            return False
        before, sight = self._dead(), self._probes.get(broker_id)
        self._probes[broker_id] = (
            liveness.after_refusal(sight, session=registration.session)
            if answered is None
            else liveness.after_answer(sight, session=registration.session, answered=answered)
        )
        return self._dead() != before

    def _dead(self) -> set[int]:
        return liveness.dead_brokers(
            {
                broker_id: self._evidence(broker_id, registration)
                for broker_id, registration in self._view.brokers.items()
                if broker_id != self._own_id
            }
        )

    def _evidence(self, broker_id: int, registration: Registration) -> Evidence:
        sight = self._watch.sight(keys.broker_lease(broker_id))
        return Evidence(
            left=self._has_left(broker_id, registration),
            refused=self.proven_gone(broker_id, registration.session),
            still_s=sight.still_s if sight and not _is_former(sight, registration) else 0.0,
        )

    def _has_left(self, broker_id: int, registration: Registration) -> bool:
        return self._watch.released(keys.broker_lease(broker_id), registration.session)


def _is_former(sight: LeaseSight, registration: Registration) -> bool:
    """Whether the lease as read is still that of an earlier process: it says nothing of this."""
    lease = leases.decode(sight.content)
    return lease is not None and lease.session < registration.session


def _status(registration: Registration, *, live: bool, cordoned: bool) -> BrokerStatus:
    return BrokerStatus(
        session=registration.session,
        generation=registration.generation,
        live=live,
        state=registration.state,
        rack=registration.rack,
        cordoned=cordoned,
    )
