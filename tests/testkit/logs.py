"""Logs for tests: batches by the handful, logs in a directory, disks that misbehave on order."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.compactor import Done, compact
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.files import Disk, FileCache, Workers
from headrace.broker.log.log import Appended, Log
from headrace.broker.log.recovery import OpenReport, StartKind, open_log
from headrace.protocol import batch
from headrace.protocol.compression import Buffer
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.record import Record

P = ParamSpec("P")
T = TypeVar("T")

PARTITION = TopicIdPartition(TopicId(b"0123456789abcdef"), 0)
SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=250)


class InlineWorkers(Workers):
    """Runs jobs at once on the caller's thread, as a simulation does."""

    def __init__(self) -> None:
        pass

    async def run(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return job(*args, **kwargs)

    def submit(self, job: Callable[[], object]) -> None:
        job()

    def close(self) -> None:
        pass


class OddDisk(Disk):
    """The real disk with faults to order; counts syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.sync_seconds = 0.0
        self.sync_error: int | None = None
        self.write_error: int | None = None
        self.write_bytes_max: int | None = None
        self.is_cold = False

    def sync(self, fd: int) -> None:
        self.syncs += 1
        time.sleep(self.sync_seconds)
        if self.sync_error is not None:
            raise OSError(self.sync_error, errno.errorcode[self.sync_error])
        super().sync(fd)

    def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.write_error is not None:
            raise OSError(self.write_error, errno.errorcode[self.write_error])
        if self.write_bytes_max is not None:
            data = b"".join(bytes(part) for part in buffers)[: self.write_bytes_max]
            return super().writev(fd, (data,), position)
        return super().writev(fd, buffers, position)

    def pread_nowait(self, fd: int, size_bytes: int, position: int) -> bytearray | None:
        return None if self.is_cold else super().pread_nowait(fd, size_bytes, position)


class Crash(BaseException):
    """The process died here."""


class FragileDisk(OddDisk):
    """The real disk until the operation that changes something and is the `fails_at`-th: that one
    and (after a crash) all later ones are not done. Also counts how many there were. Syncs are
    counted only: the machine doesn't crash."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.fails_at = -1
        self.error: type[BaseException] = Crash
        self.is_lasting = False
        """Whether errors go on after the first."""

    def _step(self) -> None:
        self.changes += 1
        is_dead = (self.error is Crash or self.is_lasting) and 0 <= self.fails_at < self.changes
        if is_dead or self.changes == self.fails_at:
            raise Crash if self.error is Crash else OSError(errno.EIO, "injected")

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            self._step()
        return super().open(path, create=create)

    def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._step()
        return super().writev(fd, buffers, position)

    def sync(self, fd: int) -> None:
        self._step()

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._step()
        super().truncate(fd, size_bytes)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self._step()

    def replace_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        self._step()
        super().replace_file(path, data, sync=False)

    def append_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        self._step()
        super().append_file(path, data, sync=sync)


async def clean(
    log: Log, *, now_ms: int = 0, memory_bytes: int = 1 << 20, disk: Disk | None = None
) -> Done | None:
    """One pass in line, if one is due; what the cleaner does with a process."""
    job = await log.cleaning.job(now_ms, memory_bytes=memory_bytes, bytes_per_second=0)
    if job is None:
        return None
    try:
        for step in compact(disk or log.disk, job):
            if isinstance(step, Done):
                await log.cleaning.finish(job, step, now_ms)
                return step
            await log.cleaning.put_in_place(step)
    except Exception:
        await log.cleaning.give_up(job)
        raise
    raise AssertionError("a pass ends with what it did")


@dataclass
class Bench:
    """A directory with a log in it that can be opened again and again."""

    directory: str
    config: LogConfig = SMALL
    disk: Disk = field(default_factory=Disk)
    workers: Workers = field(default_factory=InlineWorkers)
    capacity: int = 64

    def __post_init__(self) -> None:
        self.context = LogContext(FileCache(self.disk, self.workers, self.capacity))

    def open(
        self, start: StartKind = StartKind.NEW, checkpoint: Checkpoint | None = None
    ) -> tuple[Log, OpenReport]:
        """Opens the log as after a start of that kind."""
        return open_log(
            PARTITION,
            self.directory,
            start=start,
            checkpoint=checkpoint,
            config=self.config,
            context=self.context,
        )

    def kill(self, log: Log) -> None:
        """What SIGKILL leaves: descriptors closed, nothing saved."""
        log._release()


def sealed(
    values: Sequence[bytes],
    *,
    timestamp_ms: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """One batch as a producer seals it."""
    return batch.encode_records(
        [(None, value, timestamp_ms + place, None) for place, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def append(log: Log, data: Buffer, *, now_ms: int = 0, leader_epoch: int = 0) -> Appended:
    """Appends one sealed batch."""
    return log.append(data, batch.read_header(data), leader_epoch=leader_epoch, now_ms=now_ms)


async def read_bytes(log: Log, offset: int, end_offset: int, max_bytes: int = 1 << 20) -> bytes:
    """All batches from the one with `offset` on that end below `end_offset`."""
    found = b""
    while offset < end_offset:
        piece = await log.locate_cold(offset, max_bytes=max_bytes, end_offset=end_offset)
        if piece is None:
            break
        with piece:
            data = bytes(await piece.read())
        assert batch.read_header(data).base_offset == piece.base_offset
        found += data
        offset = piece.next_offset
    return found


async def read_records(log: Log, offset: int | None = None) -> list[Record]:
    """All records from `offset` (or the start) to the log's end."""
    first = log.start_offset if offset is None else offset
    data = await read_bytes(log, first, log.end_offset)
    found: list[Record] = []
    for position, header in batch.walk(data):
        found += batch.records("t", 0, data[position : position + header.length], header)
    return [record for record in found if record.offset >= first]
