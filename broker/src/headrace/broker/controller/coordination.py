"""The broker's face to cluster state: joins it, shows it, and changes it on request.

Order at start: `start` (register, lease, view) → recover the logs, attach listeners → `activate`
(may be elected and placed on). At the end: `drain` → stop serving, close the logs → `stop` → close
the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.controller import Controller
from headrace.broker.controller.handover import Handover
from headrace.broker.controller.log_ends import LOG_ENDS, LogEndOf, LogEnds, answer_log_ends
from headrace.broker.controller.membership import Identity, Membership, Prepare, cancel_all
from headrace.broker.controller.probing import PING, Pong, Prober, answer_pings
from headrace.broker.controller.reassignments import Reassignments
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
from headrace.broker.core.restart_check import Blocker, Phase
from headrace.broker.core.standing import LocalState, Standing, check_owner
from headrace.broker.peers.base import PeerHandler, Peers
from headrace.broker.store import keys
from headrace.broker.store.base import Item, Snapshot, Store
from headrace.protocol.errors import (
    HeadraceError,
    PartitionNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from headrace.protocol.ids import TopicId, new_topic_id

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
        clock: TimeSource = SYSTEM_TIME,
        new_id: Callable[[], TopicId] = new_topic_id,
        brokers_expected: int = 1,
    ) -> None:
        """`local`: what the data directory says, read under its lock. `prepare` writes the
        volume's meta durably; it is awaited before each registration (R21). `on_overtaken(why)`:
        another process has this broker's id; stop at once, without drain. `log_end_of`: how far
        this broker's replica goes (R24)."""
        self.view = ClusterView()
        self._store = store
        self._identity = identity
        self._local = local
        self._prepare = prepare
        self._clock = clock
        self._new_id = new_id
        self._writer = StoreWriter(store, self.view, clock)
        self._membership = Membership(
            self._writer, identity, clock=clock, on_overtaken=on_overtaken
        )
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
        )
        self._prober = Prober(
            peers, self.view, self._statuses, self._controller,
            own_id=identity.broker_id, clock=clock,
        )  # fmt: skip
        self.peer_handlers: dict[str, PeerHandler] = {
            PING: answer_pings(self._pong),
            LOG_ENDS: answer,
        }
        """What other brokers may ask of this one's coordination, by path."""
        self._restarts = Restarts(
            store, self.view, self._statuses, self._prober, own_id=identity.broker_id
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._synced = asyncio.Event()

    async def start(self) -> Standing:
        """Joins the cluster, making it if the store is empty. The answer says which session and
        generation this process has and what its log may have lost. The broker isn't elected yet.

        Raises:
            InvalidConfig: the data directory is of another cluster or broker.
            Conflict: the broker's id is in use by a live process.
            StoreUnavailable: no answer, or an object that can't be read.
        """
        cluster = await self._find_or_make_cluster()
        standing = await self._membership.join(
            cluster.cluster_id, self._local, self._prepare, store_term=cluster.store_term
        )
        self._spawn(self._membership.keep(), "lease")
        self._spawn(self._watch(), "watch")
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
        await self._controller.tick()
        self._spawn(self._controller.run(), "controller")
        self._spawn(self.reassignments.run(), "reassignments")
        self._spawn(self._prober.run(), "prober")

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
        await cancel_all(self._tasks)
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
    ) -> TopicObject:
        """Changes settings (None: back to the default) and the partition count (upwards).

        Raises:
            TopicNotFound, InvalidConfig, InvalidRequest (fewer partitions), StoreUnavailable.
        """
        return await self._topics.alter(name, config=config, partitions=partitions)

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

    def why_offline(self, topic_id: TopicId, partition: int) -> str | None:
        """Why nobody leads the partition; None if somebody does, or is about to."""
        record = self.view.record(topic_id, partition)
        if not isinstance(record, PartitionRecord):
            return None
        decision = election.decide(record, self._statuses.current())
        return decision.reason if isinstance(decision, election.Offline) else None

    def _pong(self) -> Pong:
        me = self._identity.broker_id
        return Pong(me, self._membership.session, self.controller_id)

    def _known_cluster(self) -> ClusterObject:
        if self.view.cluster is None:
            raise StoreUnavailable("the cluster isn't known yet: this broker is starting")
        return self.view.cluster

    async def _find_or_make_cluster(self) -> ClusterObject:
        item = await self._writer.read(keys.CLUSTER)
        present = None if item is None else _cluster(item)
        check_owner(
            self._local,
            cluster_id=present.cluster_id if present else None,
            broker_id=self._identity.broker_id,
        )
        if present is not None:
            return present
        fresh = encoding.encode_cluster(ClusterObject(cluster_id=self._new_id().hex()))
        made = await self._writer.update(
            keys.CLUSTER, lambda found: Write(fresh) if found is None else None
        )
        assert made is not None
        return _cluster(made)

    async def _watch(self) -> None:
        """Feeds the view, for ever."""
        while True:
            try:
                async with aclosing(self._store.watch("")) as events:
                    async for event in events:
                        self.view.apply([event])
                        if isinstance(event, Snapshot):
                            self._synced.set()
            except Exception:
                log.exception("the watch of the store failed, it starts again")
            await self._clock.sleep(WATCH_RESTART_S)

    def _look_for_overtaking(self, event: ViewEvent) -> None:
        if isinstance(event, BrokerChanged):
            self._membership.saw(event.registration)

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cluster(item: Item) -> ClusterObject:
    cluster = encoding.decode_cluster(item.value)
    if isinstance(cluster, Unreadable):
        raise StoreUnavailable(
            f"the store's cluster object can't be read ({cluster.reason}): restore the store, or"
            " start the version of Headrace that wrote it"
        )
    return cluster
