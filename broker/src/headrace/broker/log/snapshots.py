"""The producer state of one log on disk: when it is saved, loaded again, kept for what is deleted.

The state itself is producers.py, the work in a thread restore.py; here is what binds them to a log
that goes on meanwhile.
"""

from __future__ import annotations

from headrace.broker.log.index import BrokenBatch
from headrace.broker.log.producers import ProducerState
from headrace.broker.log.restore import drop_snapshots, replay, restore, snapshot_path
from headrace.broker.log.state import ATTEMPTS_MAX, LogState
from headrace.protocol.errors import Conflict

_TAIL_RECORDS = 1000
"""Records that are replayed on the loop's thread at the end of loading producers."""


class ProducerSnapshots:
    """The snapshots of one log."""

    __slots__ = ("_last_offset", "_log", "due_bytes")

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._last_offset = -1
        """Offset of the newest snapshot that this process wrote, -1 before the first."""
        self.due_bytes = log.size_bytes + log.context.snapshot_bytes
        """Size of the log from which on the next one should be saved."""

    @property
    def is_needed(self) -> bool:
        """Whether there is, or may be, producer state to keep."""
        return bool(self._log.producers) or self._log.has_producers

    def save(self) -> None:
        """Best effort: without it more of the log is walked when the state is loaded."""
        log = self._log
        assert log.producers is not None
        self.due_bytes = log.size_bytes + log.context.snapshot_bytes
        offset, before = log.end_offset, self._last_offset
        if offset == before:
            return
        path = snapshot_path(log.directory, offset)
        try:
            log.disk.replace_file(path, log.producers.snapshot(offset), sync=False)
        except OSError:
            return
        if before > log.segments.active.base_offset:
            log.disk.unlink(snapshot_path(log.directory, before))
        self._last_offset = offset

    async def load(self) -> ProducerState:
        """As `Log.load_producers`."""
        log = self._log
        workers, disk, segments = log.files.workers, log.disk, log.segments
        for _attempt in range(ATTEMPTS_MAX):
            if log.producers is not None:
                return log.producers
            extents, end, generation = log.extents(), log.end_offset, segments.generation
            try:
                state = await workers.run(
                    restore, disk, log.directory, extents, end_offset=end,
                    expiry_ms=log.context.producer_expiry_ms,
                    producers_max=log.context.producers_max,
                )  # fmt: skip
                while generation == segments.generation and log.end_offset - end > _TAIL_RECORDS:
                    extents, reached = log.extents(), log.end_offset
                    await workers.run(replay, disk, state, extents, end)
                    end = reached
                if generation == segments.generation and log.producers is None:
                    log.producers = replay(disk, state, log.extents(), end)
            except (BrokenBatch, OSError) as error:
                log.settle(error, generation)
        if log.producers is not None:
            return log.producers
        raise Conflict("the log changed again and again while it was read; try again")

    async def keep(self, offset: int) -> None:
        """Makes sure that the producer state before `offset` is in a snapshot: the batches that it
        can be told from are about to go."""
        log = self._log
        path = snapshot_path(log.directory, offset)
        if not log.has_producers and log.producers is not None and not log.producers:
            return
        if log.disk.exists(path):
            return
        extents = [extent for extent in log.extents() if extent.base_offset < offset]
        generation = log.segments.generation
        try:
            state = await log.files.workers.run(
                restore, log.disk, log.directory, extents, end_offset=offset,
                expiry_ms=log.context.producer_expiry_ms,
                producers_max=log.context.producers_max,
            )  # fmt: skip
            if generation == log.segments.generation:
                log.disk.replace_file(path, state.snapshot(offset), sync=False)
        except BrokenBatch as error:
            log.settle(error, generation)
        except OSError:
            pass  # a full disk: making room counts more than recognising old retries

    def drop_above(self, offset: int) -> None:
        """The log is cut at `offset`: later snapshots go."""
        drop_snapshots(self._log.disk, self._log.directory, above=offset)
        self._last_offset = min(self._last_offset, offset)

    def drop_below(self, offset: int) -> None:
        """The log's segments now begin at `offset`: earlier snapshots go."""
        drop_snapshots(self._log.disk, self._log.directory, below=offset)

    def drop_all(self) -> None:
        """The log is emptied: all snapshots go."""
        drop_snapshots(self._log.disk, self._log.directory, below=1 << 63)

    def start_over(self) -> None:
        """After `drop_all`, with the empty log."""
        self._last_offset = -1
        self.due_bytes = self._log.context.snapshot_bytes
