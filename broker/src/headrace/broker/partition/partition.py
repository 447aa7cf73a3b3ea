"""One partition on this broker: its log under a leader epoch, and who waits for it.

A record's way passes here twice: `append` on the way in, `locate` on the way out, and between the
two the high watermark, which decides who may see it. On one replica the high watermark is what is
written, or what is on the disk where the topic's flush level says `batch` (replication.md R13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.broker.core import batch_rules
from headrace.broker.core.batch_cleaning import NEVER_MS
from headrace.broker.core.model import PartitionRecord
from headrace.broker.core.quota import Rates
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


class Partition:
    """A log with a role. Lives on the loop's thread.

    Invariants: `high_watermark` never goes back, and is never above the log's end;
    without `leading` nothing is appended and nothing is served.
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
    ) -> None:
        self.topic = topic
        self.rates = rates
        self._flusher = flusher
        self._now_ms = now_ms
        self.log = log
        self.id: TopicIdPartition = log.partition_id
        self.configure(config)
        self.record: PartitionRecord | None = None
        self.leader_epoch = -1
        self.leading = False
        self.stats = PartitionStats()
        self._learning: asyncio.Future[ProducerState] | None = None
        self._commits = CommitWaiters()
        self._readers: set[ReadWaiter] = set()

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
        """Leads under the record's epoch. All that is in the log and in every ISR member's is
        committed; this broker being the whole ISR, that is the log up to its end or flush."""
        self.record = record
        if self.leading and self.leader_epoch == record.leader_epoch:
            return
        self.leader_epoch = record.leader_epoch
        self.leading = True
        self.advance_high_watermark()

    def resign(self, record: PartitionRecord | None, *, reason: str) -> None:
        """Leads no longer; everybody who waits hears so and asks again elsewhere."""
        self.record = record
        self.leading = False
        self._commits.fail(NotLeader(f"{self.name}: this broker leads it no longer ({reason})"))
        self._wake_readers()

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
        self.advance_high_watermark()
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
        if end <= log.high_watermark:
            return
        log.high_watermark = end
        self._commits.advance(end)
        self._wake_readers()

    async def committed(self, offset: int) -> None:
        """Waits until the record at `offset` is below the high watermark.

        Raises:
            NotLeader, PartitionOffline: before that came; it may still be committed.
        """
        if offset < self.log.high_watermark:
            return
        error = self.offline
        if error is not None:
            raise error
        await self._commits.wait(offset)

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

    def subscribe(self, reader: ReadWaiter) -> None:
        """Wakes `reader` at every change from now on."""
        self._readers.add(reader)

    def unsubscribe(self, reader: ReadWaiter) -> None:
        """Wakes it no more."""
        self._readers.discard(reader)

    @property
    def has_readers(self) -> bool:
        """Whether long polls wait for news."""
        return bool(self._readers)

    def _wake_readers(self) -> None:
        for reader in self._readers:
            reader.wake()
