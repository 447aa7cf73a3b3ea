"""The broker's face to cluster state: joins it, shows it, and changes it on request.

Order at start: `start` (register, lease, view) → recover the logs, attach listeners → `activate`
(may be elected and placed on). At the end: `drain` → stop serving, close the logs → `stop` → close
the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.controller import Controller
from headrace.broker.controller.copies import (
    STATES,
    CopyKeeper,
    Disk,
    NoDisk,
    answer_states,
)
from headrace.broker.controller.handover import Handover
from headrace.broker.controller.log_ends import LOG_ENDS, LogEndOf, LogEnds, answer_log_ends
from headrace.broker.controller.membership import Identity, Membership, Prepare
from headrace.broker.controller.probing import PING, Pong, Prober, answer_pings
from headrace.broker.controller.reassignments import Reassignments, check
from headrace.broker.controller.recovery import Recovery, SuspectWatch
from headrace.broker.controller.restarts import Restarts
from headrace.broker.controller.steps import TopicSteps
from headrace.broker.controller.timing import SYSTEM_TIME, TimeSource
from headrace.broker.controller.topics import NewTopic, Topics
from headrace.broker.controller.updates import StoreWriter, Write
from headrace.broker.controller.view import BrokerChanged, ClusterView, ViewEvent
from headrace.broker.core import cluster_config, election, encoding
from headrace.broker.core.model import (
    BrokerStatus,
    ClusterObject,
    ConfigValue,
    Leader,
    PartitionRecord,
    Registration,
    TopicObject,
    Unreadable,
)
from headrace.broker.core.recovery_plan import RecoveryPlan
from headrace.broker.core.restart_check import Blocker, Phase
from headrace.broker.core.standing import LocalState, Standing, check_owner
from headrace.broker.peers.base import PeerHandler, Peers
from headrace.broker.store import keys
from headrace.broker.store.base import Item, Snapshot, Store
from headrace.broker.tasks import TaskGroup
from headrace.protocol.errors import (
    HeadraceError,
    PartitionNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from headrace.protocol.ids import TopicId, TopicIdPartition, new_topic_id

log = logging.getLogger(__name__)

WATCH_RESTART_S = 1.0
SYNC_TIMEOUT_S = 30.0


class Coordination:
    """One broker's membership, view and controller over one store (which it doesn't close)."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        *,
        local: LocalState,
        prepare: Prepare,
        on_overtaken: Callable[[str], None],
        peers: Peers,
        log_end_of: LogEndOf = lambda _topic_id, _partition: None,
        disk: Disk | None = None,
        rebuild: bool = False,
        clock: TimeSource = SYSTEM_TIME,
        new_id: Callable[[], TopicId] = new_topic_id,
        brokers_expected: int = 1,
        failures: Counter[str] | None = None,
    ) -> None:
        """`local`: what the data directory says, read under its lock. `prepare` writes the
        volume's meta durably; it is awaited before each registration (R21). `on_overtaken(why)`:
        another process has this broker's id; stop at once, without drain. `log_end_of`: how far
        this broker's replica goes (R24). `disk`: where copies of what the store says are kept
        (R27). `rebuild`: an empty store is taken for a lost one, and the cluster of the data
        directory is made in it anew. `failures` counts those of background tasks by name."""
        self.view = ClusterView()
        self._store = store
        self._identity = identity
        self._local = local
        self._prepare = prepare
        self._clock = clock
        self._new_id = new_id
        self._writer = StoreWriter(store, self.view, clock)
        kept = disk or NoDisk()
        self._membership = Membership(
            self._writer, identity, clock=clock, on_overtaken=on_overtaken,
            note_beat=kept.note_beat,
        )  # fmt: skip
        self._statuses = BrokerStatuses(store, self.view, clock, own_id=identity.broker_id)
        self._steps = TopicSteps(self._writer, self.view, self._statuses)
        self._topics = Topics(
            self._writer, self.view, self._steps, self._statuses, clock=clock, new_id=new_id
        )
        self.reassignments = Reassignments(
            self._writer, self.view, self._steps, self._statuses, clock=clock
        )
        answer = answer_log_ends(lambda: self._membership.session, log_end_of)
        log_ends = LogEnds(peers, self.view, own_id=identity.broker_id, handler=answer)
        self._controller = Controller(
            self._writer,
            self.view,
            self._steps,
            self._topics,
            self._statuses,
            log_ends,
            own=lambda: self._membership.registration,
            clock=clock,
            brokers_expected=brokers_expected,
            failures=failures,
        )
        self._prober = Prober(
            peers, self.view, self._statuses, self._controller,
            own_id=identity.broker_id, clock=clock,
        )  # fmt: skip
        self._rebuild = rebuild
        self.copies = CopyKeeper(kept, self.view, own_id=identity.broker_id, clock=clock)
        self._suspects = SuspectWatch(self._writer, self.view, clock)
        self._recovery = Recovery(
            self._writer, self.view, self.copies, peers, own_id=identity.broker_id
        )
        self.peer_handlers: dict[str, PeerHandler] = {
            PING: answer_pings(self._pong),
            LOG_ENDS: answer,
            STATES: answer_states(lambda: kept.states),
        }
        """What other brokers may ask of this one's coordination, by path."""
        self._restarts = Restarts(
            store, self.view, self._statuses, self._prober, own_id=identity.broker_id
        )
        self._tasks = TaskGroup(failures)
        self._synced = asyncio.Event()

    async def start(self) -> Standing:
        """Joins the cluster, making it if the store is empty. The answer says which session and
        generation this process has and what its log may have lost. The broker isn't elected yet.

        Raises:
            InvalidConfig: the data directory is of another cluster or broker.
            Conflict: the broker's id is in use by a live process.
            StoreUnavailable: no answer, or an object that can't be read.
        """
        known = self.copies.copies
        self.view.preload(known.cluster, known.topics.values(), known.records.values())
        self.view.listen(self.copies.on_event)
        cluster = await self._find_or_make_cluster(known.cluster)
        standing = await self._membership.join(
            cluster.cluster_id, self._local, self._prepare, store_term=cluster.store_term
        )
        self._tasks.forever(self._membership.keep, name="lease")
        self._tasks.forever(self._watch, name="watch")
        self._tasks.forever(self.copies.run, name="copies")
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_S):
                await self._synced.wait()
        except TimeoutError:
            raise StoreUnavailable("the store's watch gave nothing: is it stuck?") from None
        self.view.listen(self._look_for_overtaking)
        return standing

    async def activate(self) -> None:
        """Says that this broker can lead, and takes part in the controller's work. When it returns
        and this broker is the controller, every partition that can have a leader has one and the
        internal topics exist; the listeners have heard."""
        await self._membership.set_state("running")
        self.view.listen(self._controller.on_event)
        self.view.listen(self.reassignments.on_event)
        try:
            await self._controller.tick()
        except StoreUnavailable:
            if keys.CLUSTER not in self.view.faults:
                raise
            log.exception("the broker starts, so that the store can be put right with its help")
        self._tasks.forever(self._controller.run, name="controller")
        self._tasks.forever(self.reassignments.run, name="reassignments")
        self._tasks.forever(self._prober.run, name="prober")
        self._tasks.forever(self._suspects.run, name="suspects")

    async def drain(self) -> None:
        """Says that this broker is leaving, so that leadership goes where others can lead."""
        await self._membership.set_state("draining")

    async def handed_over(self, *, timeout_s: float) -> int:
        """After `drain`: waits until this broker leads nothing that another could, or the time is
        over. The answer: how many such partitions are left."""
        me = Leader(self._identity.broker_id, self._membership.session)
        handover = Handover(self.view, self._statuses, me, clock=self._clock)
        return await handover.wait(timeout_s=timeout_s)

    async def stop(self, *, clean: bool = True) -> None:
        """Ends all tasks; `clean` gives the leases up. Doesn't close the store. Safe to call again
        and after a failed start."""
        await self._tasks.stop()
        if not clean or self._membership.overtaken:
            return
        try:
            await self._controller.release()
            await self._membership.leave()
        except HeadraceError as error:
            log.info("the leases weren't given up, others wait for them: %s", error)

    @property
    def broker_id(self) -> int:
        """This broker's id."""
        return self._identity.broker_id

    @property
    def registration(self) -> Registration:
        """This process's registration; raises StoreUnavailable before `start`."""
        return self._membership.registration

    @property
    def cluster_id(self) -> str:
        """The cluster's id; raises StoreUnavailable before `start`."""
        return self._known_cluster().cluster_id

    @property
    def controller_id(self) -> int | None:
        """Who holds the controller's lease, as far as known."""
        return self._controller.controller_id

    @property
    def is_controller(self) -> bool:
        """Whether this process is the controller."""
        return self._controller.is_controller

    @property
    def cluster_config(self) -> Mapping[str, ConfigValue]:
        """The cluster-wide defaults of topic settings."""
        return self._known_cluster().config

    def broker_statuses(self) -> dict[int, BrokerStatus]:
        """All registered brokers with a judgement on whether they live."""
        return self._statuses.current()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        config: Mapping[str, ConfigValue] | None = None,
    ) -> TopicObject:
        """A new topic. When it returns, the view has it with all its partition records, and the
        listeners have heard. That names with `__` are the system's is for the caller to check.

        Raises:
            InvalidName, InvalidConfig, InvalidRequest, TopicExists, StoreUnavailable.
        """
        return await self._topics.create(
            name, partitions=partitions, replicas=replicas, config=config
        )

    async def create_topics(self, wanted: Sequence[NewTopic]) -> list[TopicObject | HeadraceError]:
        """Many new topics with few calls of the store; for each the topic or why not. Otherwise as
        `create_topic`.

        Raises:
            StoreUnavailable: nothing is known of any of them; some may be there.
        """
        return await self._topics.create_many(wanted)

    async def alter_cluster_config(
        self, changes: Mapping[str, ConfigValue | None], *, static_keys: Collection[str] = ()
    ) -> Mapping[str, ConfigValue]:
        """Changes cluster-wide settings (None: back to the default) while everything runs; the
        controller then brings what follows from them into the partition records (R17).

        Raises:
            InvalidConfig: an unknown key or a wrong value. StoreUnavailable.
        """
        changed = await self._steps.change_config(
            lambda config: cluster_config.altered(config, changes, static_keys=static_keys)
        )
        return changed.config

    async def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, ConfigValue | None] | None = None,
        partitions: int | None = None,
        replicas: int | None = None,
    ) -> TopicObject:
        """Changes settings (None: back to the default), the partition count (upwards), and the
        number of replicas, which are then added or taken away in the background.

        Raises:
            TopicNotFound, InvalidConfig, InvalidRequest (fewer partitions), StoreUnavailable.
            PlanRefused: too few brokers for so many replicas; nothing is changed.
        """
        moves = self.reassignments
        if replicas is not None:
            check(moves.planner().factor(name, replicas))
        topic = await self._topics.alter(name, config=config, partitions=partitions)
        if replicas is not None:
            await moves.apply(moves.planner().factor(name, replicas))
        return self.view.topic(name) or topic

    async def delete_topic(self, name: str) -> TopicId:
        """Ends a topic. When it returns, the tombstone is written, the name is free and the
        listeners have heard. After StoreUnavailable the controller finishes what was begun.

        Raises:
            TopicNotFound, StoreUnavailable.
        """
        return await self._topics.delete(name)

    async def mark_failed(self, topic_id: TopicId, partition: int) -> None:
        """This broker's replica of the partition is broken: out of ISR and ELR, with a new leader
        epoch (R23). To be called before anything is fetched into it again.

        Raises:
            TopicNotFound, StoreUnavailable.
        """
        topic = self.view.topic_by_id(topic_id)
        if topic is None:
            raise TopicNotFound(f"there is no topic {topic_id.hex()}")
        me = self._identity.broker_id
        await self._steps.remove_broken(topic.name, topic_id, partition, me)

    async def elect_leader(self, name: str, partition: int, broker_id: int) -> PartitionRecord:
        """Makes a broker lead a partition with what it has, because those with all records are gone
        for good (R24): what it lacks is lost, and `recovery` of the record says so.

        Raises:
            TopicNotFound, PartitionNotFound.
            Conflict: somebody leads or could lead with all records; the broker can't.
            StoreUnavailable.
        """
        topic = self.view.topic(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name!r}")
        if not 0 <= partition < topic.partition_count:
            raise PartitionNotFound(f"topic {name!r} has no partition {partition}")
        return await self._steps.elect_by_command(name, topic.topic_id, partition, broker_id)

    async def restart_blockers(self, broker_id: int, phase: Phase) -> list[Blocker]:
        """What speaks against stopping a broker now (`before`), or isn't whole yet after its start
        (`after`); empty: go on. Doubt speaks against it, too.

        Raises:
            BrokerNotFound: no such broker is registered.
        """
        return await self._restarts.blockers(broker_id, phase)

    @property
    def suspects(self) -> Mapping[TopicIdPartition, str]:
        """Partitions whose record in the store is older than what is known, or gone, and why: for
        those nobody is elected until the store is put right (R27)."""
        return self._suspects.suspects

    @property
    def store_went_back(self) -> bool:
        """Whether the store as a whole is older than what this broker has seen."""
        return self._suspects.store_went_back

    async def recover(self, *, execute: bool, accept_missing: bool = False) -> RecoveryPlan:
        """What there is to put right in a store that went back in time or was lost, by the copies
        on all brokers' disks; `execute` does it.

        Raises:
            Conflict: brokers that may know something newer didn't answer (unless
                `accept_missing`), or the store changed meanwhile. StoreUnavailable.
        """
        if not execute:
            return await self._recovery.plan()
        done = await self._recovery.execute(accept_missing=accept_missing)
        await self._suspects.look()
        self._controller.look_again()
        return done

    def why_offline(self, topic_id: TopicId, partition: int) -> str | None:
        """Why nobody leads the partition; None if somebody does, or is about to."""
        record = self.view.record(topic_id, partition)
        if not isinstance(record, PartitionRecord):
            return None
        suspect = self.suspects.get(TopicIdPartition(topic_id, partition))
        if suspect is not None and not self._is_led(record):
            return f"its record in the store is in doubt: {suspect}; see headrace cluster recover"
        decision = election.decide(record, self._statuses.current())
        return decision.reason if isinstance(decision, election.Offline) else None

    def _is_led(self, record: PartitionRecord) -> bool:
        leader = record.leader
        status = self._statuses.current().get(leader.broker_id) if leader else None
        return leader is not None and status is not None and leader.session == status.session

    def _pong(self) -> Pong:
        me = self._identity.broker_id
        return Pong(me, self._membership.session, self.controller_id)

    def _known_cluster(self) -> ClusterObject:
        if self.view.cluster is None:
            raise StoreUnavailable("the cluster isn't known yet: this broker is starting")
        return self.view.cluster

    async def _find_or_make_cluster(self, copy: ClusterObject | None) -> ClusterObject:
        item = await self._writer.read(keys.CLUSTER)
        present = None if item is None else _cluster(item)
        meta = self._local.meta
        is_lost = present is None and meta is not None and self._rebuild
        check_owner(
            self._local,
            cluster_id=present.cluster_id
            if present
            else meta.cluster_id
            if is_lost and meta
            else None,
            broker_id=self._identity.broker_id,
        )
        if present is not None:
            return present
        fresh = ClusterObject(cluster_id=self._new_id().hex())
        if is_lost and meta is not None:
            log.warning("the store is empty: cluster %s is made in it anew", meta.cluster_id)
            base = copy or ClusterObject(cluster_id=meta.cluster_id)
            term = max(base.store_term, meta.store_term) + 1
            fresh = replace(base, store_term=term, version=base.version + 1)
        raw = encoding.encode_cluster(fresh)
        made = await self._writer.update(
            keys.CLUSTER, lambda found: Write(raw) if found is None else None
        )
        assert made is not None
        return _cluster(made)

    async def _watch(self) -> None:
        """Feeds the view, for ever."""
        while True:
            async with aclosing(self._store.watch("")) as events:
                async for event in events:
                    self.view.apply([event])
                    if isinstance(event, Snapshot):
                        self._synced.set()
            await self._clock.sleep(WATCH_RESTART_S)

    def _look_for_overtaking(self, event: ViewEvent) -> None:
        if isinstance(event, BrokerChanged):
            self._membership.saw(event.registration)


def _cluster(item: Item) -> ClusterObject:
    cluster = encoding.decode_cluster(item.value)
    if isinstance(cluster, Unreadable):
        raise StoreUnavailable(
            f"the store's cluster object can't be read ({cluster.reason}): restore the store, or"
            " start the version of Headrace that wrote it"
        )
    return cluster
