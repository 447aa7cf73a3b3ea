"""Moves replicas: takes plans up, carries them out step by step, gives them back, tells how far.

Any broker takes a wish and writes it into the topic objects (`moves`); the controller carries it
out, a bounded number of partitions at a time, and takes the wishes out again once all are done.
Nothing is kept in memory that the store doesn't say (`core.moving`), so a controller may die
between any two writes. Beside that the controller returns leadership to the first replicas, and
gives the offsets topic more replicas when the cluster grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.planner import Planner
from headrace.broker.controller.preferred import PreferredLeaders
from headrace.broker.controller.steps import PASSES_MAX, TopicSteps
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.updates import StoreWriter, Write
from headrace.broker.controller.view import (
    ClusterView,
    RecordChanged,
    TopicChanged,
    TopicTombstoned,
    ViewEvent,
)
from headrace.broker.core import cluster_config, encoding, moving
from headrace.broker.core.cluster_config import ClusterConfig
from headrace.broker.core.model import (
    BrokerStatus,
    ConfigValue,
    PartitionRecord,
    Shard,
    TopicObject,
    shard_of,
)
from headrace.broker.core.moving import MoveStatus
from headrace.broker.core.reassignment import Plan, PlannedMove, Where
from headrace.broker.core.transitions import is_moving
from headrace.broker.store import keys
from headrace.broker.store.base import Item, Store
from headrace.protocol.errors import (
    BrokerNotFound,
    PlanRefused,
    TopicNotFound,
)
from headrace.protocol.names import OFFSETS_TOPIC

log = logging.getLogger(__name__)

ROUND_PERIOD_S = 1.0
"""How often the controller looks at moves, leaders and the offsets topic when nothing happens."""

ROUND_PAUSE_S = 0.1
"""Least time between two rounds, so that many changes are one round."""

OFFSETS_REPLICAS = 3
"""Replicas of the offsets topic as soon as there are brokers for them."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A reassignment: `statuses` of all its partitions, done ones too, in order."""

    statuses: tuple[MoveStatus, ...]

    @property
    def total(self) -> int:
        """Partitions that it is about."""
        return len(self.statuses)

    @property
    def done(self) -> int:
        """Partitions that are where they should be."""
        return sum(status.state == "done" for status in self.statuses)


class Reassignments:
    """What a user may do about where replicas are, and the controller's part of it."""

    def __init__(
        self, writer: StoreWriter, view: ClusterView, steps: TopicSteps,
        statuses: BrokerStatuses, *, clock: TimeSource,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._view = view
        self._steps = steps
        self._statuses = statuses
        self._clock = clock
        self._preferred = PreferredLeaders(view, clock)
        self._on_their_way: set[str] = set()
        self._wake = asyncio.Event()

    def at(self, store: Store) -> Reassignments:
        """The same over another way to the store, sharing what is known of the cluster."""
        writer = StoreWriter(store, self._view, self._clock)
        return Reassignments(writer, self._view, self._steps, self._statuses, clock=self._clock)

    # --- plans ------------------------------------------------------------------------------------

    def planner(self) -> Planner:
        """The cluster as it is now, to plan from, in a thread too."""
        return Planner(
            self._wanted(),
            {broker: known.rack for broker, known in self._view.brokers.items()},
            [broker for broker, at in sorted(self._statuses.current().items()) if _may_get(at)],
            self._in_sync(),
        )

    # --- wishes -----------------------------------------------------------------------------------

    async def apply(self, plan: Plan) -> None:
        """Takes a plan up: when it returns, the store has it and the controller works on it. A
        topic deleted meanwhile is left out.

        Raises:
            PlanRefused: a topic's replication couldn't be kept; nothing is taken up.
            Conflict: something else was planned meanwhile; plan again.
            StoreUnavailable: a part may have been taken up; applying again completes it.
        """
        check(plan)
        by_topic: dict[str, list[PlannedMove]] = {name: [] for name in plan.factors}
        for move in plan.moves:
            by_topic.setdefault(move.topic, []).append(move)
        for name, moves in sorted(by_topic.items()):
            await self._change_topic(name, _taking_up(self._view, moves, plan.factors.get(name)))
        self._wake.set()

    async def cancel(self, topics: Collection[str] | None = None) -> list[str]:
        """Calls the reassignment of these topics (None: of all) off; which ones had any. What is
        half-way goes back to where it was; what is done stays.

        Raises:
            TopicNotFound, StoreUnavailable.
        """
        for name in topics or ():
            if self._view.topic(name) is None:
                raise TopicNotFound(f"there is no topic {name!r}")
        named = [
            topic.name for topic in self._busy() if topics is None or topic.name in set(topics)
        ]
        for name in named:
            await self._change_topic(
                name,
                lambda topic: moving.without_moves(topic, self._view.records(topic.topic_id)),
            )
        self._wake.set()
        return named

    async def set_cordoned(self, broker: int, *, cordoned: bool) -> None:
        """Whether the broker gets new replicas, and leads by preference. Survives restarts.

        Raises:
            BrokerNotFound, StoreUnavailable.
        """
        self.check_brokers([broker])
        await self._steps.change_cluster(
            lambda cluster: moving.with_cordon(cluster, broker, cordoned=cordoned)
        )

    async def set_limits(self, changes: Mapping[str, ConfigValue | None]) -> None:
        """Changes the cluster's settings of throttle and concurrency.

        Raises:
            InvalidConfig, StoreUnavailable.
        """
        if changes:
            await self._steps.change_config(lambda config: cluster_config.altered(config, changes))

    async def elect_preferred(self) -> int:
        """Lets the first replicas lead at once where they can; how many it did."""
        return await self._elect(self._preferred.all_off(self._statuses.current()))

    # --- what is ----------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """How far the present reassignment is; empty if there is none."""
        brokers = self._statuses.current()
        found: list[MoveStatus] = []
        for topic in self._busy():
            records = self._view.records(topic.topic_id)
            found.extend(moving.status_of(topic, records, brokers))
        return Progress(tuple(found))

    def limits(self) -> ClusterConfig:
        """The settings in force."""
        cluster = self._view.cluster
        return cluster_config.resolve(cluster.config if cluster else {})

    def is_cordoned(self, broker: int) -> bool:
        """Whether the broker gets no new replicas."""
        cluster = self._view.cluster
        return cluster is not None and broker in cluster.cordoned

    def replicas_on(self, broker: int) -> int:
        """Replicas that the broker has, those on their way to it among them."""
        return sum(
            broker in record.replicas
            for topic in self._view.topics.values()
            for record in self._view.records(topic.topic_id).values()
            if isinstance(record, PartitionRecord)
        )

    # --- the controller's part --------------------------------------------------------------------

    def on_event(self, event: ViewEvent) -> None:
        """Notes what is on its way; a listener of the view."""
        if isinstance(event, TopicTombstoned):
            self._preferred.forget(event.topic_id)
            if event.topic is not None:
                self._on_their_way.discard(event.topic.name)
        if isinstance(event, RecordChanged):
            self._preferred.on_record(event)
            if isinstance(event.record, PartitionRecord) and is_moving(event.record):
                self._on_their_way.add(event.topic.name)
        if event_matters(event, self._on_their_way):
            self._wake.set()

    async def run(self) -> None:
        """For ever; for a task that is started again after it failed."""
        while True:
            await self._clock.wait(self._wake, ROUND_PERIOD_S)
            await self._clock.sleep(ROUND_PAUSE_S)
            self._wake.clear()
            await self.round()

    async def round(self) -> None:
        """What there is to do now, if this broker is the controller."""
        if not self._steps.term:
            return
        for _ in range(PASSES_MAX):
            writes = self._writes()
            if not writes:
                break
            await self._writer.update_many(writes)
        await self._clear_when_done()
        if self.limits().leader_rebalance:
            delay_s = self.limits().leader_rebalance_delay_ms / 1000
            await self._elect(self._preferred.due(self._statuses.current(), delay_s=delay_s))
        await self._raise_offsets_topic()

    def _writes(self) -> dict[str, tuple[str | None, bytes | None]]:
        brokers, busy = self._statuses.current(), self._busy()
        turns = moving.take_turns(
            ((topic, self._view.records(topic.topic_id)) for topic in busy),
            moves_max=self.limits().reassignment_moves_max,
        )
        writes: dict[str, tuple[str | None, bytes | None]] = {}
        for topic in busy:
            for index, shard in self._view.shards(topic.name).items():
                if not isinstance(shard, Shard) or shard.topic_id != topic.topic_id:
                    continue
                advanced = moving.advance_shard(
                    shard, topic, brokers,
                    may_begin=turns.get(topic.name, ()), term=self._steps.term,
                    frozen=self._view.stale_partitions(shard),
                )  # fmt: skip
                item = self._view.item(key := keys.shard(topic.name, index))
                if advanced is not None and item is not None:
                    writes[key] = (item.revision, encoding.encode_shard(advanced))
        return writes

    async def _clear_when_done(self) -> None:
        """Takes the wishes out of the topics once all are fulfilled, so that until then it shows
        how much is done; what was called off goes as soon as it is back."""
        brokers, unfinished, finished = self._statuses.current(), False, []
        for topic in self._busy():
            records = self._view.records(topic.topic_id)
            statuses = moving.status_of(topic, records, brokers)
            if any(status.state != "done" for status in statuses):
                unfinished = True
            elif topic.moves:
                finished.append(topic)
        if unfinished:
            finished = [topic for topic in finished if moving.is_called_off(topic)]
        writes: dict[str, tuple[str | None, bytes | None]] = {}
        for topic in finished:
            item = self._view.item(key := keys.topic(topic.name))
            if item is not None:
                cleared = encoding.encode_topic(moving.without_done(topic))
                writes[key] = (item.revision, cleared)
        if writes:
            await self._writer.update_many(writes)
            log.info("moving replicas of %d topic(s) is done", len(writes))

    async def _elect(self, records: Iterable[tuple[str, PartitionRecord]]) -> int:
        """Writes records with their preferred leaders; how many."""
        by_shard: dict[tuple[str, int], dict[int, PartitionRecord]] = {}
        for name, record in records:
            index = shard_of(record.partition)
            by_shard.setdefault((name, index), {})[record.partition] = record
        writes: dict[str, tuple[str | None, bytes | None]] = {}
        count = 0
        for (name, index), changed in by_shard.items():
            shard, item = (
                self._view.shards(name).get(index),
                self._view.item(keys.shard(name, index)),
            )
            if isinstance(shard, Shard) and item is not None:
                for partition in self._view.stale_partitions(shard):
                    changed.pop(partition, None)
                if not changed:
                    continue
                following = moving.with_records(shard, changed, term=self._steps.term)
                writes[item.key] = (item.revision, encoding.encode_shard(following))
                count += len(changed)
        if writes:
            await self._writer.update_many(writes)
            log.info("leadership of %d partition(s) goes to their first replicas", count)
        return count

    async def _raise_offsets_topic(self) -> None:
        """A cluster that began with one broker would keep its groups on that one for ever (G1)."""
        topic = self._view.topic(OFFSETS_TOPIC)
        if topic is None or topic.moves or topic.replicas >= OFFSETS_REPLICAS:
            return
        brokers = sum(_may_get(status) for status in self._statuses.current().values())
        wanted = min(OFFSETS_REPLICAS, brokers)
        if wanted <= topic.replicas:
            return
        plan = self.planner().factor(OFFSETS_TOPIC, wanted)
        if not plan.refusals:
            await self.apply(plan)
            log.info("%s gets %d replicas, as there are brokers for them", OFFSETS_TOPIC, wanted)

    # --- the view, as planning needs it -----------------------------------------------------------

    def _busy(self) -> list[TopicObject]:
        """Topics with moves, or with records on their way, in order."""
        self._on_their_way = {name for name in self._on_their_way if self._is_moving(name)}
        return [
            topic
            for name, topic in sorted(self._view.topics.items())
            if topic.moves or name in self._on_their_way
        ]

    def _is_moving(self, name: str) -> bool:
        topic = self._view.topic(name)
        records = self._view.records(topic.topic_id).values() if topic is not None else ()
        return any(isinstance(each, PartitionRecord) and is_moving(each) for each in records)

    def _wanted(self) -> dict[Where, tuple[int, ...]]:
        """Where replicas are, or will be once all moves are done."""
        found: dict[Where, tuple[int, ...]] = {}
        for name, topic in self._view.topics.items():
            for partition, record in self._view.records(topic.topic_id).items():
                if wanted := moving.wanted_replicas(record, topic.moves.get(partition)):
                    found[name, partition] = wanted
        return found

    def _in_sync(self) -> dict[Where, tuple[int, ...]]:
        return {
            (name, at): tuple(entry.broker_id for entry in record.isr)
            for name, topic in self._view.topics.items()
            for at, record in self._view.records(topic.topic_id).items()
            if isinstance(record, PartitionRecord)
        }

    def check_brokers(self, brokers: Iterable[int]) -> None:
        """Raises BrokerNotFound if one of them isn't registered."""
        unknown = [str(broker) for broker in brokers if broker not in self._view.brokers]
        if unknown:
            raise BrokerNotFound(f"no broker {', '.join(unknown)} is registered")

    async def _change_topic(self, name: str, change: Callable[[TopicObject], TopicObject]) -> None:
        def compute(item: Item | None) -> Write | None:
            topic = encoding.decode_topic(item.value) if item else None
            if not isinstance(topic, TopicObject) or topic.deleting:
                return None
            changed = change(topic)
            return None if changed == topic else Write(encoding.encode_topic(changed))

        await self._writer.update(keys.topic(name), compute)


def _may_get(status: BrokerStatus) -> bool:
    """Whether the broker may get new replicas."""
    return status.live and status.state == "running" and not status.cordoned


def check(plan: Plan) -> None:
    """Raises PlanRefused if a topic's replication couldn't be kept."""
    if plan.refusals:
        first = min(plan.refusals)
        more = f" (and {len(plan.refusals) - 1} more)" if len(plan.refusals) > 1 else ""
        raise PlanRefused(
            f"topic {first}: {plan.refusals[first]}{more}",
            details={"topics": dict(plan.refusals)},
        )


def event_matters(event: ViewEvent, on_their_way: Collection[str]) -> bool:
    """Whether moving goes on by what happened."""
    if isinstance(event, TopicChanged):
        return bool(event.topic.moves)
    if isinstance(event, RecordChanged):
        return bool(event.topic.moves) or event.topic.name in on_their_way
    return False


def _taking_up(
    view: ClusterView, moves: Sequence[PlannedMove], replicas: int | None
) -> Callable[[TopicObject], TopicObject]:
    def change(topic: TopicObject) -> TopicObject:
        records = view.records(topic.topic_id)
        return moving.with_moves(topic, moves, records, replicas=replicas)

    return change
