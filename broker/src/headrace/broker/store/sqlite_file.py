"""The file of the `sqlite` store: one connection and its transactions, for one thread.

Every trap of SQLite that the store must not fall into is dealt with here (replication.md H14);
`sqlite` has the thread, the queue and the watches. All errors leave as `StoreUnavailable` with
advice, except those at COMMIT, which are the outcome `Unknown`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.broker.store.base import (
    Applied,
    Change,
    Gone,
    Item,
    Outcome,
    Outcomes,
    Put,
    Refused,
    Unknown,
)
from headrace.protocol.errors import StoreUnavailable

POLL_INTERVAL_S = 0.015
"""How often other processes' changes are looked for; each time costs about 150 µs of a core."""

POLL_ALONE_INTERVAL_S = 0.05
"""The same once nobody else has written for `ALONE_AFTER_S`: brokers renew their leases every two
seconds, so then this process is the only one."""

ALONE_AFTER_S = 10.0

BUSY_TIMEOUT_S = 3.0
"""How long a call waits for another process's transaction (normally under 10 ms). Longer means
that a process was stopped in the middle of one: then the store is unavailable."""

REMOVALS_MAX = 10_000
"""Removals remembered for watchers; one that is further behind gets a new `Snapshot`."""

_TRIM_EVERY = 1_000

FORMAT = 1
APPLICATION_ID = 0x48656164  # "Head"

_WAL_IS_SAFE = (3, 51, 3)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS objects_by_revision ON objects (revision);
CREATE TABLE IF NOT EXISTS removals (revision INTEGER PRIMARY KEY, key TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO counters VALUES ('revision', 0), ('trimmed_to', 0);
"""

_open_files: set[tuple[int, int]] = set()
_open_files_lock = threading.Lock()


class SqliteFile:
    """The connection and its transactions; used by one thread only."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._data_version = -1
        self._seen = 0
        self._wrote = False
        self._heard_s = float("-inf")

    # --- opening ---

    def open(self) -> None:
        """Connects, checks that it is ours and of a format we know, or makes it new."""
        with self._translated("open"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._claim()
            self._connection = sqlite3.connect(
                self._path, timeout=self._busy_timeout_s, isolation_level=None
            )
            self._set_pragmas(self._connection)
            self._create_or_check(self._connection)
            self._seen = self._counter("revision")
            self._data_version = self._read_data_version()

    def close(self) -> None:
        """Gives the file back; POSIX locks go with it."""
        if self._connection is not None and os.getpid() == self._pid:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None
        if self._identity is not None:
            with _open_files_lock:
                _open_files.discard(self._identity)

    def _claim(self) -> None:
        """A second open in one process would drop the first one's locks when it closes. So what is
        there is not even touched before it is known to be nobody else's here."""
        with _open_files_lock:
            identity = _identity(self._path) or _make_empty(self._path)
            if identity in _open_files:
                raise StoreUnavailable(
                    f"the store {self._path} is open in this process already: share one"
                    " SqliteStore (closing a second one would drop the first one's locks)"
                )
            _open_files.add(identity)
        self._identity = identity

    def _set_pragmas(self, connection: sqlite3.Connection) -> None:
        """The connection's settings. TRUNCATE + EXTRA: the commit is on disk, with the directory
        entry of the journal, before it is reported."""
        wal = sqlite3.sqlite_version_info >= _WAL_IS_SAFE
        mode = "WAL" if wal else "TRUNCATE"
        connection.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout_s * 1000)}")
        connection.execute("PRAGMA mmap_size = 0")
        got = connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
        if got.upper() != mode:
            raise StoreUnavailable(
                f"the store {self._path} can't use journal mode {mode} (it is {got}): is it on a"
                " network or shared folder? Put it on a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {'FULL' if wal else 'EXTRA'}")

    def _create_or_check(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if tables == 0:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            elif application != APPLICATION_ID:
                raise StoreUnavailable(
                    f"{self._path} is a database of something else, not a Headrace store: choose"
                    " another path"
                )
            elif version > FORMAT:
                raise StoreUnavailable(
                    f"the store {self._path} has format {version}, this version knows {FORMAT}:"
                    " it was used by a newer Headrace; start that one"
                )
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise

    # --- reading ---

    def get(self, key: str) -> Item | None:
        """An object, or None."""
        with self._translated("read"):
            row = (
                self._usable()
                .execute("SELECT key, value, revision FROM objects WHERE key = ?", (key,))
                .fetchone()
            )
        return None if row is None else _item(row)

    def list(self, prefix: str) -> list[Item]:
        """All objects under a prefix, by key."""
        with self._translated("list"):
            rows = (
                self._usable()
                .execute(
                    "SELECT key, value, revision FROM objects"
                    " WHERE key >= ? AND key < ? ORDER BY key",
                    (prefix, prefix + "\U0010ffff"),
                )
                .fetchall()
            )
        return [_item(row) for row in rows]

    def news(self) -> Sequence[Put | Gone] | None:
        """What changed since the last call, oldest first; None if removals were forgotten since
        and everything must be listed again."""
        with self._translated("poll"):
            connection = self._usable()
            version = self._read_data_version()
            if version == self._data_version and not self._wrote:
                return ()
            if version != self._data_version:
                self._heard_s = time.monotonic()
            connection.execute("BEGIN")
            try:
                upto, trimmed = self._counter("revision"), self._counter("trimmed_to")
                found = None if trimmed > self._seen else self._changes_since(self._seen)
            finally:
                _roll_back(connection)
            self._seen, self._data_version, self._wrote = upto, version, False
            return found

    def poll_interval_s(self) -> float:
        """How long the thread may wait for a job before it polls."""
        alone = time.monotonic() - self._heard_s > ALONE_AFTER_S
        return POLL_ALONE_INTERVAL_S if alone else POLL_INTERVAL_S

    def _changes_since(self, revision: int) -> Sequence[Put | Gone]:
        connection = self._usable()
        puts = connection.execute(
            "SELECT key, value, revision FROM objects WHERE revision > ?", (revision,)
        ).fetchall()
        removals = connection.execute(
            "SELECT revision, key FROM removals WHERE revision > ?", (revision,)
        ).fetchall()
        dated: list[tuple[int, Put | Gone]] = [(row[2], Put(_item(row))) for row in puts]
        dated += [(at, Gone(key)) for at, key in removals]
        return [event for _, event in sorted(dated, key=lambda pair: pair[0])]

    def _read_data_version(self) -> int:
        row = self._usable().execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def _counter(self, name: str) -> int:
        row = (
            self._usable().execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
        )
        if row is None:
            raise StoreUnavailable(
                f"the store {self._path} lacks its counter {name!r}: the file is damaged; stop all"
                " brokers and restore it"
            )
        return int(row[0])

    # --- writing ---

    def cas_many(self, changes: Sequence[Change]) -> Outcomes:
        """All changes in one transaction. Before COMMIT an error means that nothing was done (the
        journal rolls back); from COMMIT on it means that nobody knows."""
        with self._translated("write"):
            connection = self._usable()
            connection.execute("BEGIN IMMEDIATE")
            try:
                outcomes = self._write(connection, changes)
            except BaseException:
                _roll_back(connection)
                raise
        try:
            connection.execute("COMMIT")
            self._usable()
        except (sqlite3.Error, StoreUnavailable) as error:
            _roll_back(connection)
            return [Unknown(f"the store failed at the commit: {error}") for _ in changes]
        finally:
            self._wrote = True
        return outcomes

    def _write(self, connection: sqlite3.Connection, changes: Sequence[Change]) -> Outcomes:
        first = revision = self._counter("revision")
        outcomes: Outcomes = []
        for change in changes:
            if _write_one(connection, change, revision + 1):
                revision += 1
                outcomes.append(Applied("" if change.value is None else str(revision)))
            elif change.value is None and change.expected is None:
                outcomes.append(self._absent(connection, change.key))
            else:
                outcomes.append(Refused())
        if revision != first:
            connection.execute("UPDATE counters SET value = ? WHERE name = 'revision'", (revision,))
            if first // _TRIM_EVERY != revision // _TRIM_EVERY:
                self._trim(connection)
        return outcomes

    def _absent(self, connection: sqlite3.Connection, key: str) -> Outcome:
        """Removing what isn't expected to be there: done if it isn't."""
        row = connection.execute("SELECT 1 FROM objects WHERE key = ?", (key,)).fetchone()
        return Applied("") if row is None else Refused()

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Forgets all but the newest removals."""
        row = connection.execute(
            "SELECT revision FROM removals ORDER BY revision DESC LIMIT 1 OFFSET ?",
            (REMOVALS_MAX,),
        ).fetchone()
        if row is not None:
            connection.execute("DELETE FROM removals WHERE revision <= ?", row)
            connection.execute("UPDATE counters SET value = ? WHERE name = 'trimmed_to'", row)

    # --- guards ---

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"the store {self._path} is closed")
        if os.getpid() != self._pid:
            raise StoreUnavailable("a store can't be used in a forked process: open its own there")
        if _identity(self._path) != self._identity:
            raise StoreUnavailable(
                f"the store {self._path} was replaced or deleted while in use: put the file back,"
                " or stop all brokers of the machine before changing it"
            )
        return self._connection

    def _translated(self, verb: str) -> _Translated:
        return _Translated(self._path, verb)


class _Translated:
    """Turns SQLite's and the file system's errors into `StoreUnavailable` with advice."""

    __slots__ = ("_path", "_verb")

    def __init__(self, path: Path, verb: str) -> None:
        self._path = path
        self._verb = verb

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (sqlite3.Error, OSError)):
            raise StoreUnavailable(
                f"can't {self._verb} the store {self._path}: {error}{_advice(error)}"
            ) from error


_ADVICE = {
    "SQLITE_BUSY": ": another process holds it; find one that is stopped or stuck in the middle"
    " of a write",
    "SQLITE_FULL": ": the disk is full; free some space, the brokers go on by themselves",
    "SQLITE_NOTADB": ": this is no Headrace store, or it is damaged; check the path",
    "SQLITE_CORRUPT": ": the file is damaged; stop all brokers and restore it",
    "SQLITE_READONLY": ": the file or its folder can't be written; check its owner and mode",
    "SQLITE_CANTOPEN": ": check that the folder exists and can be written",
}


def _advice(error: BaseException) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    return next((text for start, text in _ADVICE.items() if name.startswith(start)), "")


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file the path names now. A stat, never an open: closing would drop SQLite's locks."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_empty(path: Path) -> tuple[int, int]:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        # Another broker of a cluster that starts for the first time was there a moment earlier.
        found = os.stat(path)
        return found.st_dev, found.st_ino
    try:
        made = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return made.st_dev, made.st_ino


def _item(row: tuple[str, bytes, int]) -> Item:
    return Item(row[0], row[1], str(row[2]))


def _write_one(connection: sqlite3.Connection, change: Change, revision: int) -> bool:
    """One change if its condition holds; whether it did."""
    if change.expected is None:
        if change.value is None:
            return False
        cursor = connection.execute(
            "INSERT INTO objects VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (change.key, change.value, revision),
        )
        return cursor.rowcount == 1
    if not change.expected.isdecimal():
        return False
    if change.value is None:
        cursor = connection.execute(
            "DELETE FROM objects WHERE key = ? AND revision = ?",
            (change.key, int(change.expected)),
        )
        if cursor.rowcount == 1:
            connection.execute("INSERT INTO removals VALUES (?, ?)", (revision, change.key))
        return cursor.rowcount == 1
    cursor = connection.execute(
        "UPDATE objects SET value = ?, revision = ? WHERE key = ? AND revision = ?",
        (change.value, revision, change.key, int(change.expected)),
    )
    return cursor.rowcount == 1


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
