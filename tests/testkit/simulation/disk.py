"""A disk in memory that knows what a power cut would leave (the promises are those of `files`).

Process crash: nothing is lost. Machine crash: what wasn't synced goes as the `Cut` says, names in
the order of their journal, bytes write by write. Descriptors and locks are the process's.
"""

from __future__ import annotations

import errno
import os.path
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, ParamSpec, TypeVar

from headrace.broker.log.files import TEMPORARY_SUFFIX, Disk, Entry
from headrace.protocol.compression import Buffer

P = ParamSpec("P")
T = TypeVar("T")

Cut = Literal["all", "none", "some"]
"""What of the un-synced a power cut takes: all, nothing, or some with torn writes."""

Op = tuple[str, ...]


class File:
    """Bytes, those of them that are synced, and the writes in between."""

    __slots__ = ("data", "durable", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, position: int, data: bytes) -> None:
        _put(self.data, position, data)
        self.pending.append((position, data))

    def truncate(self, size_bytes: int) -> None:
        _resize(self.data, size_bytes)
        self.pending.append((size_bytes, None))

    def sync(self) -> None:
        if self.pending:
            self.durable = bytes(self.data)
            self.pending.clear()

    def power_cut(self, cut: Cut, rng: random.Random, tally: Counter[str]) -> None:
        """Makes the bytes what they are after one."""
        if not self.pending:
            return
        if cut != "none":
            tally["un-synced writes lost"] += 1
            left = bytearray(self.durable)
            for position, data in self.pending if cut == "some" else ():
                if rng.random() < 0.5:
                    continue
                if data is None:
                    _resize(left, position)
                else:
                    kept = rng.randint(0, len(data))
                    tally["write torn"] += 0 < kept < len(data)
                    _put(left, position, data[:kept])
            self.data = left
        self.durable = bytes(self.data)
        self.pending.clear()


def _put(data: bytearray, position: int, piece: bytes) -> None:
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    data[position : position + len(piece)] = piece


def _resize(data: bytearray, size_bytes: int) -> None:
    if size_bytes < len(data):
        del data[size_bytes:]
    else:
        data.extend(bytes(size_bytes - len(data)))


class Tree:
    """Names: directories and files by path."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.directories: dict[str, None] = {"/": None}

    def copy(self) -> Tree:
        made = Tree()
        made.files, made.directories = dict(self.files), dict(self.directories)
        return made

    def rename(self, source: str, target: str) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        for path in [p for p in self.files if _below(p, source)]:
            self.files[target + path[len(source) :]] = self.files.pop(path)
        for path in [p for p in self.directories if _below(p, source)]:
            del self.directories[path]
            self.directories[target + path[len(source) :]] = None

    def remove(self, path: str) -> None:
        for each in [p for p in self.files if _below(p, path)]:
            del self.files[each]
        for each in [p for p in self.directories if _below(p, path)]:
            del self.directories[each]


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


class Machine:
    """A machine's disk: outlives processes, and power cuts as far as they say."""

    def __init__(self, name: str, tally: Counter[str] | None = None) -> None:
        """`tally`: where to count what the disk does."""
        self.name = name
        self.tally = Counter() if tally is None else tally
        self.boots = 0
        self.disks = 0
        self.tree = Tree()
        self._durable = Tree()
        self._journal: list[tuple[Callable[[Tree], None], tuple[str, ...]]] = []
        self.locks: dict[str, tuple[object, int]] = {}
        self.error: int | None = None
        """While it is set, EIO: every change and sync raises it; ENOSPC: what needs room does."""
        self.lies = False
        """Whether it calls synced what isn't."""
        self.free_bytes = 1 << 40
        self.on_name: Callable[[], None] = lambda: None
        """Called with each name that is made, moved or removed and not yet on the disk."""

    def change(self, change: Callable[[Tree], None], *directories: str) -> None:
        """Does something to names, to be on the disk once one of the directories is synced."""
        change(self.tree)
        self._journal.append((change, directories))
        self.on_name()

    def sync_names(self, directory: str) -> None:
        """What happened in a directory up to now (and before it elsewhere) is on the disk."""
        if self.lies:
            return
        last = max(
            (n for n, (_, where) in enumerate(self._journal) if directory in where), default=-1
        )
        for change, _where in self._journal[: last + 1]:
            change(self._durable)
        del self._journal[: last + 1]

    @property
    def is_synced(self) -> bool:
        """Whether a power cut would take nothing."""
        return not self._journal and not any(f.pending for f in self.tree.files.values())

    def power_cut(self, cut: Cut, rng: random.Random) -> None:
        """The machine stops; the next boot finds what is left."""
        self.boots += 1
        kept = {"all": 0, "none": len(self._journal)}.get(cut, rng.randint(0, len(self._journal)))
        self.tally["un-synced names lost"] += kept < len(self._journal)
        for change, _where in self._journal[:kept]:
            change(self._durable)
        self._journal.clear()
        self.tree = self._durable.copy()
        for file in self.tree.files.values():
            file.power_cut(cut, rng, self.tally)

    def wipe(self) -> None:
        """Another, empty disk (and a reboot: nobody changes a disk in a running machine)."""
        self.boots += 1
        self.disks += 1
        self.tree, self._durable = Tree(), Tree()
        self._journal.clear()


class SimDisk(Disk):
    """One process's view of its machine's disk. Dead processes write nothing."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.is_alive = True
        self._open: dict[int, File] = {}
        self._next_fd = 3

    def kill(self) -> None:
        """The process is gone: its descriptors and locks are."""
        self.is_alive = False
        self._open.clear()
        for path in [p for p, owner in self.machine.locks.items() if owner[0] is self]:
            del self.machine.locks[path]

    def _check(self, *, needs_room: bool = False) -> None:
        error = self.machine.error
        if not self.is_alive:
            raise OSError(errno.EBADF, "the process is dead")
        if error is not None and (needs_room or error != errno.ENOSPC):
            self.machine.tally[f"disk error {errno.errorcode[error]}"] += 1
            raise OSError(error, os.strerror(error))

    def _file(self, path: str) -> File:
        found = self.machine.tree.files.get(path)
        if found is None:
            kind = errno.EISDIR if path in self.machine.tree.directories else errno.ENOENT
            raise OSError(kind, os.strerror(kind), path)
        return found

    def _make(self, path: str) -> File:
        directory = os.path.dirname(path)
        if directory not in self.machine.tree.directories:
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)
        made = File()

        def change(tree: Tree) -> None:
            tree.files[path] = made

        self.machine.change(change, directory)
        return made

    def _descriptor(self, file: File) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = file
        return self._next_fd

    def _sync(self, file: File) -> None:
        if not self.machine.lies:
            file.sync()

    def open(self, path: str, *, create: bool = False) -> int:
        if create and path not in self.machine.tree.files:
            self._check(needs_room=True)
            return self._descriptor(self._make(path))
        return self._descriptor(self._file(path))

    def open_to_read(self, path: str) -> int:
        return self._descriptor(self._file(path))

    def close(self, fd: int) -> None:
        file = self._open.pop(fd, None)
        if file is None:
            return
        for path in [p for p, owner in self.machine.locks.items() if owner == (self, fd)]:
            del self.machine.locks[path]

    def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._check(needs_room=True)
        data = b"".join(bytes(each) for each in buffers)
        self._open[fd].write(position, data)
        return len(data)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        return bytes(self._open[fd].data[position : position + size_bytes])

    def pread_nowait(self, fd: int, size_bytes: int, position: int) -> bytearray | None:
        return self._open[fd].data[position : position + size_bytes]

    def sync(self, fd: int) -> None:
        self._check()
        self._sync(self._open[fd])

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check()
        self._open[fd].truncate(size_bytes)

    def size(self, fd: int) -> int:
        return len(self._open[fd].data)

    def exists(self, path: str) -> bool:
        return path in self.machine.tree.files or path in self.machine.tree.directories

    def rename(self, source: str, target: str) -> None:
        self._check()
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, "No such file", source)
        self.machine.change(
            lambda tree: tree.rename(source, target),
            os.path.dirname(source),
            os.path.dirname(target),
        )

    def unlink(self, path: str) -> None:
        self._check()
        if path in self.machine.tree.files:
            self.machine.change(lambda tree: tree.remove(path), os.path.dirname(path))

    def make_directory(self, path: str) -> None:
        self._check(needs_room=True)
        missing = []
        while path not in self.machine.tree.directories:
            missing.append(path)
            path = os.path.dirname(path)
        for each in reversed(missing):
            self.machine.change(_directory_maker(each), os.path.dirname(each))

    def remove_tree(self, path: str) -> None:
        self._check()
        self.machine.change(lambda tree: tree.remove(path), os.path.dirname(path))

    def remove_directory(self, path: str) -> None:
        tree = self.machine.tree
        inside = [p for p in (*tree.files, *tree.directories) if p.startswith(path + "/")]
        if not inside and path in tree.directories:
            self.remove_tree(path)

    def list_directory(self, path: str) -> list[Entry]:
        tree = self.machine.tree
        if path not in tree.directories:
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)
        files = [
            Entry(os.path.basename(p), len(f.data), False)
            for p, f in tree.files.items()
            if os.path.dirname(p) == path
        ]
        return files + [
            Entry(os.path.basename(p), 0, True)
            for p in tree.directories
            if p != "/" and os.path.dirname(p) == path
        ]

    def sync_directory(self, path: str) -> None:
        self._check()
        self.machine.sync_names(path)

    def replace_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        self._check(needs_room=True)
        temporary = path + TEMPORARY_SUFFIX
        file = self._make(temporary)
        file.write(0, bytes(data))
        if sync:
            self._sync(file)
        self.rename(temporary, path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def append_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        self._check(needs_room=True)
        file = self.machine.tree.files.get(path) or self._make(path)
        file.write(len(file.data), bytes(data))
        if sync:
            self._sync(file)

    def lock(self, path: str) -> int | None:
        if path in self.machine.locks:
            return None
        fd = self.open(path, create=True)
        self.machine.locks[path] = (self, fd)
        return fd

    def volume_identity(self, path: str) -> str:
        return f"{self.machine.name}-{self.machine.disks}"

    def boot_id(self) -> str | None:
        return f"boot-{self.machine.name}-{self.machine.boots}"

    def free_bytes(self, path: str) -> int:
        return self.machine.free_bytes


def _directory_maker(path: str) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree.directories[path] = None

    return change
