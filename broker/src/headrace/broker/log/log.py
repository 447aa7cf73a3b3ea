"""The log of one partition: ordered segments, appended at the end, read anywhere, cut at both ends.

Everything not `async` is for the loop's thread. Appending is here: one pwritev in the loop, nothing
buffered in the process (replication.md R13). What else a log does is in its parts: reader.py
(finding), cutter.py (the end comes off), retention.py (the start does), cleaning.py (compaction,
expiry), snapshots.py (producer state), syncing.py; all work on the LogState (state.py) that a Log
is.
Knows nothing of leaders, waiting or clocks: epochs and times come in.

    append -> active segment -> (roll) -> older segments -> retention, delete-records
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.core.batch_cleaning import NEVER_MS
from headrace.broker.log import index as index_files
from headrace.broker.log import syncing
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.cleaning import LogCleaning
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.cutter import LogCutter
from headrace.broker.log.index import SegmentIndex
from headrace.broker.log.lookups import TimeHit
from headrace.broker.log.producers import ProducerState
from headrace.broker.log.reader import LogReader, Wanted
from headrace.broker.log.replicated import EPOCH_MAX, check_replicated
from headrace.broker.log.retention import LogRetention
from headrace.broker.log.segment import Segment, save_index
from headrace.broker.log.slices import LogSlice
from headrace.broker.log.snapshots import ProducerSnapshots
from headrace.broker.log.state import LogState
from headrace.broker.log.syncing import SyncJob
from headrace.protocol.batch import BatchHeader, assigned_bytes
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import PartitionOffline, StorageFull
from headrace.protocol.ids import TopicIdPartition


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    last_offset: int
    append_time_ms: int


class Log(LogState):
    """One partition's log: its state, and all that can be done with it."""

    def __init__(
        self,
        partition_id: TopicIdPartition,
        directory: str,
        *,
        checkpoint: Checkpoint,
        config: LogConfig,
        context: LogContext,
    ) -> None:
        """A log as `checkpoint` describes it; reads nothing. See `recovery.open_log`."""
        super().__init__(
            partition_id, directory, checkpoint=checkpoint, config=config, context=context
        )
        self._snapshots = ProducerSnapshots(self)
        self._reader = LogReader(self)
        self._cutter = LogCutter(self, self._snapshots)
        self._retention = LogRetention(self, self._snapshots, self.roll)
        self.cleaning = LogCleaning(self, self._snapshots, self.roll)
        """Compaction and expiry."""

    def __repr__(self) -> str:
        topic_id, partition = self.partition_id
        return f"<Log {topic_id.hex()}/{partition} {self.start_offset}..{self.end_offset}>"

    def append(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Appends one sealed batch (validated by the caller; `header` is its header), giving it its
        offset and append time. The append time never goes back, even if the clock does.

        Crash after: as `Disk.writev`; a torn batch is cut by recovery.

        Raises:
            StorageFull: nothing was appended; the log is as before.
            PartitionOffline: nothing was appended; see `failure`.
        """
        self.check_alive()
        last = self.last_append_time_ms
        append_time_ms = now_ms if now_ms > last else last
        length = header.length
        active = self._active_for(length, append_time_ms)
        if leader_epoch != self.last_epoch:
            self._begin_epoch(leader_epoch, self.end_offset)
        base_offset = self.end_offset
        assigned = assigned_bytes(
            length,
            base_offset=base_offset,
            append_time_ms=append_time_ms,
            leader_epoch=leader_epoch,
        )
        self._write(active, (assigned, memoryview(batch)[32:length]), length)
        if not self.is_dirty:
            self._become_dirty()
        next_offset = base_offset + header.last_offset_delta + 1
        self._count(active, base_offset, header, append_time_ms)
        self.end_offset = next_offset
        if self.producers is not None:
            self.producers.update(header, base_offset, append_time_ms)
            if self.segments.size_bytes >= self._snapshots.due_bytes:
                self._snapshots.save()
        elif header.producer_id >= 0:
            self.has_producers = True
        return Appended(base_offset, next_offset - 1, append_time_ms)

    def append_replicated(
        self,
        data: Buffer,
        *,
        may_have_holes: bool | None = None,
        epoch_max: int = EPOCH_MAX,
        epochs: Sequence[tuple[int, int]] = (),
    ) -> Appended:
        """Appends whole batches as another replica assigned them: the first must begin at this
        log's end, offsets without gap (but where the other log was cleaned: `may_have_holes`, by
        default what the topic says), epochs not falling and not above `epoch_max`, all checksums
        good (R15). `epochs`: those of the other log that begin within the data, in case cleaning
        has left no batch of one: else this log, leading later, would not know where it ended.

        Answers the base offset of the first, last offset and append time of the last batch. On an
        error nothing was appended.

        Raises:
            CorruptBatch: the bytes are not that.
            StorageFull, PartitionOffline: as `append`.
        """
        self.check_alive()
        headers = check_replicated(
            data, end_offset=self.end_offset, last_epoch=self.last_epoch,
            may_have_holes=self.has_holes if may_have_holes is None else may_have_holes,
            epoch_max=epoch_max,
        )  # fmt: skip
        if may_have_holes and not self.has_holes:
            self.note_holes()
        active = self._active_for(len(data), headers[-1][1].append_time_ms)
        self._begin_epochs(headers, epochs)
        first_offset = self.end_offset
        self._write(active, (data,), len(data))
        if not self.is_dirty:
            self._become_dirty()
        for _position, header in headers:
            stamp = max(header.append_time_ms, self.last_append_time_ms)
            self._count(active, header.base_offset, header, stamp)
            if self.producers is not None:
                self.producers.update(header, header.base_offset, header.append_time_ms)
            elif header.producer_id >= 0:
                self.has_producers = True
        self.end_offset = headers[-1][1].next_offset
        if self.producers is not None and self.segments.size_bytes >= self._snapshots.due_bytes:
            self._snapshots.save()
        return Appended(first_offset, self.end_offset - 1, headers[-1][1].append_time_ms)

    def _active_for(self, length: int, append_time_ms: int) -> Segment:
        """The segment to append `length` bytes to, after rolling if it is due."""
        active = self.segments.active
        size = active.size_bytes
        if size == 0:
            active.first_append_ms = append_time_ms
        elif (
            size + length > self.config.segment_bytes
            or append_time_ms - active.first_append_ms >= self.config.segment_ms
        ):
            self.roll()
            active = self.segments.active
            active.first_append_ms = append_time_ms
        return active

    def _begin_epochs(
        self, headers: Sequence[tuple[int, BatchHeader]], others: Sequence[tuple[int, int]]
    ) -> None:
        """The epochs that begin with these batches, and those among them without any."""
        left = [entry for entry in others if entry[1] >= self.end_offset]
        for _position, header in headers:
            while left and left[0][0] < header.leader_epoch:
                epoch, start = left.pop(0)
                if epoch > self.last_epoch and start <= header.base_offset:
                    self._begin_epoch(epoch, start)
            if header.leader_epoch != self.last_epoch:
                start = header.base_offset
                if left and left[0][0] == header.leader_epoch:
                    start = min(left[0][1], start)
                self._begin_epoch(header.leader_epoch, start)

    def _begin_epoch(self, epoch: int, start_offset: int) -> None:
        if epoch < self.last_epoch:
            raise PartitionOffline(
                f"an append under epoch {epoch} came after one under {self.last_epoch}"
            )
        try:
            self.epochs.begin(epoch, start_offset)
        except OSError as error:
            raise self.translated(error) from error
        self.last_epoch = epoch
        self.directory_dirty = True

    def _forget_epochs(self) -> None:
        """After a failed append: no epoch may seem to have batches that it hasn't."""
        if self.failure is None:
            self.epochs.forget(self.end_offset)
            self.last_epoch = self.epochs.epoch_at(self.end_offset - 1)

    def _write(self, active: Segment, buffers: Sequence[Buffer], length: int) -> None:
        try:
            fd = self.files.fd(active.file, create=active.size_bytes == 0)
            written = self.disk.writev(fd, buffers, active.size_bytes)
        except OSError as error:
            self._undo_write(active)
            raise self.translated(error) from error
        if written != length:
            self._undo_write(active)
            raise StorageFull(f"the disk took {written} of {length} bytes: it is full")

    def _undo_write(self, active: Segment) -> None:
        """Takes back half a batch. Crash before: recovery cuts it."""
        self._forget_epochs()
        if active.file.fd is None:
            return
        try:
            self.disk.truncate(active.file.fd, active.size_bytes)
        except OSError as error:
            self.fail(f"half a batch could not be taken back: {error}")

    def _count(
        self, active: Segment, base_offset: int, header: BatchHeader, append_time_ms: int
    ) -> None:
        """Takes in a batch just written at the segment's end, but for the end offset."""
        index = active.index
        assert index is not None
        position = active.size_bytes
        if position >= index.next_position:
            index.add(base_offset, position)
            if len(index.offsets) - index.saved_rows >= index_files.SAVE_ROWS:
                save_index(self.disk, active)
        if header.max_timestamp_ms > index.max_timestamp_ms:
            index.max_timestamp_ms = header.max_timestamp_ms
        active.size_bytes = position + header.length
        self.segments.size_bytes += header.length
        active.last_append_ms = self.last_append_time_ms = append_time_ms

    def roll(self) -> None:
        """Closes the active segment and begins the next one at the log's end; the closed one is
        synced off the loop. An empty active segment stays.

        Crash after: two segments, the second empty or missing; recovery takes either.
        """
        closed = self.segments.active
        if closed.size_bytes == 0:
            return
        following = Segment(self.directory, self.end_offset)
        following.index = SegmentIndex(interval_bytes=self.config.index_interval_bytes)
        try:
            self.files.fd(following.file, create=True)
        except OSError as error:
            raise self.translated(error) from error
        save_index(self.disk, closed)
        if self.producers is not None:
            self._snapshots.save()
        self.directory_dirty = True
        self.segments.begin(following)
        self.context.events.wants_sync(self)

    def _become_dirty(self) -> None:
        self.is_dirty = True
        self.context.events.became_dirty(self)

    def locate(
        self, offset: int, *, max_bytes: int, end_offset: int, expired_before_ms: int = NEVER_MS
    ) -> LogSlice | None:
        """The slice from the batch that holds `offset` on: whole batches of one segment, all of
        their offsets below `end_offset`, at most `max_bytes` but at least one batch; None when
        there is none. Never blocks.

        Batches whose timestamps are all below `expired_before_ms` are left out; where nothing else
        is there, an empty batch made up in their place leads readers past them.

        Raises:
            ColdRead: the answer isn't in memory (a BlockingIOError): `await locate_cold(...)`.
            OffsetOutOfRange: before the log's start or behind its end; `details` has both.
            PartitionOffline: the log is damaged; see `failure`.
        """
        return self._reader.locate(offset, Wanted(max_bytes, end_offset, expired_before_ms))

    async def locate_cold(
        self, offset: int, *, max_bytes: int, end_offset: int, expired_before_ms: int = NEVER_MS
    ) -> LogSlice | None:
        """As `locate`, with a thread for what isn't in memory.

        Raises:
            Conflict: the log kept being truncated meanwhile; ask again.
            OffsetOutOfRange, PartitionOffline: as `locate`.
        """
        want = Wanted(max_bytes, end_offset, expired_before_ms)
        return await self._reader.locate_cold(offset, want)

    def skip(self, offset: int, next_offset: int) -> LogSlice:
        """A batch without records, made up for readers whom nothing from `offset` to `next_offset`
        is left for."""
        return self._reader.skip(offset, next_offset)

    async def offset_for_time(self, timestamp_ms: int, *, end_offset: int) -> TimeHit | None:
        """The first record below `end_offset` with a timestamp of at least `timestamp_ms`, exact to
        the record; None when there is none. Only whole batches below `end_offset` count.

        Raises:
            PartitionOffline: the log is damaged.
            Conflict: as `locate_cold`.
        """
        return await self._reader.offset_for_time(timestamp_ms, end_offset=end_offset)

    async def offset_after_bytes(self, offset: int, size_bytes: int, *, end_offset: int) -> int:
        """The base offset of the first batch that starts at least `size_bytes` behind the start of
        the batch with `offset`, at most `end_offset`: to split a partition in parts of equal size.

        Raises:
            OffsetOutOfRange, PartitionOffline, Conflict: as `locate_cold`.
        """
        return await self._reader.offset_after_bytes(offset, size_bytes, end_offset=end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """`(greatest epoch <= epoch that has batches here, its end offset)`; `(-1, start_offset)`
        when there is none."""
        return self.epochs.end_offset(
            epoch, start_offset=self.start_offset, end_offset=self.end_offset
        )

    async def load_producers(self) -> ProducerState:
        """Brings the producers' state to the log's end (snapshot and headers, by a thread). To be
        awaited before the first idempotent append, by leaders and followers, and after truncation;
        from then on appends keep it up to date.

        Raises:
            PartitionOffline: the log is damaged.
            Conflict: as `locate_cold`.
        """
        return await self._snapshots.load()

    def truncate_to(self, offset: int) -> None:
        """Drops all batches with records at or above `offset`; epochs and producer state follow
        (await `load_producers` again). Below the log's start: as `truncate_fully_and_start_at`.
        Reads a few headers, and the index of the segment cut; readers of that segment get Conflict.

        Crash after or within: process - a longer prefix may be left, never a hole (segments go from
        the end). Machine - cut bytes may be back; every fetch is validated (R14).

        Raises:
            PartitionOffline: the log is damaged.
        """
        self._cutter.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log is empty, starts and ends at `offset`.

        Crash within: a prefix of the old log, never a hole. Crash after: recovery may start at the
        file's name where the last checkpoint says less.

        Raises:
            PartitionOffline: the disk refuses.
        """
        self._cutter.truncate_fully_and_start_at(offset)

    async def advance_start(self, offset: int) -> None:
        """delete-records: the log starts at `offset`; segments wholly below it go. Durable with the
        volume's next checkpoint only, so ask for one before answering.

        Crash after: without the checkpoint records below `offset` may be there again.

        Raises:
            OffsetOutOfRange: above the high watermark; `details` has it.
            PartitionOffline: the disk refuses.
        """
        await self._retention.advance_start(offset)

    async def apply_retention(self, now_ms: int) -> int:
        """Deletes the segments that the policy lets go, and answers how many. An active segment
        whose last batch is too old is closed first, so that idle logs get empty.

        Raises:
            PartitionOffline, Conflict: as `locate_cold`.
        """
        return await self._retention.apply(now_ms)

    def begin_sync(self) -> SyncJob:
        """What must be synced for all that is appended now; pinned until `end_sync`.

        Raises:
            PartitionOffline: a file can't be opened.
        """
        return syncing.begin(self)

    def end_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Takes in how `job` went. After an error the log is offline: the kernel may have dropped
        what it could not write, and would call the next sync a success."""
        syncing.end(self, job, error)

    @property
    def needs_sync(self) -> bool:
        """Whether anything was appended or closed that is not on the disk yet."""
        return syncing.is_needed(self)

    async def sync_now(self) -> None:
        """One sync outside the flusher's turn; failing is told by `failure`."""
        job = self.begin_sync()
        error: OSError | None = None
        try:
            await self.files.workers.run(job.run, self.disk)
        except OSError as raised:
            error = raised
        finally:
            self.end_sync(job, error)

    def fail(self, reason: str) -> None:
        """Takes the log offline until its directory is replaced (R23); remembered on disk as far as
        that still works. Crash after: the next start finds the note, or the damage again."""
        if self.failure is None:
            super().fail(reason)
            self.context.events.failed(self)

    def configure(self, config: LogConfig) -> None:
        """Takes a changed configuration from the next append on."""
        self.config = config
        if self.is_dirty:
            self.context.events.became_dirty(self)

    def checkpoint(self) -> Checkpoint:
        """The log's numbers now; for `checkpoints` while running, for `clean` after `close`."""
        active, index = self.segments.active, self.segments.active.index
        assert index is not None
        return Checkpoint(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            high_watermark=self.high_watermark,
            recovery_point=self.flushed_offset,
            active_base=active.base_offset,
            active_bytes=active.size_bytes,
            active_first_append_ms=active.first_append_ms,
            active_max_timestamp_ms=index.max_timestamp_ms,
            last_append_ms=self.last_append_time_ms,
            last_epoch=self.last_epoch,
            size_bytes=self.size_bytes,
            older_segments=self.segments.older_count,
            has_producers=self._snapshots.is_needed,
            failure="" if self.failure is None else self.failure.message,
            truncations=self.truncations,
        )

    async def close(self) -> Checkpoint:
        """Syncs what is not synced, saves index and producer state, closes the files. Answers the
        checkpoint for the `clean` marker. Nothing can be appended any more; a log that fails while
        it closes says so in the checkpoint."""
        if self.failure is None and self.needs_sync:
            await self.sync_now()
        if self.failure is None:
            save_index(self.disk, self.segments.active)
            if self.producers is not None and self._snapshots.is_needed:
                self._snapshots.save()
        self._release()
        checkpoint = self.checkpoint()
        # What came now would lie behind the end that the marker tells the next start.
        self.failure = self.failure or PartitionOffline("the log is closed: the broker stops")
        return checkpoint

    def _release(self) -> None:
        self.segments.release()

    def discard(self) -> None:
        """Lets go of files without saving: the directory is about to be removed."""
        self.change()
        self.failure = self.failure or PartitionOffline("the partition was deleted here")
        self._release()
