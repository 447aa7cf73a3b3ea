"""All partitions of this broker: opened, led, resigned and removed as the cluster's view says.

Level-triggered: a change in the view only marks a partition as due; one worker then compares what
should be with what is, and does the difference. So events may come merged, late or twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

from headrace.broker.clock import Clock
from headrace.broker.controller.view import (
    ClusterChanged,
    ClusterView,
    RecordChanged,
    TopicChanged,
    TopicTombstoned,
    ViewEvent,
)
from headrace.broker.core import broken_replica, topic_config
from headrace.broker.core.broken_replica import Mending
from headrace.broker.core.compaction import CleaningPolicy
from headrace.broker.core.model import (
    AnyRecord,
    ConfigValue,
    Generation,
    Leader,
    PartitionRecord,
    TopicObject,
)
from headrace.broker.core.topic_config import Setting, TopicConfig
from headrace.broker.lifecycle import Lifecycle
from headrace.broker.log.config import FlushPolicy, LogConfig
from headrace.broker.log.log import Log
from headrace.broker.log.logs import Logs
from headrace.broker.log.state import DIVERGED
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.quotas import Quotas
from headrace.protocol.errors import (
    Forbidden,
    HeadraceError,
    LimitExceeded,
    NotLeader,
    PartitionNotFound,
    PartitionOffline,
    StoreUnavailable,
    TopicNotFound,
)
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.names import check_name, is_internal

log = logging.getLogger(__name__)

OPEN_AT_ONCE = 64
"""Partitions opened between two breaths of the loop."""


REOPEN_S = 15.0
"""Pause before a log that could not be opened for want of room or descriptors is tried again: each
try may read much of it."""

RETRY_S = 5.0
"""Pause before partitions that could not be made or opened are tried again."""

MOVED_KEPT_S = 600.0
"""How long the files of replicas that other brokers have now are kept."""


async def _nobody_to_tell(topic_id: TopicId, partition: int) -> None:
    raise StoreUnavailable("nobody is there to tell that a replica broke")


class PartitionManager:
    """Finds partitions for those who serve requests, and keeps them as the view says."""

    def __init__(
        self,
        logs: Logs,
        view: ClusterView,
        *,
        broker_id: int,
        partitions_max: int,
        quotas: Quotas,
        clock: Clock,
    ) -> None:
        self._logs = logs
        self._quotas = quotas
        self._partitions_max = partitions_max
        self._view = view
        self._clock = clock
        self._broker_id = broker_id
        self._me: Leader | None = None
        self._generation: Generation | None = None
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._failures: dict[TopicIdPartition, HeadraceError] = {}
        self._due: dict[TopicIdPartition, None] = {}
        self._gone: dict[TopicId, None] = {}
        self._lost: set[TopicIdPartition] = set()
        """Replicas of the manifest whose directory is missing."""
        self._left: set[TopicIdPartition] = set()
        """Broken replicas of which the store knows since they broke."""
        self._mending: dict[TopicIdPartition, asyncio.Task[None]] = {}
        self._to_reopen: dict[TopicIdPartition, asyncio.TimerHandle] = {}
        self._moved_s: float | None = None
        self._has_begun = False
        self.replaced = 0
        """Broken logs that were set aside for a new copy."""
        self.mark_failed: Callable[[TopicId, int], Awaitable[None]] = _nobody_to_tell
        """Takes this broker's broken replica out of ISR and ELR (R23)."""
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        logs.flusher.on_flushed = self._on_flushed
        logs.flusher.on_failed = self._on_failed
        self.on_lead: Callable[[Partition, TopicObject], None] = lambda partition, topic: None
        """Called with each partition of an internal topic that this broker leads from now on."""
        self.on_resign: Callable[[Partition], None] = lambda partition: None
        """Called with each partition of an internal topic that it leads no longer."""
        self.on_follow: Callable[[Partition, PartitionRecord], None] = lambda each, record: None
        """Called with each partition that copies the record's leader from now on."""
        self.on_foreign: Callable[[Partition], None] = lambda partition: None
        """Called with each partition led here to whose ISR somebody else has added a member."""
        self.on_unfollow: Callable[[Partition], None] = lambda partition: None
        """Called with each partition that copies nobody any more."""
        self.on_topic_gone: Callable[[TopicId], None] = lambda topic_id: None
        """Called with each topic that is deleted for good."""

    # --- finding ----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicObject:
        """The topic of that name.

        Raises:
            InvalidName, TopicNotFound.
        """
        found = self._view.topic(check_name(name, kind="topic"))
        if found is None or found.deleting:
            raise TopicNotFound(
                f"there is no topic {name!r}; topics are not made by themselves: create it first"
            )
        return found

    def writable_topic(self, name: str) -> TopicObject:
        """The topic, if clients may write and change it.

        Raises:
            InvalidName, TopicNotFound, Forbidden.
        """
        found = self.topic(name)
        if is_internal(name):
            raise Forbidden(f"topic {name!r} is the system's own; clients may only read it")
        return found

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The name behind an id, or None if there is no such topic."""
        found = self._view.topic_by_id(topic_id)
        return None if found is None else found.name

    def config_entries(self, topic: TopicObject) -> Mapping[str, Setting]:
        """The topic's settings in force with where each comes from."""
        return topic_config.effective(topic.config, self._defaults(), replicas=topic.replicas)

    def config(self, topic: TopicObject) -> TopicConfig:
        """The topic's settings in force, typed."""
        return topic_config.resolve(topic.config, self._defaults(), replicas=topic.replicas)

    def require_room_for(self, more: int) -> None:
        """Refuses `more` partitions beyond the broker's limit.

        Raises:
            LimitExceeded: with the limit's name.
        """
        held = len(self._partitions) + len(self._failures)
        if held + more > self._partitions_max:
            raise LimitExceeded(
                f"this broker has {held} partitions, {more} more would go over partitions.max"
                f" ({self._partitions_max}): use fewer partitions, delete topics, or raise it"
            )

    def get(self, where: TopicIdPartition) -> Partition | None:
        """The partition if its log is open here."""
        return self._partitions.get(where)

    def has_lost(self, where: TopicIdPartition) -> bool:
        """Whether the replica was here, and its directory is gone."""
        return where in self._lost

    def find(self, where: TopicIdPartition) -> Partition:
        """The partition with its log open here.

        Raises:
            TopicNotFound, PartitionNotFound, NotLeader, PartitionOffline: why it isn't.
        """
        found = self._partitions.get(where)
        if found is None:
            raise self._why_not(where)
        return found

    def replica_in_rack(self, partition: Partition, rack: str, offset: int) -> int:
        """The in-sync follower that a reader in `rack` had better read from, -1 if this broker is
        as near or nobody is (KIP-392)."""
        brokers, replicas = self._view.brokers, partition.replicas
        here = brokers.get(self._broker_id)
        if replicas is None or here is None or here.rack == rack:
            return -1
        for member in replicas.record.isr:
            known, broker = replicas.followers.get(member.broker_id), brokers.get(member.broker_id)
            is_near = broker is not None and broker.rack == rack and broker.state == "running"
            if is_near and known is not None and known.offset >= offset:
                return member.broker_id
        return -1

    def require_served_by_follower(
        self, partition: Partition, offset: int, leader_epoch: int
    ) -> None:
        """Refuses what this follower can't answer for: it isn't in sync, or has no such offset and
        can't tell whether the leader has (H33).

        Raises:
            PartitionOffline, NotLeader, FencedEpoch, UnknownEpoch.
        """
        if partition.log.failure is not None:
            raise partition.log.failure
        entry = None if partition.record is None else partition.record.in_isr(self._broker_id)
        if entry is None or self._generation not in (None, entry.generation):
            raise NotLeader(f"{partition.name}: this replica isn't in sync, ask the leader")
        if offset < partition.log.start_offset:
            raise NotLeader(f"{partition.name}: offset {offset} is gone here, ask the leader")
        partition.require_epoch(leader_epoch)

    def require_exists(self, where: TopicIdPartition) -> None:
        """Refuses a partition that the topic doesn't have.

        Raises:
            TopicNotFound, PartitionNotFound.
        """
        topic = self._view.topic_by_id(where.topic_id)
        if topic is None:
            raise TopicNotFound(f"there is no topic with id {where.topic_id.hex()[:32]}")
        if not 0 <= where.partition < topic.partition_count:
            raise PartitionNotFound(
                f"topic {topic.name!r} has {topic.partition_count} partitions, counted from 0;"
                f" there is no {where.partition}"
            )

    def _why_not(self, where: TopicIdPartition) -> HeadraceError:
        failure = self._failures.get(where)
        if failure is not None:
            return failure
        try:
            self.require_exists(where)
        except HeadraceError as error:
            return error
        return NotLeader("the partition is not open on this broker", retry_after_ms=200)

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    @property
    def led_count(self) -> int:
        """Partitions led here."""
        return sum(each.leading for each in self._partitions.values())

    @property
    def offline_count(self) -> int:
        """Partitions that can't be used here."""
        broken = sum(each.log.failure is not None for each in self._partitions.values())
        return broken + len(self._failures)

    # --- keeping up with the view -----------------------------------------------------------------

    async def recover(self, lifecycle: Lifecycle) -> None:
        """Opens the log of every partition in the view that is assigned here, before anything is
        served; damaged ones are left offline and the rest goes on."""
        contents = await self._logs.contents()
        await self._tidy([*contents.present, *contents.unlisted])
        lost = set(contents.missing)
        assigned = []
        for where in self._all_mine():
            if where in lost:
                self._lost.add(where)
                self._failures[where] = PartitionOffline(
                    f"the directory of partition {where.partition} is gone from the data volume:"
                    " restore it, or delete the topic"
                )
            else:
                assigned.append(where)
        lifecycle.recovering_total = lifecycle.recovering_remaining = len(assigned)
        for start in range(0, len(assigned), OPEN_AT_ONCE):
            part = assigned[start : start + OPEN_AT_ONCE]
            await self._open_all(part)
            await self._sync_recovered(part)
            lifecycle.recovering_remaining -= len(part)
            await asyncio.sleep(0)

    async def _sync_recovered(self, opened: list[TopicIdPartition]) -> None:
        """Syncs what a killed process had written and not synced: under flush.policy=batch it is
        not committed before, and nobody may come by for a long time whose write would do it."""
        partitions = [self._partitions.get(where) for where in opened]
        await self._logs.flusher.flush_all(each.log for each in partitions if each is not None)

    def _all_mine(self) -> list[TopicIdPartition]:
        return [
            where
            for topic in self._view.topics.values()
            for where in _partitions_of(topic)
            if self._is_mine(where)
        ]

    async def _tidy(self, found: list[TopicIdPartition]) -> None:
        """Removes directories of tombstoned topics and sets those aside that nobody knows: a
        missing topic may be a store that went back in time, so its data is kept (R25)."""
        known = {topic.topic_id for topic in self._view.all_topics.values()}
        strangers = [each for each in found if each.topic_id not in known]
        dead = [each for each in strangers if self._view.is_tombstoned(each.topic_id)]
        await self._logs.remove(dead)
        await self._logs.set_aside([each for each in strangers if each not in set(dead)])
        await self._logs.move_out([each for each in found if self._is_moved(each)])

    def serve_as(self, session: int, generation: Generation | None = None) -> None:
        """From now on leads what the view says that this session leads, with log contents of this
        generation, and follows the others (R19)."""
        self._me = Leader(self._broker_id, session)
        self._generation = generation

    def on_event(self, event: ViewEvent) -> None:
        """Takes a change of the view; the worker acts on it."""
        match event:
            case RecordChanged(topic=topic, record=record):
                where = TopicIdPartition(topic.topic_id, record.partition)
                self._mark([where])  # first: a role that can't be taken now is tried again
                self._take_role(where, record)
            case TopicChanged(topic=topic):
                self._mark(_partitions_of(topic))
            case TopicTombstoned(topic_id=topic_id):
                self._gone[topic_id] = None
                self._wake()
            case ClusterChanged():
                for topic in self._view.topics.values():
                    self._mark(_partitions_of(topic))

    def _mark(self, due: list[TopicIdPartition]) -> None:
        self._due.update(dict.fromkeys(due))
        self._wake()

    def _wake(self) -> None:
        self._idle.clear()
        self._work.set()

    async def settled(self) -> None:
        """Waits until everything the view said so far is done."""
        await self._idle.wait()

    async def run(self) -> None:
        """The worker; runs until cancelled. May be started again after it failed: then everything
        is looked at again."""
        if self._has_begun:
            self._mark([where for t in self._view.topics.values() for where in _partitions_of(t)])
        self._has_begun = True
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                await self._work_off()
                if not self._work.is_set():
                    self._idle.set()
        finally:
            for task in self._mending.values():
                task.cancel()
            for timer in self._to_reopen.values():
                timer.cancel()
            self._mending.clear()

    async def _work_off(self) -> None:
        due, self._due = list(self._due), {}
        gone, self._gone = list(self._gone), {}
        for topic_id in gone:
            try:
                await self._remove(topic_id)
            except Exception:
                log.exception("a deleted topic's partitions stay until the next start")
        for start in range(0, len(due), OPEN_AT_ONCE):
            part = due[start : start + OPEN_AT_ONCE]
            try:
                await self._open_all([where for where in part if self._is_missing(where)])
                for where in part:
                    self._configure(where)
                    self._take_role(where, self._view.record(*where))
                    self._mend(where)
            except Exception as error:
                log.exception("partitions could not be opened, they are tried again")
                self._try_again_later(part, PartitionOffline(f"it could not be opened: {error}"))
            await asyncio.sleep(0)

    def _try_again_later(self, part: list[TopicIdPartition], error: HeadraceError) -> None:
        failed = [where for where in part if where not in self._partitions]
        self._failures.update(dict.fromkeys(failed, error))
        asyncio.get_running_loop().call_later(RETRY_S, self._try_again, part, failed)

    def _try_again(self, part: list[TopicIdPartition], failed: list[TopicIdPartition]) -> None:
        for where in failed:
            self._failures.pop(where, None)
        self._mark(part)

    def _is_missing(self, where: TopicIdPartition) -> bool:
        return (
            where not in self._partitions
            and where not in self._failures
            and where not in self._mending
            and self._is_mine(where)
            and not self._view.is_tombstoned(where.topic_id)
        )

    def _is_mine(self, where: TopicIdPartition) -> bool:
        record = self._view.record(where.topic_id, where.partition)
        return isinstance(record, PartitionRecord) and self._broker_id in record.replicas

    async def _open_all(self, missing: list[TopicIdPartition]) -> None:
        """Opens logs, each on its own: one that is damaged doesn't keep the others shut."""
        if not missing:
            return
        try:
            await self._logs.add(missing)
        except HeadraceError as error:
            log.error("new partitions can't be made: %s", error)
            self._try_again_later(missing, error)
            return
        topics = [(where, self._view.topic_by_id(where.topic_id)) for where in missing]
        wanted = [(where, topic) for where, topic in topics if topic is not None]
        opened = await self._logs.open(
            [(where, log_config(self.config(topic))) for where, topic in wanted]
        )
        for (_, topic), each in zip(wanted, opened, strict=True):
            self._attach(topic, each)

    def _attach(self, topic: TopicObject, opened: Log) -> None:
        partition = Partition(
            topic.name,
            opened,
            config=self.config(topic),
            flusher=self._logs.flusher,
            rates=self._quotas.topic(topic.topic_id),
            now_ms=self._clock.now_ms,
            monotonic=self._clock.monotonic,
        )
        self._partitions[opened.partition_id] = partition
        if opened.failure is not None:
            log.error("%s is offline: %s", partition.name, opened.failure)

    def _on_flushed(self, flushed: Log) -> None:
        partition = self._partitions.get(flushed.partition_id)
        if partition is not None:
            partition.synced()

    def _on_failed(self, failed: Log) -> None:
        partition = self._partitions.get(failed.partition_id)
        if partition is not None and failed.failure is not None:
            log.error("%s went offline: %s", partition.name, failed.failure)
            partition.fail(failed.failure)
            self._mark([partition.id])

    def _configure(self, where: TopicIdPartition) -> None:
        """Takes the topic's settings as they are now."""
        partition = self._partitions.get(where)
        topic = self._view.topic_by_id(where.topic_id)
        if partition is None or topic is None:
            return
        config = self.config(topic)
        partition.configure(config)
        self._quotas.configure_topic(
            topic.topic_id, produce=config.producer_byte_rate, fetch=config.consumer_byte_rate
        )
        partition.log.configure(log_config(config))

    def _take_role(self, where: TopicIdPartition, record: AnyRecord | None) -> None:
        """Leads, follows or does neither, as the record says: at once, whatever else is due."""
        partition = self._partitions.get(where)
        if partition is None or self._me is None:
            return
        topic = self._view.topic_by_id(where.topic_id)
        if topic is None or not isinstance(record, PartitionRecord):
            self._resign(partition, "the topic is being deleted, or its record can't be read")
        elif self._leads(partition, record):
            self._lead(partition, topic, record)
        elif self._follows(partition, record):
            self._follow(partition, record)
        else:
            self._resign(partition, "another leader is to be elected")

    def _leads(self, partition: Partition, record: PartitionRecord) -> bool:
        """Only what was elected in this session with this log's contents (R19), and unless a peer
        knows of a later leader (R16)."""
        entry = record.in_isr(self._broker_id)
        return (
            record.leader == self._me
            and entry is not None
            and self._generation in (None, entry.generation)
            and record.leader_epoch >= partition.heard_epoch
        )

    def _follows(self, partition: Partition, record: PartitionRecord) -> bool:
        return (
            record.leader is not None
            and record.leader.broker_id != self._broker_id
            and self._broker_id in record.replicas
            and partition.log.failure is None
        )

    def _lead(self, partition: Partition, topic: TopicObject, record: PartitionRecord) -> None:
        if partition.following is not None:
            self.on_unfollow(partition)
        partition.become_leader(record)
        if partition.replicas is not None and partition.replicas.foreign:
            self.on_foreign(partition)
        if is_internal(topic.name):
            self.on_lead(partition, topic)

    def _follow(self, partition: Partition, record: PartitionRecord) -> None:
        was_leading = partition.leading
        is_same = (partition.following, partition.leader_epoch) == (
            record.leader,
            record.leader_epoch,
        )
        if is_same and not was_leading:
            partition.record = record
            return
        partition.follow(record)
        self.on_follow(partition, record)
        if was_leading and is_internal(partition.topic):
            self.on_resign(partition)

    def _resign(self, partition: Partition, reason: str) -> None:
        was_leading = partition.leading
        if partition.following is not None:
            self.on_unfollow(partition)
        partition.resign(partition.record, reason=reason)
        if was_leading and is_internal(partition.topic):
            self.on_resign(partition)

    # --- replicas that can't stay as they are -----------------------------------------------------

    def _mend(self, where: TopicIdPartition) -> None:
        """Moves a replica out that is another broker's now (R26), and replaces one whose log broke,
        once it counts no more (R23)."""
        record = self._view.record(*where)
        if where in self._mending or not isinstance(record, PartitionRecord) or self._me is None:
            return
        if self._is_moved(where):
            if where in self._partitions or where in self._failures:
                self._start_mending(where, self._move_out(where))
        elif self._is_unusable(where):
            # What stays as it is, for a person or another start, isn't copied anew: then nothing
            # that was said of it needs to be void, it only must not count nor lead.
            has_left = where in self._left or not self._may_replace(where)
            step = broken_replica.next_step(record, self._broker_id, has_left=has_left)
            if step is Mending.LEAVE:
                self._start_mending(where, self._leave(where))
            elif step is Mending.REPLACE and self._may_replace(where):
                self._start_mending(where, self._replace(where))
            elif self._logs.is_curable(where) and where not in self._to_reopen:
                self._to_reopen[where] = asyncio.get_running_loop().call_later(
                    REOPEN_S, self._reopen_now, where
                )

    def _is_moved(self, where: TopicIdPartition) -> bool:
        record = self._view.record(*where)
        return isinstance(record, PartitionRecord) and self._broker_id not in record.replicas

    def _is_unusable(self, where: TopicIdPartition) -> bool:
        partition = self._partitions.get(where)
        return where in self._lost or (partition is not None and partition.log.failure is not None)

    def _may_replace(self, where: TopicIdPartition) -> bool:
        """Whether nothing is left of the log that a person, or another start, could go on with."""
        partition = self._partitions.get(where)
        failure = None if partition is None else partition.log.failure
        if failure is not None and DIVERGED in failure.message:
            return False
        return where in self._lost or not self._logs.is_curable(where)

    def _start_mending(self, where: TopicIdPartition, work: Coroutine[None, None, None]) -> None:
        before = self._view.record(*where)

        async def mend() -> None:
            is_done = False
            try:
                await work
                is_done = True
            except Exception as error:
                log.warning("%s can't be mended yet: %s", self._name(where), error)
            self._mending.pop(where, None)
            is_taken_out = where not in self._partitions and where not in self._failures
            if (is_done and is_taken_out) or self._view.record(*where) != before:
                self._mark([where])
            else:
                asyncio.get_running_loop().call_later(RETRY_S, self._mark, [where])

        self._mending[where] = asyncio.get_running_loop().create_task(mend())

    async def _leave(self, where: TopicIdPartition) -> None:
        log.error("%s: its log broke, it leaves the in-sync replicas", self._name(where))
        await self.mark_failed(*where)
        self._left.add(where)

    async def _replace(self, where: TopicIdPartition) -> None:
        log.warning("%s: what is left of it goes to stray/, it is copied anew", self._name(where))
        self._take_out(where, "its log is replaced")
        await self._logs.replace([where])
        self._lost.discard(where)
        self._left.discard(where)
        self.replaced += 1

    def _reopen_now(self, where: TopicIdPartition) -> None:
        del self._to_reopen[where]
        if where in self._mending:
            self._mark([where])
        elif self._logs.is_curable(where):
            self._start_mending(where, self._reopen(where))

    async def _reopen(self, where: TopicIdPartition) -> None:
        """Tries a log again that could not be opened for a lack that passes. It was never led in
        this process (R19): opening is the first that is done with a log."""
        self._take_out(where, "its log is opened again")
        self._logs.forget_unopened(where)

    async def _move_out(self, where: TopicIdPartition) -> None:
        log.info("%s: other brokers have it now, its files go", self._name(where))
        self._take_out(where, "it was moved to other brokers")
        await self._logs.move_out([where])
        self._lost.discard(where)
        self._left.discard(where)
        self._moved_s = self._clock.monotonic()

    def _take_out(self, where: TopicIdPartition, reason: str) -> None:
        partition = self._partitions.pop(where, None)
        self._failures.pop(where, None)
        if partition is not None:
            self._resign(partition, reason)

    def _name(self, where: TopicIdPartition) -> str:
        return f"{self.topic_name(where.topic_id)}/{where.partition}"

    async def forget_moved(self) -> None:
        """Frees the space of replicas that were moved away long enough ago."""
        if self._moved_s is None or self._clock.monotonic() - self._moved_s < MOVED_KEPT_S:
            return
        self._moved_s = None
        await self._logs.empty_moved()

    async def _remove(self, topic_id: TopicId) -> None:
        """The topic is dead for good: its partitions are closed and its files go. Old tombstones
        come here too, at every start; there is nothing to do for them."""
        here = [where for where in self._partitions if where.topic_id == topic_id]
        broken = [where for where in self._failures if where.topic_id == topic_id]
        for where in here:
            self._resign(self._partitions.pop(where), "the topic was deleted")
        for where in broken:
            del self._failures[where]
        for names in (self._lost, self._left):
            names.difference_update([where for where in names if where.topic_id == topic_id])
        self._quotas.forget_topic(topic_id)
        if here or broken:
            await self._logs.remove([*here, *broken])
            self.on_topic_gone(topic_id)

    # --- upkeep -----------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Writes the recovery checkpoint if anything in it has changed; on the disk on return."""
        await self._logs.checkpoint()

    async def apply_retention(self) -> None:
        """Lets every log remove the segments that its policy says are over."""
        await self.forget_moved()
        for partition in self:
            if partition.log.failure is None:
                await self._apply_retention(partition)
                await self._remove_cuts(partition)

    async def _apply_retention(self, partition: Partition) -> None:
        try:
            removed = await partition.log.apply_retention(self._clock.now_ms())
        except (HeadraceError, OSError) as error:
            log.error("retention of %s failed: %s", partition.name, error)
            return
        if removed:
            partition.start_moved()
            log.info("%s: retention removed %d segments", partition.name, removed)

    async def _remove_cuts(self, partition: Partition) -> None:
        """Frees what recovery cut off the log and kept, once this replica is in sync again with
        another one: what was committed is in both. A sole replica's is for a person."""
        if not self._logs.has_cuts(partition.id):
            return
        record = partition.record
        entry = None if record is None else record.in_isr(self._broker_id)
        is_in_sync = entry is not None and self._generation in (None, entry.generation)
        if record is None or not is_in_sync or len(record.isr) < 2:
            return
        try:
            await self._logs.remove_cuts(partition.id)
        except HeadraceError as error:
            log.warning("%s: what was cut off it stays: %s", partition.name, error)

    def _defaults(self) -> Mapping[str, ConfigValue]:
        cluster = self._view.cluster
        return {} if cluster is None else cluster.config


def _partitions_of(topic: TopicObject) -> list[TopicIdPartition]:
    return [TopicIdPartition(topic.topic_id, index) for index in range(topic.partition_count)]


def log_config(config: TopicConfig) -> LogConfig:
    """What of a topic's settings its logs need."""
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        flush=FlushPolicy(config.flush_policy),
        flush_ms=config.flush_ms,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes if config.overflow == "discard" else -1,
        delete="delete" in config.cleanup_policy,
        cleaning=CleaningPolicy(
            compact="compact" in config.cleanup_policy,
            delete_retention_ms=config.delete_retention_ms,
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
            min_dirty_ratio=config.min_cleanable_dirty_ratio,
            record_ttl_ms=config.record_ttl_ms,
        ),
    )
