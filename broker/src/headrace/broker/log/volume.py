"""The data directory of one broker: who owns it, how its last process ended, what is in it.

    DATA/lock         flock of the running process
    DATA/meta.json    format, cluster, broker, generations, last session, highest store term
    DATA/open|clean   how the last process ended (below)
    DATA/checkpoints  numbers of each running log, written every few seconds
    DATA/manifest     partition directories made and removed
    DATA/states       the last store record seen of each partition (replication.md R27)
    DATA/partitions/<topic id>/<partition>/      one log each
    DATA/trash/       directories on their way out
    DATA/stray/       directories that nobody knows (kept for a person, R25)

Invariant: `clean` is on the disk only while no byte can be appended. `begin_session` writes
`checkpoints` and `open`, then removes `clean`; `close_clean` writes `clean`, then removes `open`.
So a start that finds a good `clean` needs no recovery, whatever else it finds.

All methods block (they sync); they are for start, shutdown and threads.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Set
from typing import TypeVar

import msgspec

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.files import Disk
from headrace.broker.log.journal import Journal, frame, read_frames
from headrace.broker.log.recovery import StartKind
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicId, TopicIdPartition

FORMAT = 1
"""Format of everything in the directory; a newer one is refused."""

STATES_GROWTH_BYTES = 4 << 20
"""`states` is written anew once this much was appended to it, or as much as it holds."""

WHOLE = TopicIdPartition(TopicId(bytes(16)), -1)
"""Key in `states` of what concerns the whole cluster; partition -1 of a topic is the topic."""

T = TypeVar("T")


class DataDirectoryError(HeadraceError):
    """The data directory can't be used; the message says what to do. Ends the start."""

    code = "data_directory"


class Meta(msgspec.Struct, frozen=True):
    """meta.json. `session`: number of the last process that wrote here (R1). `beat` rises every
    few seconds while it runs (H27)."""

    format: int
    cluster_id: str
    broker_id: int
    disk_gen: int = 0
    power_gen: int = 0
    session: int = 0
    store_term: int = 0
    beat: int = 0


class OpenMarker(msgspec.Struct, frozen=True):
    """`open`: a process may be appending, or was when it died."""

    boot_id: str
    volume: str
    session: int
    disk_gen: int
    power_gen: int


class _ManifestEntry(msgspec.Struct, array_like=True, frozen=True):
    topic_id: bytes
    partition: int
    is_there: bool


class _State(msgspec.Struct, array_like=True, frozen=True):
    topic_id: bytes
    partition: int
    record: bytes


class _CheckpointEntry(msgspec.Struct, array_like=True, frozen=True):
    topic_id: bytes
    partition: int
    checkpoint: Checkpoint


class Contents(msgspec.Struct, frozen=True):
    """What the manifest and the directories say about each other."""

    present: list[TopicIdPartition]
    """Known and there."""
    missing: list[TopicIdPartition]
    """Known but not there: this replica lost them (R23)."""
    unlisted: list[TopicIdPartition]
    """There but not known."""


_checkpoint_decoder = msgspec.msgpack.Decoder(list[_CheckpointEntry])


MOVED = "moved"
"""Folder of replicas that were moved to other brokers: kept for a while, in case that was an
error."""


class Volume:
    """A data directory that this process holds the lock of; see `open`."""

    def __init__(self, disk: Disk, path: str, lock_fd: int) -> None:
        self.disk = disk
        self.path = path
        self._lock_fd: int | None = lock_fd
        self.meta = Meta(FORMAT, "", 0)
        self.start = StartKind.NEW
        """How the last process ended."""
        self.marker: OpenMarker | None = None
        """What the last process left, when it didn't end cleanly."""
        self.checkpoints: dict[TopicIdPartition, Checkpoint] = {}
        """Of the last process: its `clean`, else its last `checkpoints`."""
        self.states: dict[TopicIdPartition, bytes] = {}
        """The last store record seen of each partition, topic, and of the cluster (R27)."""
        self._listed: set[TopicIdPartition] = set()
        self._manifest = Journal(disk, self._at("manifest"), _ManifestEntry)
        self._states = Journal(disk, self._at("states"), _State)
        self._states_appended = 0
        self._states_written = 0
        self._trash_count = 0

    def _at(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    # ---------------------------------------------------------------- start

    @classmethod
    def open(
        cls,
        path: str,
        *,
        broker_id: int,
        cluster_id: str | None = None,
        disk: Disk | None = None,
    ) -> Volume:
        """Takes the directory (making it if needed) and reads what the last process left. Changes
        nothing that a later start would miss. `cluster_id` None: not known yet, the caller compares
        `meta.cluster_id` before it writes anything.

        Raises:
            DataDirectoryError: another process has it, it can't be written, it is of another
                cluster, another broker or a newer version, or not a directory.
        """
        disk = disk or Disk()
        try:
            disk.make_directory(path)
            lock_fd = disk.lock(os.path.join(path, "lock"))
        except OSError as error:
            raise _unusable(path, error) from error
        if lock_fd is None:
            raise DataDirectoryError(
                f"another broker is running on {path}; stop it or name another data directory"
            )
        volume = cls(disk, path, lock_fd)
        try:
            volume._read(cluster_id, broker_id)
        except OSError as error:
            volume.release()
            raise _unusable(path, error) from error
        except BaseException:
            volume.release()
            raise
        return volume

    def _read(self, cluster_id: str | None, broker_id: int) -> None:
        self._check_writable()
        self._read_meta(cluster_id, broker_id)
        for name in ("partitions", "trash", "stray", MOVED):
            self.disk.make_directory(self._at(name))
        self.disk.sync_directory(self.path)
        self._read_journals()
        clean = self._read_checkpoints("clean")
        if clean is not None:
            self.start, self.checkpoints = StartKind.CLEAN, clean
            return
        self.checkpoints = self._read_checkpoints("checkpoints") or {}
        data = self.disk.read_file(self._at("open"))
        if data is None and not self._listed:
            self.start = StartKind.NEW
            return
        self.marker = _decoded(data, OpenMarker) if data is not None else None
        self.start = self._kind_of(self.marker)

    def _kind_of(self, marker: OpenMarker | None) -> StartKind:
        """Another boot unless it is sure to be the same: that costs time, never records."""
        boot_id = self.disk.boot_id()
        is_same = (
            marker is not None
            and boot_id is not None
            and marker.boot_id == boot_id
            and marker.volume == self.disk.volume_identity(self.path)
            and marker.session == self.meta.session
        )
        return StartKind.SAME_BOOT if is_same else StartKind.OTHER_BOOT

    def _check_writable(self) -> None:
        probe = self._at("probe")
        self.disk.replace_file(probe, b"can this directory be written?", sync=False)
        self.disk.unlink(probe)

    def _read_meta(self, cluster_id: str | None, broker_id: int) -> None:
        data = self.disk.read_file(self._at("meta.json"))
        if data is None:
            partitions = self._at("partitions")
            if self.disk.exists(partitions) and self.disk.list_directory(partitions):
                raise DataDirectoryError(
                    f"{self.path} has partitions but no meta.json: restore it, or move the"
                    " directory away and let the broker copy its partitions anew"
                )
            self.meta = Meta(FORMAT, cluster_id or "", broker_id)
            return
        found = _decoded(data, Meta)
        if found is None:
            raise DataDirectoryError(f"{self._at('meta.json')} is damaged; restore it")
        self._check_meta(found, cluster_id, broker_id)
        self.meta = found

    def _check_meta(self, found: Meta, cluster_id: str | None, broker_id: int) -> None:
        if found.format > FORMAT:
            raise DataDirectoryError(
                f"{self.path} has format {found.format}, this version knows {FORMAT}: it was"
                " written by a newer version; start that one"
            )
        if cluster_id is not None and found.cluster_id != cluster_id:
            raise DataDirectoryError(
                f"{self.path} belongs to cluster {found.cluster_id}, the store to {cluster_id};"
                " name another data directory or the right store"
            )
        if found.broker_id != broker_id:
            raise DataDirectoryError(
                f"{self.path} belongs to broker {found.broker_id}, this one is {broker_id}"
            )

    def _read_journals(self) -> None:
        for entry in self._manifest.load():
            key = TopicIdPartition(TopicId(entry.topic_id), entry.partition)
            (self._listed.add if entry.is_there else self._listed.discard)(key)
        self._manifest.rewrite(
            [_ManifestEntry(*key, True) for key in sorted(self._listed)], sync=True
        )
        for state in self._states.load():
            key = TopicIdPartition(TopicId(state.topic_id), state.partition)
            self.states[key] = state.record
        held = {key.topic_id for key in self._listed}
        self.states = {
            key: record
            for key, record in self.states.items()
            if key in self._listed or key == WHOLE or (key.partition < 0 and key.topic_id in held)
        }
        self._rewrite_states()

    def _read_checkpoints(self, name: str) -> dict[TopicIdPartition, Checkpoint] | None:
        data = self.disk.read_file(self._at(name))
        if data is None:
            return None
        frames, _good = read_frames(data)
        try:
            entries = _checkpoint_decoder.decode(frames[0]) if frames else None
        except msgspec.DecodeError:
            entries = None
        if entries is None:
            return None
        return {
            TopicIdPartition(TopicId(entry.topic_id), entry.partition): entry.checkpoint
            for entry in entries
        }

    # ---------------------------------------------------------------- session

    def begin_session(self, *, session: int, disk_gen: int, power_gen: int) -> None:
        """Before the first append: says on disk that a process of `session` is writing.

        Call it after all logs are recovered and the registration is written (R21).

        Crash within: before `clean` is gone the start counts as clean (nothing was appended);
        after it, as a process or machine crash with nothing to cut.

        Raises:
            DataDirectoryError: the directory can't be written.
        """
        boot_id = self.disk.boot_id() or uuid.uuid4().hex
        volume = self.disk.volume_identity(self.path)
        self.marker = OpenMarker(boot_id, volume, session, disk_gen, power_gen)
        self.meta = msgspec.structs.replace(
            self.meta, session=session, disk_gen=disk_gen, power_gen=power_gen
        )
        try:
            if self.start is StartKind.CLEAN:
                self.save_checkpoints(self.checkpoints)
            self._write_json("meta.json", self.meta)
            self._write_json("open", self.marker)
            self.disk.unlink(self._at("clean"))
            self.disk.sync_directory(self.path)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def prepare(
        self,
        *,
        cluster_id: str,
        session: int,
        disk_gen: int,
        power_gen: int,
        store_term: int,
        beat: int = 0,
    ) -> None:
        """Before the registration is written: notes in meta.json whose the directory is and what
        the process is about to register (R21), so that a start after a crash in between can't
        count a lost disk or tail as kept.

        Crash after: the next start finds a session that no marker names and recovers in full.

        Raises:
            DataDirectoryError: the directory can't be written.
        """
        self.meta = msgspec.structs.replace(
            self.meta, cluster_id=cluster_id, session=session, disk_gen=disk_gen,
            power_gen=power_gen, store_term=max(store_term, self.meta.store_term),
            beat=max(beat, self.meta.beat),
        )  # fmt: skip
        try:
            self._write_json("meta.json", self.meta)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def note_store_term(self, store_term: int) -> None:
        """Remembers the highest store term seen (R27). Crash after: remembered. Raises OSError."""
        if store_term > self.meta.store_term:
            self.meta = msgspec.structs.replace(self.meta, store_term=store_term)
            self._write_json("meta.json", self.meta)

    def note_beat(self, beat: int) -> None:
        """Remembers the number of the volume's present state (H27). Crash after: remembered.
        Raises OSError."""
        self.meta = msgspec.structs.replace(self.meta, beat=max(beat, self.meta.beat))
        self._write_json("meta.json", self.meta)

    def save_checkpoints(self, checkpoints: Mapping[TopicIdPartition, Checkpoint]) -> None:
        """Replaces `checkpoints`, synced: the numbers of all logs. Crash after: recovery starts
        from these. Raises OSError."""
        self.disk.replace_file(self._at("checkpoints"), _encoded(checkpoints), sync=True)

    def close_clean(self, checkpoints: Mapping[TopicIdPartition, Checkpoint]) -> None:
        """After every log was closed (so synced): the next start needs no recovery. Logs that
        failed belong in it too; their checkpoint says so.

        Crash within: clean or not clean, both true. Raises OSError.
        """
        self.disk.replace_file(self._at("clean"), _encoded(checkpoints), sync=True)
        self.disk.unlink(self._at("open"))
        self.disk.sync_directory(self.path)

    def release(self) -> None:
        """Lets another process have the directory; without `close_clean` it counts as killed."""
        if self._lock_fd is not None:
            self.disk.close(self._lock_fd)
            self._lock_fd = None

    def _write_json(self, name: str, value: msgspec.Struct) -> None:
        data = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
        self.disk.replace_file(self._at(name), data, sync=True)

    # ---------------------------------------------------------------- partitions

    def directory_of(self, partition_id: TopicIdPartition) -> str:
        """Where a partition's log is."""
        topic_id, partition = partition_id
        return self._at("partitions", topic_id.hex(), str(partition))

    def contents(self) -> Contents:
        """Compares the manifest with the directories; one listing a topic."""
        found: set[TopicIdPartition] = set()
        for topic in self.disk.list_directory(self._at("partitions")):
            topic_id = _topic_id_of(topic.name)
            if topic_id is not None and topic.is_directory:
                for entry in self.disk.list_directory(self._at("partitions", topic.name)):
                    if entry.is_directory and entry.name.isdigit():
                        found.add(TopicIdPartition(topic_id, int(entry.name)))
        return Contents(
            present=sorted(found & self._listed),
            missing=sorted(self._listed - found),
            unlisted=sorted(found - self._listed),
        )

    def unopened(self, opened: Set[TopicIdPartition]) -> set[TopicIdPartition]:
        """The partitions that are on the volume and not among `opened`."""
        others = self._listed - opened
        return {key for key in others if self.disk.exists(self.directory_of(key))}

    def create_partitions(self, partition_ids: Iterable[TopicIdPartition]) -> set[TopicIdPartition]:
        """Makes the directories and notes them in the manifest, one sync of each for all of them.
        What is there already stays, and isn't in the answer. To be awaited (in a thread) before the
        first append.

        Crash within: directories that the manifest doesn't know, empty. Raises OSError.
        """
        new = [key for key in partition_ids if key not in self._listed]
        made = {key for key in new if not self.disk.exists(self.directory_of(key))}
        for key in new:
            self.disk.make_directory(self.directory_of(key))
        for topic_id in {key.topic_id for key in new}:
            self.disk.sync_directory(self._at("partitions", topic_id.hex()))
        if new:
            self.disk.sync_directory(self._at("partitions"))
            self._manifest.append([_ManifestEntry(*key, True) for key in new], sync=True)
            self._listed.update(new)
        return made

    def delete_partitions(self, partition_ids: Iterable[TopicIdPartition]) -> None:
        """For tombstoned topics and replicas moved away: takes the directories out at once; the
        space comes back with `empty_trash`. The logs must have been discarded before.

        Crash within: directories that the manifest doesn't know, for the caller to delete again.
        Raises OSError.
        """
        self._move(partition_ids, "trash")

    def set_aside(self, partition_ids: Iterable[TopicIdPartition]) -> None:
        """Moves directories that nobody knows, or that are damaged, to `stray/` and keeps them.
        Crash within: as `delete_partitions`. Raises OSError."""
        self._move(partition_ids, "stray")

    def move_out(self, partition_ids: Iterable[TopicIdPartition]) -> None:
        """Moves directories of replicas that other brokers have now to `moved/`, until
        `empty_moved` or the next start. Crash within: as `delete_partitions`. Raises OSError."""
        self._move(partition_ids, MOVED)

    def empty_moved(self) -> None:
        """Frees the space of replicas moved away; slow, for a thread. Crash within: the rest goes
        next time."""
        for entry in self.disk.list_directory(self._at(MOVED)):
            self.disk.remove_tree(self._at(MOVED, entry.name))

    def _move(self, partition_ids: Iterable[TopicIdPartition], folder: str) -> None:
        keys = list(partition_ids)
        known = [key for key in keys if key in self._listed]
        if known:
            self._manifest.append([_ManifestEntry(*key, False) for key in known], sync=True)
            self._listed.difference_update(known)
        held = {key.topic_id for key in self._listed}
        for key in keys:
            self.states.pop(key, None)
            if key.topic_id not in held:
                self.states.pop(TopicIdPartition(key.topic_id, -1), None)
            source = self.directory_of(key)
            if self.disk.exists(source):
                self.disk.rename(source, self._free_name(folder, key))
        for topic_id in {key.topic_id for key in keys}:
            self.disk.remove_directory(self._at("partitions", topic_id.hex()))
        self.disk.sync_directory(self._at("partitions"))

    def _free_name(self, folder: str, key: TopicIdPartition) -> str:
        while True:
            self._trash_count += 1
            name = f"{key.topic_id.hex()}-{key.partition}-{self._trash_count}"
            if not self.disk.exists(self._at(folder, name)):
                return self._at(folder, name)

    def empty_trash(self) -> None:
        """Frees the space of deleted partitions; slow, for a thread, at start and after deletions.
        Crash within: the rest goes next time."""
        for entry in self.disk.list_directory(self._at("trash")):
            self.disk.remove_tree(self._at("trash", entry.name))

    def record_states(self, records: Mapping[TopicIdPartition, bytes]) -> None:
        """Remembers the last store record of partitions (R27); the bytes are the caller's.

        Crash after: process - there. Machine - maybe older ones; the generation changes then.
        Raises OSError.
        """
        changed = [
            _State(*key, record)
            for key, record in records.items()
            if self.states.get(key) != record
        ]
        self._states.append(changed, sync=False)
        self.states.update(records)
        self._states_appended += sum(len(state.record) + 40 for state in changed)
        if self._states_appended > max(STATES_GROWTH_BYTES, self._states_written):
            self._rewrite_states()

    def _rewrite_states(self) -> None:
        self._states.rewrite(
            [_State(*key, record) for key, record in list(self.states.items())], sync=True
        )
        self._states_appended = 0
        self._states_written = sum(len(record) + 40 for record in list(self.states.values()))


def _encoded(checkpoints: Mapping[TopicIdPartition, Checkpoint]) -> bytes:
    entries = [_CheckpointEntry(*key, value) for key, value in checkpoints.items()]
    return frame(msgspec.msgpack.encode(entries))


def _decoded(data: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        return None


def _topic_id_of(name: str) -> TopicId | None:
    try:
        raw = bytes.fromhex(name)
    except ValueError:
        return None
    return TopicId(raw) if len(raw) == 16 else None


def _unusable(path: str, error: OSError) -> DataDirectoryError:
    return DataDirectoryError(
        f"the data directory {path} can't be used: {error.strerror} ({error.filename or path});"
        " it must be a directory that this user may write, with free space"
    )
