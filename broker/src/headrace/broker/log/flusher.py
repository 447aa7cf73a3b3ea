"""Group commit: everybody who waits for one log shares one fdatasync, off the loop's thread.

One sync a log at a time; whoever comes while it runs waits for the next one, which starts at once
and covers all that was appended meanwhile. `flushed_offset` is moved to the end that the log had
*before* the sync. A failed sync takes the log offline and is never tried again (the kernel may have
dropped the pages and call the next one a success, "fsyncgate").
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable

from headrace.broker.log.config import FlushPolicy
from headrace.broker.log.files import Disk, Workers
from headrace.broker.log.log import Log
from headrace.protocol.errors import HeadraceError, PartitionOffline

_VOID = -1
"""Generation of no log: a job that carries it moves nothing when it ends."""

LogCallback = Callable[[Log], None]


class Flusher:
    """Syncs logs; also the `LogEvents` of all logs. Lives on the loop's thread.

    `on_flushed(log)` after each sync (the partition moves its high watermark), `on_failed(log)`
    when a log goes offline for whatever reason.
    """

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        *,
        on_flushed: LogCallback | None = None,
        on_failed: LogCallback | None = None,
    ) -> None:
        self._disk = disk
        self._workers = workers
        self.on_flushed = on_flushed
        self.on_failed = on_failed
        self._running: dict[Log, asyncio.Task[None]] = {}
        self._again: set[Log] = set()
        self._waiters: dict[Log, list[tuple[int, asyncio.Future[None]]]] = {}
        self._dirty_since_ms: dict[Log, int | None] = {}
        self.syncs = 0
        """fdatasync rounds done, for metrics."""

    def request(self, log: Log) -> None:
        """Asks for a sync of all that is appended now; nobody waits."""
        if log in self._running:
            self._again.add(log)
        else:
            self._start(log)

    async def flushed(self, log: Log, offset: int) -> None:
        """Waits until everything up to and including `offset` is on the disk.

        Raises:
            PartitionOffline: the sync failed, or the log was cut meanwhile.
        """
        if log.flushed_offset > offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(log, []).append((offset, future))
        self.request(log)
        await future

    async def flush_all(self, logs: Iterable[Log]) -> None:
        """Syncs all of `logs` that need it and waits; failures are in `log.failure`."""
        for log in logs:
            if log.needs_sync and log.failure is None:
                self.request(log)
        while self._running:
            await asyncio.wait(self._running.values())

    def tick(self, now_ms: int) -> None:
        """Starts what has waited for `flush_ms`; to be called every 100 ms or so. Also under policy
        `batch`, for appends that nobody waited for (acks=1)."""
        for log, since_ms in list(self._dirty_since_ms.items()):
            if log.failure is not None or log.config.flush is FlushPolicy.NONE:
                del self._dirty_since_ms[log]
            elif since_ms is None:
                self._dirty_since_ms[log] = now_ms
            elif now_ms - since_ms >= log.config.flush_ms:
                del self._dirty_since_ms[log]
                self.request(log)

    def became_dirty(self, log: Log) -> None:
        """From the log: the first byte that isn't synced."""
        if log.config.flush is not FlushPolicy.NONE:
            self._dirty_since_ms.setdefault(log, None)

    def wants_sync(self, log: Log) -> None:
        """From the log: a segment was closed."""
        self.request(log)

    def failed(self, log: Log) -> None:
        """From the log: it is offline; whoever waits is told."""
        self._dirty_since_ms.pop(log, None)
        self._settle(log)
        if self.on_failed is not None:
            self.on_failed(log)

    def forget(self, log: Log) -> None:
        """The log is closed or deleted; whoever still waits gets PartitionOffline."""
        self._dirty_since_ms.pop(log, None)
        self._again.discard(log)
        self._settle(log, gone=True)

    def _start(self, log: Log) -> None:
        self._running[log] = asyncio.get_running_loop().create_task(self._sync(log))

    async def _sync(self, log: Log) -> None:
        try:
            await self._sync_once(log)
        finally:
            del self._running[log]
        wanted = log in self._again or self._waiters.get(log)
        self._again.discard(log)
        if log.failure is not None:
            self._settle(log)
        elif wanted and log.needs_sync:
            self._start(log)
        elif log.needs_sync:
            self.became_dirty(log)

    async def _sync_once(self, log: Log) -> None:
        try:
            job = log.begin_sync()
        except HeadraceError:
            return
        error: OSError | None = None
        try:
            await self._workers.run(job.run, self._disk)
        except OSError as raised:
            error = raised
        except asyncio.CancelledError:
            log.end_sync(job._replace(generation=_VOID), None)
            raise
        except Exception as raised:  # no thread could be started: nothing was synced
            error = OSError(errno.EAGAIN, f"no thread could do it ({raised})")
        log.end_sync(job, error)
        self.syncs += 1
        self._settle(log)
        if error is None and self.on_flushed is not None:
            self.on_flushed(log)

    def _settle(self, log: Log, *, gone: bool = False) -> None:
        """Wakes those whose offset is synced, or can't be any more."""
        waiting = self._waiters.pop(log, None)
        if not waiting:
            return
        left = []
        for offset, future in waiting:
            if future.done():
                continue
            if log.flushed_offset > offset:
                future.set_result(None)
            elif gone or log.failure is not None or offset >= log.end_offset:
                text = log.failure.message if log.failure else "the log was cut before its sync"
                future.set_exception(PartitionOffline(text))
            else:
                left.append((offset, future))
        if left:
            self._waiters[log] = left
