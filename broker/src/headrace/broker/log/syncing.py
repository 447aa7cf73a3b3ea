"""One sync of one log: what it covers, doing it in a thread, taking in how it went.

When is the flusher's to say (flusher.py). Files are pinned in between, so that a roll, retention or
truncation meanwhile takes no descriptor away.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.log.files import Disk, LogFile
from headrace.broker.log.segment import Segment
from headrace.broker.log.state import LogState


class SyncJob(NamedTuple):
    """What one fdatasync round covers; made on the loop's thread, run in another."""

    end_offset: int
    generation: int
    files: tuple[tuple[LogFile, int], ...]
    rolled: tuple[Segment, ...]
    epochs_path: str | None
    directory: str | None

    def run(self, disk: Disk) -> None:
        """Syncs epochs, then data, then names. Crash within: the recovery point stays where it
        was, as it is moved only after all of it. Raises OSError."""
        if self.epochs_path is not None:
            fd = disk.open(self.epochs_path, create=True)
            try:
                disk.sync(fd)
            finally:
                disk.close(fd)
        for _file, fd in self.files:
            disk.sync(fd)
        if self.directory is not None:
            disk.sync_directory(self.directory)


def begin(log: LogState) -> SyncJob:
    """As `Log.begin_sync`."""
    log.check_alive()
    active = log.segments.active
    rolled = tuple(log.segments.rolled)
    segments = [*rolled, active] if active.size_bytes else list(rolled)
    files: list[tuple[LogFile, int]] = []
    try:
        for segment in segments:
            files.append((segment.file, log.files.pin(segment.file)))
    except OSError as error:
        for file, _fd in files:
            log.files.unpin(file)
        raise log.translated(error) from error
    epochs_path = log.epochs.path if log.epochs.is_dirty else None
    directory = log.directory if log.directory_dirty else None
    log.epochs.is_dirty = log.directory_dirty = False
    return SyncJob(
        log.end_offset, log.segments.generation, tuple(files), rolled, epochs_path, directory
    )


def end(log: LogState, job: SyncJob, error: OSError | None) -> None:
    """As `Log.end_sync`."""
    for file, _fd in job.files:
        log.files.unpin(file)
    if error is not None:
        log.fail(f"fdatasync failed: {error.strerror}; what it covered may be lost")
        return
    if job.generation != log.segments.generation:
        return
    log.segments.synced(job.rolled)
    log.flushed_offset = max(log.flushed_offset, job.end_offset)
    if log.flushed_offset >= log.end_offset:
        log.is_dirty = False


def is_needed(log: LogState) -> bool:
    """Whether anything was appended or closed that is not on the disk yet."""
    return bool(log.is_dirty or log.segments.rolled or log.directory_dirty or log.epochs.is_dirty)
