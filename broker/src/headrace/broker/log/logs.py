"""All logs of one broker on its volume: opened, checkpointed, removed, closed together.

The asynchronous face of `volume` (whose methods block) and the owner of what the logs share:
threads, file descriptors, the flusher.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from headrace.broker.core.model import Generation
from headrace.broker.core.standing import Ending, LocalMeta, LocalState
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.files import FileCache, Workers
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.log import Log
from headrace.broker.log.recovery import StartKind, open_log
from headrace.broker.log.segment import remove_cuts
from headrace.broker.log.volume import Contents, Volume
from headrace.protocol.errors import HeadraceError, PartitionOffline, StorageFull
from headrace.protocol.ids import TopicIdPartition

log = logging.getLogger(__name__)

_ENDINGS: dict[StartKind, Ending] = {
    StartKind.NEW: "clean",
    StartKind.CLEAN: "clean",
    StartKind.SAME_BOOT: "same_boot",
    StartKind.OTHER_BOOT: "other_boot",
}


class Logs:
    """Invariant: every log in `_open` has its directory in the volume's manifest."""

    def __init__(
        self,
        volume: Volume,
        *,
        files_max: int,
        io_threads: int,
        flush_threads: int,
        workers: Callable[[int, str], Workers] = Workers,
    ) -> None:
        """`workers(threads, name)` makes the threads that wait for the disk."""
        self._volume = volume
        self._io = workers(io_threads, "headrace-io")
        self._sync = workers(flush_threads, "headrace-sync")
        files = FileCache(volume.disk, self._io, files_max)
        self.flusher = Flusher(volume.disk, self._sync)
        self._files = files
        self._context = LogContext(files, events=self.flusher)
        self._open: dict[TopicIdPartition, Log] = {}
        self._made: set[TopicIdPartition] = set()
        """Directories made by this process: nothing is in them that it hasn't put there."""
        self._unrecovered: set[TopicIdPartition] = set()
        """Those that failed to open; what the former process noted of them is still the best."""
        self._curable: set[TopicIdPartition] = set()
        """Of these, the ones that another start may recover."""
        self._with_cuts: set[TopicIdPartition] = set()
        """Logs beside which lies what recovery cut off them."""
        self._saved: dict[TopicIdPartition, Checkpoint] = {}
        self._saving = asyncio.Lock()
        self._meta_lock = asyncio.Lock()
        self._closed = False
        self._begun = False

    @property
    def open_files(self) -> int:
        """Log files open now."""
        return self._files.open_count

    @property
    def local_state(self) -> LocalState:
        """What the data directory says about the former process (R21)."""
        meta = self._volume.meta
        if meta.session == 0:
            return LocalState()
        return LocalState(
            LocalMeta(
                meta.cluster_id,
                meta.broker_id,
                Generation(meta.disk_gen, meta.power_gen),
                meta.session,
                meta.store_term,
                meta.beat,
            ),
            ending=_ENDINGS[self._volume.start],
        )

    @property
    def states(self) -> Mapping[TopicIdPartition, bytes]:
        """The copies of store records on the volume (R27)."""
        return self._volume.states

    async def record_states(self, records: Mapping[TopicIdPartition, bytes]) -> None:
        """Keeps copies of store records.

        Raises:
            StorageFull, PartitionOffline: they can't be written.
        """
        try:
            await self._io.run(self._volume.record_states, dict(records))
        except OSError as error:
            raise _refused(error) from error

    async def note_store_term(self, store_term: int) -> None:
        """Keeps the highest store term seen (R27).

        Raises:
            StorageFull, PartitionOffline: it can't be written.
        """
        await self._change_meta(self._volume.note_store_term, store_term)

    async def note_beat(self, beat: int) -> None:
        """Keeps the number of the volume's present state (H27).

        Raises:
            StorageFull, PartitionOffline: it can't be written.
        """
        await self._change_meta(self._volume.note_beat, beat)

    async def _change_meta(self, change: Callable[[int], None], value: int) -> None:
        """One change of meta.json after the other; none once the directory may be another's."""
        async with self._meta_lock:
            if self._closed:
                raise PartitionOffline("the data directory is closed")
            try:
                await self._io.run(change, value)
            except OSError as error:
                raise _refused(error) from error

    async def prepare(self, meta: LocalMeta) -> None:
        """Notes durably what is about to be registered.

        Raises:
            DataDirectoryError: it can't be written.
        """
        await self._io.run(
            partial(
                self._volume.prepare,
                cluster_id=meta.cluster_id,
                session=meta.session,
                disk_gen=meta.generation.disk_gen,
                power_gen=meta.generation.power_gen,
                store_term=meta.store_term,
                beat=meta.beat,
            )
        )

    async def begin(self) -> None:
        """Says on disk that this process may append from now on; after recovery and registration.

        Raises:
            DataDirectoryError: it can't be written.
        """
        async with self._meta_lock:
            meta = self._volume.meta
            await self._io.run(
                partial(
                    self._volume.begin_session,
                    session=meta.session,
                    disk_gen=meta.disk_gen,
                    power_gen=meta.power_gen,
                )
            )
        self._begun = True
        await self._io.run(self._volume.empty_trash)
        await self._io.run(self._volume.empty_moved)

    async def add(self, wanted: Iterable[TopicIdPartition]) -> None:
        """Makes the directories of new partitions, durably; those that are there stay.

        Raises:
            StorageFull, PartitionOffline: they can't be made.
        """
        try:
            made = await self._io.run(self._volume.create_partitions, list(wanted))
            self._made |= made
        except OSError as error:
            raise _refused(error) from error

    async def contents(self) -> Contents:
        """What is on the volume, compared with what should be."""
        return await self._io.run(self._volume.contents)

    async def remove(self, unwanted: Iterable[TopicIdPartition]) -> None:
        """Closes these logs and takes their directories away for good (tombstoned topics only).

        A directory that can't be moved now is found, and removed, at the next start.
        """
        gone = list(unwanted)
        self._let_go(gone)
        try:
            await self._io.run(self._volume.delete_partitions, gone)
            await self._io.run(self._volume.empty_trash)
        except OSError as error:
            log.warning("%d directories of deleted topics stay: %s", len(gone), error)

    def _let_go(self, gone: Iterable[TopicIdPartition]) -> None:
        """Closes logs whose directories are about to go."""
        for where in gone:
            for names in (self._made, self._unrecovered, self._curable, self._with_cuts):
                names.discard(where)
            self._volume.checkpoints.pop(where, None)
            closed = self._open.pop(where, None)
            if closed is not None:
                self.flusher.forget(closed)
                closed.discard()

    async def move_out(self, unwanted: Sequence[TopicIdPartition]) -> None:
        """Closes replicas that are other brokers' now; their directories are kept in `moved/` until
        `empty_moved` or the next start (R26).

        Raises:
            StorageFull, PartitionOffline: they can't be moved.
        """
        self._let_go(unwanted)
        try:
            await self._io.run(self._volume.move_out, unwanted)
        except OSError as error:
            raise _refused(error) from error

    async def empty_moved(self) -> None:
        """Frees the space of all that was moved out."""
        try:
            await self._io.run(self._volume.empty_moved)
        except OSError as error:
            log.warning("replicas moved away keep their space: %s", error)

    async def replace(self, broken: Sequence[TopicIdPartition]) -> None:
        """Closes broken logs and moves what is left of their directories to `stray/`, where it is
        kept; `add` makes new ones then (R23).

        Raises:
            StorageFull, PartitionOffline: they can't be moved.
        """
        self._let_go(broken)
        try:
            await self._io.run(self._volume.set_aside, broken)
        except OSError as error:
            raise _refused(error) from error

    def is_curable(self, where: TopicIdPartition) -> bool:
        """Whether the log could only not be opened for a lack (space, descriptors) that passes."""
        return where in self._curable

    def has_cuts(self, where: TopicIdPartition) -> bool:
        """Whether bytes that recovery cut off the log after a power cut are kept beside it."""
        return where in self._with_cuts

    async def remove_cuts(self, where: TopicIdPartition) -> None:
        """Removes those bytes: another replica has all that was committed of them.

        Raises:
            StorageFull, PartitionOffline: they can't be removed.
        """
        try:
            directory = self._volume.directory_of(where)
            await self._io.run(remove_cuts, self._volume.disk, directory)
        except OSError as error:
            raise _refused(error) from error
        self._with_cuts.discard(where)

    def forget_unopened(self, where: TopicIdPartition) -> None:
        """Lets go of a curable log, so that `open` tries again with what the former process noted
        of it."""
        for names in (self._curable, self._unrecovered):
            names.discard(where)
        closed = self._open.pop(where, None)
        if closed is not None:
            self.flusher.forget(closed)
            closed.discard()

    async def set_aside(self, unknown: Iterable[TopicIdPartition]) -> None:
        """Moves directories of topics that nobody knows to `stray/`, where they are kept (R25)."""
        for where in unknown:
            log.warning(
                "%s/%d belongs to no topic of this cluster; its directory is kept in stray/",
                where.topic_id.hex(), where.partition,
            )  # fmt: skip
        try:
            await self._io.run(self._volume.set_aside, list(unknown))
        except OSError as error:
            log.warning("unknown directories stay where they are: %s", error)

    async def open(self, wanted: Sequence[tuple[TopicIdPartition, LogConfig]]) -> list[Log]:
        """The partitions' logs, recovered if the former process didn't end cleanly; those that
        need a look at their files share one job of a thread.

        A log that can't be used is answered too, with `failure` set: the partition is offline.
        """
        if all(self._needs_no_file(where) for where, _ in wanted):
            opened = [self._open_one(where, config) for where, config in wanted]
        else:
            opened = await self._io.run(
                lambda: [self._open_one(where, config) for where, config in wanted]
            )
        self._open.update({each.partition_id: each for each in opened})
        return opened

    def _needs_no_file(self, where: TopicIdPartition) -> bool:
        return where in self._made or (
            self._volume.start is StartKind.CLEAN and where in self._volume.checkpoints
        )

    def _open_one(self, where: TopicIdPartition, config: LogConfig) -> Log:
        is_new = where in self._made
        opened, report = open_log(
            where,
            self._volume.directory_of(where),
            start=StartKind.CLEAN if is_new else self._volume.start,
            checkpoint=Checkpoint() if is_new else self._volume.checkpoints.get(where),
            config=config,
            context=self._context,
        )
        if report.cut_bytes:
            log.warning(
                "%s/%d: %d bytes cut off the end after an unclean stop (kept in %d files)",
                where.topic_id.hex(), where.partition, report.cut_bytes, report.cut_files,
            )  # fmt: skip
        if opened.failure is not None:
            self._unrecovered.add(where)
        if report.is_curable:
            self._curable.add(where)
        if report.kept_files:
            self._with_cuts.add(where)
        return opened

    async def checkpoint(self) -> None:
        """Writes the numbers of all logs if any has changed; they are on the disk on return.

        Raises:
            StorageFull, PartitionOffline: they can't be written.
        """
        async with self._saving:
            running = {where: each.checkpoint() for where, each in self._open.items()}
            present = {**running, **self._kept()}
            if present == self._saved or not self._begun:
                return
            try:
                await self._io.run(self._volume.save_checkpoints, present)
            except OSError as error:
                raise _refused(error) from error
            self._saved = present

    async def close(self, *, clean: bool) -> None:
        """Lets the volume go. `clean`: all logs are synced and the next start needs no recovery."""
        if clean and self._begun:
            await self.flusher.flush_all(self._open.values())
            try:
                closed = {where: await each.close() for where, each in self._open.items()}
                await self._io.run(self._end, closed)
            except (HeadraceError, OSError) as error:
                log.error("the stop isn't a clean one, the next start recovers: %s", error)
        async with self._meta_lock:
            self._closed = True
        self._io.close()
        self._sync.close()
        self._volume.release()

    def _kept(self) -> dict[TopicIdPartition, Checkpoint]:
        """What the former process noted of logs that this one could not open."""
        return {
            where: numbers
            for where, numbers in self._volume.checkpoints.items()
            if where not in self._open or where in self._unrecovered
        }

    def _end(self, closed: dict[TopicIdPartition, Checkpoint]) -> None:
        """Writes the clean marker, unless a log is left that must be recovered before anything is
        appended to it: then the next start goes on with that. Raises OSError."""
        left = self._volume.unopened(self._open.keys() | self._made) | self._curable
        if not left:
            self._volume.close_clean(closed)
        elif self._volume.start is StartKind.CLEAN:
            running = {where: each for where, each in closed.items() if where not in left}
            self._volume.close_clean({**running, **self._kept()})
        else:
            log.warning("%d partitions could not be opened, the next start recovers", len(left))
            self._volume.save_checkpoints({**closed, **self._kept()})


def _refused(error: OSError) -> StorageFull | PartitionOffline:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"the disk is full: {error.strerror}")
    return PartitionOffline(f"the data directory can't be written: {error}")
