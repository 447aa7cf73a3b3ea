"""One partition on this broker: its log under a leader epoch, and who waits for it.

A record's way passes here twice: `append` on the way in, `locate` on the way out, and between the
two the high watermark, which decides who may see it. On one replica the high watermark is what is
written, or what is on the disk where the topic's flush level says `batch` (replication.md R13); on
several it is what all of the ISR have (core/replica_set.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from headrace.broker.core import batch_rules
from headrace.broker.core.batch_cleaning import NEVER_MS
from headrace.broker.core.model import Leader, PartitionRecord
from headrace.broker.core.quota import Rates
from headrace.broker.core.replica_set import ReplicaSet
from headrace.broker.core.topic_config import TopicConfig
from headrace.broker.log.config import FlushPolicy
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.log import Appended, Log
from headrace.broker.log.producers import ProducerState
from headrace.broker.log.slices import LogSlice
from headrace.broker.partition.waiters import CommitWaiters, ReadWaiter
from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import (
    FencedEpoch,
    HeadraceError,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    PartitionOffline,
    TopicFull,
    UnknownEpoch,
)
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.requests import ACKS_ALL


@dataclass(slots=True)
class PartitionStats:
    """What went through since the process started."""

    bytes_in: int = 0
    records_in: int = 0
    batches_in: int = 0
    duplicates: int = 0
    bytes_out: int = 0
    replicated_bytes: int = 0


class ReplicaWatcher(Protocol):
    """A follower's place at its leader: it is told when there is something new for it. Called on
    every append; must only take a note."""

    def on_appended(self) -> None:
        """The log has grown, or the role has changed."""

    def on_committed(self) -> None:
        """The high watermark or the log's start has moved."""

    def on_start_moved(self) -> None:
        """The log's start has moved, and somebody waits for the follower to know."""

    def has_start(self, offset: int, leader_epoch: int) -> bool:
        """Whether the follower's log surely starts at `offset` or behind it."""


class Partition:
    """A log with a role: it leads, follows or does neither. Lives on the loop's thread.

    Invariants: `high_watermark` never goes back, and is never above the log's end;
    without `leading` clients append nothing; `replicas` is set as long as it leads.
    """

    def __init__(
        self,
        topic: str,
        log: Log,
        *,
        config: TopicConfig,
        flusher: Flusher,
        rates: Rates,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.rates = rates
        self._flusher = flusher
        self._now_ms = now_ms
        self._monotonic = monotonic
        self.log = log
        self.id: TopicIdPartition = log.partition_id
        self.configure(config)
        self.record: PartitionRecord | None = None
        self.leader_epoch = -1
        self.leading = False
        self.following: Leader | None = None
        """Whom the log is copied from, under `leader_epoch`."""
        self.replicas: ReplicaSet | None = None
        self.heard_epoch = -1
        """The highest leader epoch that any peer spoke of: nothing lower is led here (R16)."""
        self.isolated = False
        """Whether another leader may have been elected without this one hearing of it (H4)."""
        self.watchers: dict[int, ReplicaWatcher] = {}
        """Followers that fetch from here, by broker."""
        self.on_synced: Callable[[], None] | None = None
        """Called after each sync of the log while it follows."""
        self._alone = False
        self.stats = PartitionStats()
        self._learning: asyncio.Future[ProducerState] | None = None
        self._commits = CommitWaiters()
        self._readers: dict[ReadWaiter, None] = {}  # in the order of their coming

    def configure(self, config: TopicConfig) -> None:
        """Takes the topic's settings as they are now."""
        self._message_bytes_max = config.max_message_bytes
        self._capacity_bytes = config.retention_bytes if config.overflow == "reject" else -1

    @property
    def high_watermark(self) -> int:
        """The offset after the last committed record; readers see what lies below."""
        return self.log.high_watermark

    # --- role -------------------------------------------------------------------------------------

    def become_leader(self, record: PartitionRecord) -> None:
        """Leads under the record's epoch, from the log's present end on (R19): what the followers
        have is unknown, the high watermark stays where it was. Within the same epoch it takes what
        is new in the record."""
        if self.leading and self.leader_epoch == record.leader_epoch:
            self._take_record(record)
            return
        assert record.leader is not None
        self.record = record
        self.leader_epoch = record.leader_epoch
        self.leading, self.following, self.isolated = True, None, False
        self.replicas = ReplicaSet(
            record, me=record.leader, epoch_start=self.log.end_offset, now_s=self._monotonic()
        )
        self.replicas_changed()
        self._tell_followers()

    def _take_record(self, record: PartitionRecord) -> None:
        """The store's record has changed within the epoch: the ISR, the minimum, the replicas."""
        replicas = self.replicas
        if replicas is None:
            return
        before = replicas.record.replicas
        if not replicas.take(record):
            return
        self.record = record
        self.replicas_changed()
        if not set(record.replicas) <= set(before):
            self._tell_followers()  # one of them may have fetched before it was known for one
        if not replicas.has_minimum:
            self._commits.fail(
                NotEnoughReplicas(
                    f"{self.name}: the in-sync replicas fell to {len(record.isr)}, below"
                    f" min.insync.replicas {record.min_effective}"
                )
            )

    def replicas_changed(self) -> None:
        """Whom the high watermark waits for has changed."""
        replicas = self.replicas
        self._alone = replicas is not None and not replicas.waits_for and replicas.has_minimum
        self.advance_high_watermark()

    def follow(self, record: PartitionRecord) -> None:
        """Copies the record's leader from now on; everybody who waits asks there."""
        self._step_down(record, f"broker {record.leader.broker_id} does" if record.leader else "")
        self.leader_epoch = record.leader_epoch
        self.following = record.leader

    @property
    def loss_is_known(self) -> bool:
        """Whether the record says that this epoch's leader was elected without all that was
        committed (R24, unclean election): then a replica may have to give up committed records.
        Where unclean elections are allowed there may have been one before this epoch as well, while
        this replica was away."""
        record = self.record
        return record is not None and (record.recovery != "none" or record.unclean)

    @property
    def written_end(self) -> int:
        """How far the log counts for the high watermark: written, or synced where the topic says
        that each batch is (R13)."""
        log = self.log
        return log.flushed_offset if log.config.flush is FlushPolicy.BATCH else log.end_offset

    def replica_appended(self) -> None:
        """Batches of the leader were appended: they are synced if the topic says so."""
        if self.log.config.flush is FlushPolicy.BATCH:
            self._flusher.request(self.log)

    def synced(self) -> None:
        """The log was synced."""
        self.advance_high_watermark()
        if self.on_synced is not None:
            self.on_synced()

    def resign(self, record: PartitionRecord | None, *, reason: str) -> None:
        """Neither leads nor follows; everybody who waits hears so and asks again elsewhere."""
        self._step_down(record, reason)
        self.following = None

    def _step_down(self, record: PartitionRecord | None, reason: str) -> None:
        self.record = record
        self.leading = self._alone = False
        self.replicas = None
        self._commits.fail(NotLeader(f"{self.name}: this broker leads it no longer ({reason})"))
        self._wake_readers()
        self._tell_followers()

    def hear_epoch(self, epoch: int) -> None:
        """A peer spoke of this leader epoch: if it is a later one, another leader was elected, and
        this one stops at once, without waiting to read it in the store (R16)."""
        self.heard_epoch = max(self.heard_epoch, epoch)
        if self.leading and epoch > self.leader_epoch:
            self.resign(self.record, reason=f"a peer has heard of epoch {epoch}")

    def _tell_followers(self) -> None:
        for watcher in self.watchers.values():
            watcher.on_appended()

    def fail(self, error: HeadraceError) -> None:
        """The log is unusable: everybody who waits is told."""
        self._commits.fail(error)
        self._wake_readers()

    @property
    def name(self) -> str:
        """`topic/partition`, for messages."""
        return f"{self.topic}/{self.id.partition}"

    @property
    def offline(self) -> HeadraceError | None:
        """Why nobody can use the partition here, or None."""
        if self.log.failure is not None:
            return self.log.failure
        if not self.leading:
            return NotLeader(f"{self.name} is not led by this broker", retry_after_ms=200)
        return None

    def require_usable(self, leader_epoch: int = -1) -> None:
        """Refuses when the log is broken, led elsewhere, or the caller's epoch is another.

        Raises:
            PartitionOffline, NotLeader, FencedEpoch, UnknownEpoch.
        """
        error = self.offline
        if error is not None:
            raise error
        self.require_epoch(leader_epoch)

    def require_epoch(self, leader_epoch: int) -> None:
        """Refuses an epoch (-1: any) other than the one that is led or followed here.

        Raises:
            FencedEpoch, UnknownEpoch.
        """
        if leader_epoch in (-1, self.leader_epoch):
            return
        told = f"{self.name} is led under epoch {self.leader_epoch}, the request says"
        if leader_epoch < self.leader_epoch:
            raise FencedEpoch(f"{told} {leader_epoch}: refresh the metadata")
        raise UnknownEpoch(f"{told} {leader_epoch}: this broker hasn't heard of it yet")

    # --- the way in -------------------------------------------------------------------------------

    def append(self, batch: memoryview, *, acks: int, now_ms: int) -> tuple[Appended, bool]:
        """Checks and appends one sealed batch; answers where it is and whether it was there before
        (a retry). Written to the file on return; committed when `committed` says so.

        Raises:
            CallerError: the batch can't be taken (`batch_rules.accept`).
            OutOfOrderSequence, Fenced: idempotence.
            NotLeader, PartitionOffline, StorageFull, NotEnoughReplicas: not now, not here.
        """
        self.require_usable()
        header = batch_rules.accept(batch, bytes_max=self._message_bytes_max)
        if acks == ACKS_ALL:
            self._require_replicas()
        elif self.isolated:
            raise NotLeader(
                f"{self.name}: neither a follower nor the store was heard of for a while, another"
                " leader may have been elected: nothing was written",
                retry_after_ms=500,
            )
        duplicate = self._find_duplicate(header)
        if duplicate is not None:
            self.stats.duplicates += 1
            return duplicate, True
        self._require_capacity(len(batch))
        return self._write(batch, header, now_ms=now_ms), False

    def _require_capacity(self, size_bytes: int) -> None:
        held = self.log.size_bytes
        if 0 <= self._capacity_bytes < held + size_bytes:
            raise TopicFull(
                f"{self.name} holds {held:,} of {self._capacity_bytes:,} bytes (retention.bytes)"
                " and the topic says overflow=reject: nothing was written",
                retry_after_ms=1_000,
            )

    @property
    def knows_producers(self) -> bool:
        """Whether idempotence can be checked without reading the log first."""
        return self.log.producers is not None

    async def learn_producers(self) -> None:
        """Loads the state of idempotent producers, once after a start: one load for all who wait
        for it, who then go on in the order in which they came. It goes on when a caller goes away.

        Raises:
            PartitionOffline: the log can't be read.
        """
        self.require_usable()
        if self._learning is None:
            self._learning = asyncio.ensure_future(self.log.load_producers())
            self._learning.add_done_callback(self._learned)
        await asyncio.shield(self._learning)

    def _learned(self, learning: asyncio.Future[ProducerState]) -> None:
        self._learning = None
        if not learning.cancelled():
            learning.exception()  # looked at: whoever waited has it, and may have gone away

    def append_own(self, batch: memoryview, header: BatchHeader, *, now_ms: int) -> Appended:
        """Appends the broker's own batch to an internal topic.

        Raises:
            NotLeader, PartitionOffline, StorageFull, NotEnoughReplicas.
        """
        self.require_usable()
        self._require_replicas()
        return self._write(batch, header, now_ms=now_ms)

    def _find_duplicate(self, header: BatchHeader) -> Appended | None:
        producers = self.log.producers
        if producers is None and header.producer_id >= 0:
            # They were known a moment ago; the log was cut since, which makes them unknown.
            raise NotLeader(
                f"{self.name}: who wrote what is being looked up: nothing was written",
                retry_after_ms=100,
            )
        # Producers expire by the log's time: a clock that jumped, or a machine that slept for a
        # day, must not turn a retry into a second record.
        now_ms = self.log.last_append_time_ms
        written = None if producers is None else producers.check(header, now_ms=now_ms)
        if written is None:
            return None
        return Appended(written.base_offset, written.last_offset, written.append_time_ms)

    def _write(self, batch: memoryview, header: BatchHeader, *, now_ms: int) -> Appended:
        appended = self.log.append(batch, header, leader_epoch=self.leader_epoch, now_ms=now_ms)
        stats = self.stats
        stats.bytes_in += header.length
        stats.records_in += header.record_count
        stats.batches_in += 1
        if self.log.config.flush is FlushPolicy.BATCH:
            self._flusher.request(self.log)
        if self._alone:
            self.advance_high_watermark()
        if self.watchers:
            self._tell_followers()
        return appended

    def _require_replicas(self) -> None:
        record = self.record
        if record is not None and len(record.isr) < record.min_effective:
            raise NotEnoughReplicas(
                f"{self.name} has {len(record.isr)} in-sync replicas, min.insync.replicas is"
                f" {record.min_effective}: nothing was written"
            )

    # --- the high watermark -----------------------------------------------------------------------

    def advance_high_watermark(self) -> None:
        """Moves it as far as every in-sync replica has the log, and wakes who waited for that."""
        if not self.leading:
            return
        log = self.log
        end = log.flushed_offset if log.config.flush is FlushPolicy.BATCH else log.end_offset
        if not self._alone:
            assert self.replicas is not None
            end = self.replicas.committed_end(end)
        if end > log.high_watermark:
            self._commit(end)

    def learn_high_watermark(self, offset: int) -> None:
        """As a follower: the leader says that all below `offset` is committed (R15)."""
        end = min(offset, self.log.end_offset)
        if end > self.log.high_watermark:
            self._commit(end)

    def _commit(self, offset: int) -> None:
        self.log.high_watermark = offset
        self._commits.advance(offset)
        self._wake_readers()
        for watcher in self.watchers.values():
            watcher.on_committed()

    async def committed(self, offset: int, *, leader_epoch: int = -1) -> None:
        """Waits until the record at `offset`, appended under `leader_epoch` (-1: the present one),
        is below the high watermark.

        Raises:
            NotLeader, PartitionOffline, NotEnoughReplicas: before that came; it may still be
                committed.
        """
        error = self.offline
        if error is not None:
            raise error
        if leader_epoch not in (-1, self.leader_epoch):
            # After an epoch that others led, another record may be at the offset.
            raise NotLeader(f"{self.name}: another leader was elected after the append")
        if offset >= self.log.high_watermark:
            await self._commits.wait(offset)

    async def own_epoch_committed(self) -> None:
        """Waits until all that was in the log when this epoch began is committed. Before that a new
        leader's high watermark may be lower than what readers have seen (KIP-207, R19).

        Raises:
            as `committed`.
        """
        replicas = self.replicas
        if replicas is not None and replicas.epoch_start > self.log.high_watermark:
            await self.committed(replicas.epoch_start - 1)

    # --- the way out ------------------------------------------------------------------------------

    def check_readable(self, offset: int) -> None:
        """Refuses an offset that no record of this log has or will soon have.

        Raises:
            OffsetOutOfRange: before the start or after the end; `details` has both.
        """
        log = self.log
        if log.start_offset <= offset <= log.end_offset:
            return
        raise OffsetOutOfRange(
            f"{self.name} holds offsets {log.start_offset} to {log.end_offset}, not {offset}",
            details={"log_start_offset": log.start_offset, "log_end_offset": log.end_offset},
        )

    def locate(self, offset: int, *, max_bytes: int, with_expired: bool = False) -> LogSlice | None:
        """Committed batches from `offset` on that aren't expired, without blocking.

        Raises:
            BlockingIOError: the disk must be asked; then `await locate_cold(...)`.
        """
        return self.log.locate(
            offset, max_bytes=max_bytes, end_offset=self.high_watermark,
            expired_before_ms=self._expired_before_ms(with_expired),
        )  # fmt: skip

    async def locate_cold(
        self, offset: int, *, max_bytes: int, with_expired: bool = False
    ) -> LogSlice | None:
        """As `locate`, with threads for what is not in memory."""
        return await self.log.locate_cold(
            offset, max_bytes=max_bytes, end_offset=self.high_watermark,
            expired_before_ms=self._expired_before_ms(with_expired),
        )  # fmt: skip

    def _expired_before_ms(self, with_expired: bool) -> int:
        policy = self.log.config.cleaning
        if with_expired or policy.record_ttl_ms < 0:
            return NEVER_MS
        return policy.expired_before_ms(self._now_ms())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around reading the bytes of a slice: what can't be read takes the partition offline (not
        a mere lack of descriptors). Else those who ask for it together with others would be cut
        off again and again."""
        try:
            yield
        except PartitionOffline as error:
            if isinstance(error.__cause__, OSError):
                self.log.translated(error.__cause__)
            else:
                self.log.fail(error.message)
            raise

    async def delete_before(self, offset: int) -> None:
        """Removes the records before `offset`; durable after the volume's next checkpoint.

        Raises:
            OffsetOutOfRange: above the high watermark: what isn't committed can't be deleted.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.name}: records can be deleted up to the high watermark"
                f" {self.high_watermark}, not {offset}",
                details={"high_watermark": self.high_watermark},
            )
        if offset > self.log.start_offset:
            await self.log.advance_start(offset)
        for watcher in self.watchers.values():
            watcher.on_start_moved()

    def replicas_before(self, offset: int) -> list[int]:
        """The in-sync followers that may still have records before `offset`: led by one of them,
        the partition would have them again."""
        replicas = self.replicas
        waits_for = () if replicas is None else replicas.waits_for
        found = []
        for member in waits_for:
            watcher = self.watchers.get(member.broker_id)
            if watcher is None or not watcher.has_start(offset, self.leader_epoch):
                found.append(member.broker_id)
        return found

    def start_moved(self) -> None:
        """Followers are told where the log starts now."""
        for watcher in self.watchers.values():
            watcher.on_committed()

    def subscribe(self, reader: ReadWaiter) -> None:
        """Wakes `reader` at every change from now on."""
        self._readers[reader] = None

    def unsubscribe(self, reader: ReadWaiter) -> None:
        """Wakes it no more."""
        self._readers.pop(reader, None)

    @property
    def has_readers(self) -> bool:
        """Whether long polls wait for news."""
        return bool(self._readers)

    def _wake_readers(self) -> None:
        for reader in self._readers:
            reader.wake()
