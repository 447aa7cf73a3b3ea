"""The storage port: every file operation of the log and the data directory, descriptors, threads.

`Disk` is the one place that calls the operating system, so that a simulation can put a disk of its
own in its place; each method says what a crash just after it leaves. "Process crash" is SIGKILL
with the kernel alive; "machine crash" is a power cut: only what was synced is sure to be there,
and what was not synced may be there in part and in any order.

`FileCache` bounds how many log files are open. It belongs to the loop's thread; work in threads
opens files of its own through `Disk`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

from headrace.protocol.compression import Buffer

P = ParamSpec("P")
T = TypeVar("T")

OPEN_FILES_DEFAULT = 512
"""Log files held open at once by one broker, when nothing else is said."""

DISCARDED_SUFFIX = ".deleted"
"""Name of a file that is gone for everybody but readers in flight; removed at the next start."""

TEMPORARY_SUFFIX = ".tmp"
"""A file that was being written when its process died; removed or overwritten, never read."""


class Entry(NamedTuple):
    """One name in a directory."""

    name: str
    size_bytes: int
    is_directory: bool


class Disk:
    """The real disk. Methods raise OSError as the kernel says; translating is the caller's part."""

    def __init__(self) -> None:
        self.nowait_works = True
        """False once a file system refused RWF_NOWAIT; then all reads go to threads."""

    def open(self, path: str, *, create: bool = False) -> int:
        """A descriptor for reading and writing.

        Crash after: process - an empty file may be there. Machine - a created file may be missing
        until its directory was synced.
        """
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def open_to_read(self, path: str) -> int:
        """A descriptor for reading; leaves nothing."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Closes; syncs nothing."""
        os.close(fd)

    def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Writes the buffers one after another at `position`; answers the bytes written.

        Crash after: process - all of them are there (a crash within leaves a prefix). Machine -
        any part of them may be missing or zero, also with later writes present.
        """
        return os.pwritev(fd, buffers, position)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` bytes, fewer only at the end of the file. May wait for the disk."""
        data = os.pread(fd, size_bytes, position)
        while len(data) < size_bytes:
            more = os.pread(fd, size_bytes - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pread_nowait(self, fd: int, size_bytes: int, position: int) -> bytearray | None:
        """The bytes if the page cache has them, else None (also where that can't be told).

        Fewer than `size_bytes` mean the end of the file or of what is cached.
        """
        if not self.nowait_works:
            return None
        data = bytearray(size_bytes)
        try:
            count = os.preadv(fd, [data], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self.nowait_works = False
            return None
        if count != size_bytes:
            del data[count:]
        return data

    def sync(self, fd: int) -> None:
        """fdatasync. Crash after: the file's bytes and length are there. When it raises EIO the
        kernel may have dropped the pages and would answer the next call with success: never ask
        again."""
        os.fdatasync(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cuts the file. Crash after: process - cut. Machine - old bytes may be back until the
        file was synced."""
        os.ftruncate(fd, size_bytes)

    def size(self, fd: int) -> int:
        """The file's length in bytes."""
        return os.fstat(fd).st_size

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of that name."""
        return os.path.lexists(path)

    def rename(self, source: str, target: str) -> None:
        """Crash after: process - renamed. Machine - either name, until the directory was synced."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Removes a file if it is there. Crash after a machine crash it may be back until the
        directory was synced."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def make_directory(self, path: str) -> None:
        """Makes the directory and those above it. Machine crash after: missing until the directory
        above was synced."""
        os.makedirs(path, exist_ok=True)

    def remove_tree(self, path: str) -> None:
        """Removes a directory with all in it. A crash within leaves some of it."""
        shutil.rmtree(path, ignore_errors=True)

    def remove_directory(self, path: str) -> None:
        """Removes a directory if it is empty."""
        try:
            os.rmdir(path)
        except OSError:
            pass

    def list_directory(self, path: str) -> list[Entry]:
        """What is in a directory, unsorted; leaves nothing. What another thread removes meanwhile
        is not there."""
        found: list[Entry] = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    size_bytes = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
                found.append(Entry(entry.name, size_bytes, entry.is_dir()))
        return found

    def sync_directory(self, path: str) -> None:
        """fsync of a directory. Crash after: names made, renamed or removed in it stay so."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes | None:
        """A small file's bytes, None when there is no such file."""
        try:
            fd = self.open_to_read(path)
        except FileNotFoundError:
            return None
        try:
            return self.pread(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        """Writes a small file under a temporary name and renames it over `path`.

        Crash after or within: process - the old or the new content, whole. Machine - the same with
        `sync` (file and directory); without it the old, the new, or rubbish: such files carry a
        checksum and can be made again.
        """
        temporary = path + TEMPORARY_SUFFIX
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(fd, data)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def append_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        """Appends to a small file, making it if needed (the directory is not synced). When the disk
        is full nothing stays: behind a part of an entry the next ones could not be read.

        Crash after: process - there (a crash within leaves a prefix). Machine - the same with
        `sync`; without it any part, but what was synced before stays.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size_bytes = self.size(fd)
            try:
                _write_all(fd, data)
            except OSError:
                self.truncate(fd, size_bytes)
                raise
            if sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> int | None:
        """Takes the file's lock (flock) and answers the descriptor that holds it, None when another
        process has it. Ends with the process, however it dies."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written to the file system of `path`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def volume_identity(self, path: str) -> str:
        """What tells this directory on this file system from a copy of it elsewhere."""
        return f"{os.statvfs(path).f_fsid:x}-{os.stat(path).st_ino:x}"

    def boot_id(self) -> str | None:
        """The kernel's boot id, None where there is none (then every start counts as a reboot)."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return None


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Workers:
    """The threads that wait for the disk, a bounded number; a simulation runs jobs in line."""

    def __init__(self, threads: int = 4, name: str = "headrace-disk") -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `job` in a thread and waits for it without holding the loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: job(*args, **kwargs))

    def submit(self, job: Callable[[], object]) -> None:
        """Runs `job` in a thread some time; nobody waits, so it must deal with its own errors."""
        self._pool.submit(job)

    def close(self) -> None:
        """Waits for all jobs and ends the threads."""
        self._pool.shutdown(wait=True)


class LogFile:
    """A log file by name, open or not.

    Invariant: `pins` > 0 implies open and not evicted; `readers` > 0 implies not yet unlinked.
    """

    __slots__ = ("discarded", "fd", "generation", "path", "pins", "readers")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd: int | None = None
        self.pins = 0
        """Calls in threads that hold the descriptor now."""
        self.readers = 0
        """Slices that may still read from it."""
        self.generation = 0
        """Raised when bytes were cut off: what a reader got since may be other bytes."""
        self.discarded = False


class FileCache:
    """At most `capacity` open log files, but for those pinned; least recently used go first."""

    def __init__(self, disk: Disk, workers: Workers, capacity: int = OPEN_FILES_DEFAULT) -> None:
        self.disk = disk
        self.workers = workers
        self.capacity = capacity
        self._open: OrderedDict[LogFile, None] = OrderedDict()
        self._set_aside = 0

    @property
    def open_count(self) -> int:
        """How many log files are open now."""
        return len(self._open)

    def fd(self, file: LogFile, *, create: bool = False) -> int:
        """The descriptor, valid until the next call of the cache (or pin it)."""
        if file.fd is not None:
            self._open.move_to_end(file)
            return file.fd
        file.fd = fd = self.disk.open(file.path, create=create)
        self._open[file] = None
        if len(self._open) > self.capacity:
            self._evict(keep=file)
        return fd

    def pin(self, file: LogFile) -> int:
        """The descriptor, not closed before `unpin`: for a thread that uses it."""
        fd = self.fd(file)
        file.pins += 1
        return fd

    def unpin(self, file: LogFile) -> None:
        """Ends a `pin`."""
        file.pins -= 1
        if file.pins == 0 and file.discarded and file.readers == 0:
            self._remove(file)

    def add_reader(self, file: LogFile) -> None:
        """From now on the file is not unlinked before `drop_reader`."""
        file.readers += 1

    def drop_reader(self, file: LogFile) -> None:
        """Ends an `add_reader`."""
        file.readers -= 1
        if file.readers == 0 and file.discarded and file.pins == 0:
            self._remove(file)

    def discard(self, file: LogFile) -> None:
        """Takes the file out of the log: renamed now, unlinked in a thread after its last reader.

        Crash after: the renamed file is removed at the next start. Machine crash: it may be back
        under its old name; retention or truncation will find it again.
        """
        try:
            self.set_aside(file)
        except FileNotFoundError:
            pass
        self.drop(file)

    def set_aside(self, file: LogFile) -> None:
        """The first half of `discard`: renames. The name is new each time, as the old one may be
        another file's while somebody still reads this one. Raises OSError."""
        self._set_aside += 1
        renamed = f"{file.path}.{self._set_aside}{DISCARDED_SUFFIX}"
        self.disk.rename(file.path, renamed)
        file.path = renamed

    def put_back(self, file: LogFile, path: str) -> None:
        """Takes `set_aside` back. Raises OSError."""
        self.disk.rename(file.path, path)
        file.path = path

    def drop(self, file: LogFile) -> None:
        """The second half of `discard`: unlinks after the last reader."""
        file.discarded = True
        if file.readers == 0 and file.pins == 0:
            self._remove(file)

    def close(self, file: LogFile) -> None:
        """Closes the descriptor unless a thread uses it."""
        if file.fd is not None and file.pins == 0:
            del self._open[file]
            fd, file.fd = file.fd, None
            self.disk.close(fd)

    def _remove(self, file: LogFile) -> None:
        self.close(file)
        disk, path = self.disk, file.path
        self.workers.submit(lambda: disk.unlink(path))

    def _evict(self, keep: LogFile) -> None:
        for file in list(self._open)[: len(self._open) - self.capacity + _EVICT_MARGIN]:
            if file is not keep:
                self.close(file)


_EVICT_MARGIN = 8
"""Descriptors closed beyond the bound at once, so that not every opening pays for a scan."""
