"""The loop of the broker that keeps the cluster in order: elections, minima, half-done work.

Every broker runs it; the lease decides who acts. The lease only avoids duplicate work: two that
both believe to hold it can't do harm, since every write is a compare-and-swap (replication.md R5).
What has to be done is found in the view, topic by topic, when something about the topic changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from headrace.broker.controller import leases
from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.leases import Lease, LeaseWatch
from headrace.broker.controller.log_ends import LogEnds
from headrace.broker.controller.steps import TopicSteps
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.topics import REPLICAS_DEFAULT, Topics
from headrace.broker.controller.updates import StoreWriter, Write
from headrace.broker.controller.view import (
    BrokerChanged,
    ClusterChanged,
    ClusterView,
    RecordChanged,
    TopicChanged,
    ViewEvent,
)
from headrace.broker.core.liveness import RENEW_PERIOD_S
from headrace.broker.core.model import ConfigValue, Registration
from headrace.broker.store import keys
from headrace.broker.store.base import Item
from headrace.protocol.errors import HeadraceError, TopicExists
from headrace.protocol.names import OFFSETS_TOPIC

log = logging.getLogger(__name__)

OFFSETS_PARTITIONS = 16
OFFSETS_CONFIG: Mapping[str, ConfigValue] = {
    "cleanup.policy": "compact",
    "segment.bytes": 16 << 20,
    "unclean.leader.election.enable": False,
    "record.ttl.ms": -1,
    "min.compaction.lag.ms": 0,
}
"""Only closed segments are compacted, and what isn't is replayed by the next leader: small ones.
Members and offsets are never lost by a choice made for other topics, so what the cluster's defaults
say of elections and expiry doesn't count here (G1)."""

TERM_PERIOD_S = 60.0
"""How often the store's term is raised while nothing else happens."""

EXPECTED_WAIT_S = 30.0
"""How long the controller waits for the brokers that are expected before it makes the system's
topics with those that are there."""

DEBOUNCE_S = 0.02
"""Pause before reacting to changes, so that many of them are one round."""


class Controller:
    """One broker's part in keeping order. `tick` once at start, then `run` as a task."""

    def __init__(
        self,
        writer: StoreWriter,
        view: ClusterView,
        steps: TopicSteps,
        topics: Topics,
        statuses: BrokerStatuses,
        log_ends: LogEnds,
        *,
        own: Callable[[], Registration],
        clock: TimeSource,
        brokers_expected: int = 1,
        failures: Counter[str] | None = None,
    ) -> None:
        """`brokers_expected`: so many shall run before the system's topics are made, so that they
        are spread and replicated from the beginning; they aren't waited for for ever. `failures`
        counts rounds that failed."""
        self._failures = Counter[str]() if failures is None else failures
        self._brokers_expected = brokers_expected
        self._began_s = clock.monotonic()
        self._writer = writer
        self._view = view
        self._steps = steps
        self._topics = topics
        self._statuses = statuses
        self._log_ends = log_ends
        self._own = own
        self._clock = clock
        self._watch = LeaseWatch()
        self._lease: Lease | None = None
        self._dirty: set[str] = set()
        self._all_dirty = True
        self._unanswered: set[str] = set()
        self._wake = asyncio.Event()
        self._renewed_s = float("-inf")
        self._term_raised_s = float("-inf")
        self._gone_holder: tuple[int, int] | None = None
        self._overthrown: dict[int, int] = {}

    @property
    def lease(self) -> Lease | None:
        """The controller's lease as last read."""
        return self._lease

    @property
    def controller_id(self) -> int | None:
        """Who holds the lease, as last read."""
        if self._lease is None or self._lease.released:
            return None
        return self._lease.broker_id

    @property
    def is_controller(self) -> bool:
        """Whether this process holds the lease."""
        return self._steps.term > 0

    def on_event(self, event: ViewEvent) -> None:
        """Notes what has to be looked at; a listener of the view."""
        if isinstance(event, (TopicChanged, RecordChanged)):
            if self.is_controller:  # whoever becomes it looks at all topics
                self._dirty.add(event.topic.name)
        elif isinstance(event, BrokerChanged) or _matters(event):
            self._all_dirty = True
        self._wake.set()

    def look_again(self) -> None:
        """Who is dead has changed: every topic is looked at in the next round, which is now."""
        self._all_dirty = True
        self._wake.set()

    def overthrow(self, lease: Lease) -> None:
        """The process that holds the lease is proven to have ended: the lease is taken in the next
        round, which is now. Believed once of each process: if it holds the lease again afterwards,
        it lives, and only this broker can't reach it."""
        if self._overthrown.get(lease.broker_id, -1) < lease.session and not self.is_controller:
            self._gone_holder = (lease.broker_id, lease.session)
            self._renewed_s = float("-inf")
            self._wake.set()

    async def run(self) -> None:
        """For ever; errors are logged and tried again. For a task."""
        while True:
            await self._clock.wait(self._wake, RENEW_PERIOD_S)
            await self._clock.sleep(DEBOUNCE_S)
            self._wake.clear()
            try:
                await self.tick()
            except HeadraceError as error:
                log.warning("the controller's round failed, it comes again: %s", error)
                self._failures["controller"] += 1
                self._all_dirty = True
            except BaseException:
                self._all_dirty = True
                raise

    async def tick(self) -> None:
        """One round: the lease if it is time, then, if it is ours, what there is to do."""
        now_s = self._clock.monotonic()
        if now_s - self._renewed_s >= RENEW_PERIOD_S:
            await self._hold_lease()
            self._renewed_s = now_s
            has_changed = await self._statuses.look()
            self._all_dirty |= has_changed  # not in one: events come while it looks
            self._dirty |= self._unanswered
        if not self.is_controller:
            return
        await self._work()
        if now_s - self._term_raised_s >= TERM_PERIOD_S:
            await self._steps.raise_store_term()
            self._term_raised_s = now_s

    async def release(self) -> None:
        """Gives the lease up, so that the next controller needn't wait."""
        if not self.is_controller:
            return
        own, self._steps.term = self._own(), 0

        def compute(item: Item | None) -> Write | None:
            lease = leases.decode(item.value) if item else None
            if lease is None or not _is_own(lease, own) or lease.released:
                return None
            return Write(Lease(own.broker_id, own.session, lease.beat + 1, True).encode())

        await self._writer.update(keys.CONTROLLER_LEASE, compute)

    async def _work(self) -> None:
        names = set(self._view.all_topics) if self._all_dirty else self._dirty
        self._dirty, self._all_dirty = set(), False
        await self._steps.settle(sorted(names))
        await self._decide_by_log_ends()
        if self._steps.highest_term_seen > self._steps.term:
            log.info("a newer controller has written; this one steps back")
            self._steps.term = 0
            return
        deleting = {name for name, topic in self._view.all_topics.items() if topic.deleting}
        for name in sorted(deleting | self._view.left_over_names()):
            await self._steps.finish_deletion(name)
        await self._ensure_internal_topics()

    async def _decide_by_log_ends(self) -> None:
        """The last resorts: where only the lengths of logs tell who should lead, they are asked
        for; who doesn't answer is asked again with the next look at the leases."""
        asks = self._steps.take_asks()
        self._unanswered = set()
        if not asks:
            return
        ends = await self._log_ends.ask(asks)
        await self._steps.settle(sorted(ends), log_ends=ends)
        self._unanswered = set(asks)
        self._steps.take_asks()

    async def _ensure_internal_topics(self) -> None:
        if OFFSETS_TOPIC in self._view.all_topics:
            return
        running = [s for s in self._statuses.current().values() if s.live and s.state == "running"]
        is_patient = self._clock.monotonic() - self._began_s < EXPECTED_WAIT_S
        if not running or (is_patient and len(running) < self._brokers_expected):
            return
        try:
            await self._topics.create(
                OFFSETS_TOPIC,
                partitions=OFFSETS_PARTITIONS,
                replicas=min(REPLICAS_DEFAULT, len(running)),
                config=OFFSETS_CONFIG,
            )
        except TopicExists:
            log.debug("%s was made by another broker", OFFSETS_TOPIC)

    async def _hold_lease(self) -> None:
        """Renews the lease, takes it if its holder is gone, or notes that it moves."""
        own = self._own()
        was = self._steps.term
        found = leases.decode(item.value) if (item := await self._see()) else None
        if found is not None and not _is_own(found, own) and not self._is_free(found, own):
            self._lease, self._steps.term = found, 0
            return
        term = was or await self._steps.raise_store_term()

        def compute(item: Item | None) -> Write | None:
            lease = leases.decode(item.value) if item else None
            if lease is not None and not _is_own(lease, own) and not self._is_free(lease, own):
                return None
            beat = lease.beat + 1 if lease else 0
            return Write(Lease(own.broker_id, own.session, beat, term=term).encode())

        written = await self._writer.update(keys.CONTROLLER_LEASE, compute)
        self._lease = leases.decode(written.value) if written else None
        self._steps.term = term if self._lease and _is_own(self._lease, own) else 0
        if self._steps.term and not was:
            log.info("this broker is the controller now, term %d", term)
            self._all_dirty = True
            if self._gone_holder is not None:
                broker_id, session = self._gone_holder
                self._overthrown[broker_id] = session
        self._gone_holder = None

    async def _see(self) -> Item | None:
        item = await self._writer.read(keys.CONTROLLER_LEASE)
        content = item.value if item else b""
        self._watch.saw(keys.CONTROLLER_LEASE, content, now_s=self._clock.monotonic())
        return item

    def _is_free(self, lease: Lease, own: Registration) -> bool:
        """Left in good order, of an earlier process of this broker, or stood still."""
        if lease.released or (lease.broker_id == own.broker_id and lease.session < own.session):
            return True
        if (lease.broker_id, lease.session) == self._gone_holder:
            return True
        sight = self._watch.sight(keys.CONTROLLER_LEASE)
        still = sight is not None and sight.content == lease.encode()
        return still and self._watch.stood_still(keys.CONTROLLER_LEASE)


def _is_own(lease: Lease, own: Registration) -> bool:
    return (lease.broker_id, lease.session) == (own.broker_id, own.session)


def _matters(event: ViewEvent) -> bool:
    """Whether a change of the cluster object changes what topics should be."""
    if not isinstance(event, ClusterChanged):
        return False
    return event.before is None or event.before.config != event.cluster.config
