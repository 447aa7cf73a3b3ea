"""The store in one SQLite file, shared by the brokers of one machine.

What makes it safe (replication.md H14): a rollback journal with synchronous=EXTRA where SQLite's
WAL has its reset bug (before 3.51.3); every transaction begins IMMEDIATE and ends within one call
in one dedicated thread; an error at COMMIT is an unknown outcome; the file is opened once in a
process and never used across a fork; a file replaced under us is noticed before and after each
transaction. Not for network or shared-folder filesystems: their locks and fsync can't be trusted.

The watch: other processes' commits change `PRAGMA data_version`, which the thread looks at every
15 to 50 ms; then it reads the objects whose revision is above the last one seen, and the removals.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headrace.broker.store.base import (
    Change,
    Gone,
    Item,
    Outcome,
    Outcomes,
    Put,
    WatchEvent,
)
from headrace.broker.store.sqlite_file import BUSY_TIMEOUT_S, SqliteFile
from headrace.broker.store.watcher import Mailbox
from headrace.protocol.errors import StoreUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    """A function to run in the store's thread, and where its result goes. `until_s`: when it is
    too late to begin, on the monotonic clock."""

    work: Callable[[], object]
    future: asyncio.Future[object]
    until_s: float


class SqliteStore:
    """See `base.Store` for the verbs. `SqliteStore.open` makes one."""

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        self.path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._mailboxes: set[Mailbox] = set()
        self._file = SqliteFile(path, busy_timeout_s)
        self._patience_s = busy_timeout_s
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._closed = False
        self._is_stuck = False
        self._said = ""

    @classmethod
    async def open(cls, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> SqliteStore:
        """Opens the file, or makes it. `busy_timeout_s`: see `BUSY_TIMEOUT_S`.

        Raises:
            StoreUnavailable: it can't be opened, is locked, not a store, or of a newer format.
        """
        store = cls(path, busy_timeout_s=busy_timeout_s)
        store._thread.start()
        try:
            await store._call(store._file.open)
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Item | None:
        """See `base.Store.get`."""
        return await self._call(lambda: self._file.get(key))

    async def list(self, prefix: str) -> list[Item]:
        """See `base.Store.list`."""
        return await self._call(lambda: self._file.list(prefix))

    async def cas(self, change: Change) -> Outcome:
        """See `base.Store.cas`."""
        return (await self.cas_many([change]))[0]

    async def cas_many(self, changes: Sequence[Change]) -> Outcomes:
        """See `base.Store.cas_many`; here one transaction, so unknown for one is for all."""
        if not changes:
            return []
        return await self._call(lambda: self._file.cas_many(changes))

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        """See `base.Store.watch`."""
        mailbox = Mailbox(prefix)
        self._mailboxes.add(mailbox)
        try:
            self._ask_for_snapshot(mailbox)
            async for event in mailbox.events():
                yield event
        finally:
            self._mailboxes.discard(mailbox)

    async def close(self) -> None:
        """See `base.Store.close`."""
        if self._closed:
            return
        self._closed = True
        for mailbox in self._mailboxes:
            mailbox.close()
        self._jobs.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} is closed")
        future: asyncio.Future[object] = self._loop.create_future()
        self._jobs.put(_Job(work, future, time.monotonic() + self._patience_s))
        return await future  # type: ignore[return-value]

    # --- below: in the store's thread ---

    def _run(self) -> None:
        try:
            while True:
                try:
                    job = self._jobs.get(timeout=self._file.poll_interval_s())
                except queue.Empty:
                    self._poll()
                    continue
                if job is None:
                    return
                self._do(job)
                if not (self._closed or self._is_stuck):
                    self._poll()
        finally:
            self._file.close()

    def _do(self, job: _Job) -> None:
        try:
            if self._closed:  # a stuck store would make each job that waits take its time-out
                raise StoreUnavailable(f"the store {self.path} is closed")
            if self._is_stuck and time.monotonic() > job.until_s:
                # Behind a file that is locked each would take its time-out, one after the other.
                raise StoreUnavailable(
                    f"the store {self.path} is stuck: a call that began {self._patience_s:g} s"
                    " ago found it locked"
                )
            result, error = job.work(), None
            self._is_stuck = False
        except Exception as caught:
            result, error = None, caught
            self._is_stuck = isinstance(caught, StoreUnavailable)
        self._on_loop(_resolve, job.future, result, error)

    def _poll(self) -> None:
        """Hands what changed to the watches. An error here is an outage: the next poll goes on
        from the same revision, so nothing is missed. Nothing ends the thread: whoever waits for it
        would wait for ever."""
        try:
            news = self._file.news()
        except StoreUnavailable:
            return
        except Exception as error:
            self._say(error)
            return
        if news is None:
            self._on_loop(self._relist)
        elif news:
            self._on_loop(self._tell, news)

    def _say(self, error: Exception) -> None:
        """Logs what nobody foresaw, once until it is something else: polls come fast."""
        text = repr(error)
        if text != self._said:
            self._said = text
            log.error("the store %s can't be looked at", self.path, exc_info=error)

    def _on_loop(self, function: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(function, *args)

    # --- below: on the loop ---

    def _tell(self, news: Sequence[Put | Gone]) -> None:
        for event in news:
            for mailbox in self._mailboxes:
                mailbox.put_change(event)

    def _relist(self) -> None:
        for mailbox in self._mailboxes:
            self._ask_for_snapshot(mailbox)

    def _ask_for_snapshot(self, mailbox: Mailbox) -> None:
        """Reads the snapshot in the thread and posts it from there: its place in the order of
        posts is its place in time, so that nothing older can follow it."""

        def work() -> None:
            try:
                items = self._file.list(mailbox.prefix)
            except Exception as error:
                if not isinstance(error, StoreUnavailable):
                    self._say(error)
                self._on_loop(self._loop.call_later, 0.1, self._ask_again, mailbox)
            else:
                self._on_loop(mailbox.put_snapshot, items)

        self._jobs.put(_Job(work, self._loop.create_future(), float("inf")))

    def _ask_again(self, mailbox: Mailbox) -> None:
        if mailbox in self._mailboxes and not self._closed:
            self._ask_for_snapshot(mailbox)


def _resolve(future: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
