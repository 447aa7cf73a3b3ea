"""What only the SQLite backend has to withstand: other processes, and what befalls a file."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from headrace.broker.store import sqlite_file
from headrace.broker.store.base import Applied, Change, Put, Refused, Snapshot, Unknown
from headrace.broker.store.sqlite import SqliteStore
from headrace.protocol.errors import StoreUnavailable

INCREMENTER = """
import asyncio, sys
from pathlib import Path
from headrace.broker.store.base import Applied, Change
from headrace.broker.store.sqlite import SqliteStore
from headrace.protocol.errors import StoreUnavailable

async def main(path, rounds):
    store = await SqliteStore.open(Path(path))
    print("up", flush=True)
    done = 0
    while done < rounds:
        try:
            item = await store.get("n")
            outcome = await store.cas(Change("n", b"%d" % (int(item.value) + 1), item.revision))
        except StoreUnavailable:
            continue
        if isinstance(outcome, Applied):
            done += 1
            print(done, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "store.db", busy_timeout_s=0.3)
    yield opened
    await opened.close()


def incrementer(path: Path, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INCREMENTER, str(path), str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
    )


def count_of(output: str) -> int:
    return int(next((line for line in reversed(output.split()) if line.isdigit()), "0"))


async def test_processes_lose_no_increment_though_one_is_stopped_and_one_killed(
    store: SqliteStore,
) -> None:
    await store.cas(Change("n", b"0", None))
    workers = [incrementer(store.path, rounds) for rounds in (60, 60, 100_000, 100_000)]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    stopped, killed = workers[2:]
    await asyncio.sleep(0.2)
    stopped.send_signal(signal.SIGSTOP)
    killed.kill()
    await asyncio.sleep(0.3)
    stopped.send_signal(signal.SIGCONT)
    outputs = [await asyncio.to_thread(worker.communicate) for worker in workers[:2]]
    stopped.kill()
    outputs += [await asyncio.to_thread(worker.communicate) for worker in workers[2:]]
    counted = sum(count_of(out) for out, _ in outputs)
    item = await store.get("n")
    assert item is not None
    # A killed process may have committed one more than it could print.
    assert counted <= int(item.value) <= counted + 2


async def test_a_watch_hears_of_another_process_soon(store: SqliteStore) -> None:
    await store.cas(Change("n", b"0", None))
    async with aclosing(store.watch("n")) as events:
        await anext(events)
        worker = incrementer(store.path, 20)
        async with asyncio.timeout(10):
            async for event in events:
                assert isinstance(event, Put)
                if event.item.value == b"20":
                    break
        await asyncio.to_thread(worker.communicate)


async def test_a_file_replaced_or_deleted_while_open_is_refused_until_it_is_back(
    store: SqliteStore,
) -> None:
    applied = await store.cas(Change("k", b"1", None))
    assert isinstance(applied, Applied)
    aside = store.path.with_suffix(".aside")
    store.path.rename(aside)
    with pytest.raises(StoreUnavailable, match="replaced or deleted"):
        await store.get("k")
    shutil.copy(aside, store.path)
    with pytest.raises(StoreUnavailable, match="replaced or deleted"):
        await store.cas(Change("k", b"2", applied.revision))
    aside.rename(store.path)
    assert isinstance(await store.cas(Change("k", b"2", applied.revision)), Applied)


async def test_a_second_open_in_one_process_is_refused_and_harms_nothing(
    store: SqliteStore,
) -> None:
    with pytest.raises(StoreUnavailable, match="open in this process already"):
        await SqliteStore.open(store.path)
    assert isinstance(await store.cas(Change("k", b"1", None)), Applied)


async def test_after_closing_it_can_be_opened_again_with_all_that_was_written(
    tmp_path: Path,
) -> None:
    for expected in (0, 1, 2):
        store = await SqliteStore.open(tmp_path / "deep" / "er" / "store.db")
        assert len(await store.list("")) == expected
        await store.cas(Change(f"k{expected}", b"x", None))
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get("k0")


@pytest.mark.parametrize(
    ("content", "message"), [(b"garbage" * 1000, "no Headrace store"), (b"{}", "no Headrace store")]
)
async def test_garbage_is_not_taken_for_a_store(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=message):
        await SqliteStore.open(path)
    assert path.read_bytes() == content


async def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
        other.commit()
    with pytest.raises(StoreUnavailable, match="something else"):
        await SqliteStore.open(path)


async def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await SqliteStore.open(path)).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreUnavailable, match="format 7"):
        await SqliteStore.open(path)


def as_another(path: Path, statement: str) -> None:
    """Changes the file from another process: a second connection here would drop locks."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()"
    )
    subprocess.run([sys.executable, "-c", code, str(path), statement], check=True)


async def test_a_file_whose_rows_were_damaged_is_an_outage_until_they_are_back(
    store: SqliteStore,
) -> None:
    await store.cas(Change("k", b"1", None))
    as_another(store.path, "UPDATE counters SET name = 'gone' WHERE name = 'revision'")
    await asyncio.sleep(0.2)  # the thread looks for news meanwhile
    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailable, match="damaged"):
            await store.cas(Change("k", b"2", "1"))
    as_another(store.path, "UPDATE counters SET name = 'revision' WHERE name = 'gone'")
    async with asyncio.timeout(5):
        assert await store.cas(Change("k", b"2", "1")) == Applied("2")


async def test_a_folder_in_the_place_of_the_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(StoreUnavailable):
        await SqliteStore.open(tmp_path / "store.db")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        await SqliteStore.open(tmp_path / "file" / "store.db")


async def test_many_calls_to_a_locked_file_wait_together_and_not_one_after_the_other(
    store: SqliteStore, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        found = await asyncio.gather(*(store.get("a") for _ in range(40)), return_exceptions=True)
        assert time.monotonic() - began < 5, "40 times 0.3 s"
        assert {type(each) for each in found} == {StoreUnavailable}
        other.execute("ROLLBACK")
    assert await store.get("a") is None
    assert await asyncio.gather(*(store.get("a") for _ in range(40))) == [None] * 40


async def test_a_locked_file_is_unavailable_and_comes_back(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN EXCLUSIVE'); print('up', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(store.path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(StoreUnavailable, match="another process holds it"):
        await store.cas(Change("k", b"1", None))
    holder.kill()
    await asyncio.to_thread(holder.communicate)
    assert isinstance(await store.cas(Change("k", b"1", None)), Applied)


async def test_an_error_at_the_commit_is_unknown_and_the_next_write_works(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader in another connection of another process holds a shared lock: COMMIT gets BUSY."""
    script = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN'); c.execute('SELECT count(*) FROM objects').fetchone();"
        "print('up', flush=True); time.sleep(60)"
    )
    if sqlite3.sqlite_version_info >= (3, 51, 3):
        pytest.skip("with a write-ahead log readers don't block a commit")
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(store.path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    outcome = await store.cas(Change("k", b"1", None))
    assert isinstance(outcome, Unknown)
    holder.kill()
    await asyncio.to_thread(holder.communicate)
    assert await store.get("k") is None
    assert isinstance(await store.cas(Change("k", b"1", None)), Applied)


async def test_a_full_disk_is_an_outage_not_a_loss(store: SqliteStore) -> None:
    first = await store.cas(Change("k", b"1", None))
    assert isinstance(first, Applied)
    await store._call(lambda: _limit_pages(store, 12))
    with pytest.raises(StoreUnavailable, match="full"):
        await store.cas(Change("big", b"x" * 1_000_000, None))
    item = await store.get("k")
    assert item is not None
    await store._call(lambda: _limit_pages(store, 1_000_000))
    assert isinstance(await store.cas(Change("big", b"x" * 1_000_000, None)), Applied)


def _limit_pages(store: SqliteStore, pages: int) -> None:
    assert store._file._connection is not None
    store._file._connection.execute(f"PRAGMA max_page_count = {pages}")


async def test_a_watcher_too_far_behind_gets_a_snapshot_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "REMOVALS_MAX", 10)
    async with aclosing(store.watch("k")) as events:
        assert await anext(events) == Snapshot(())
        keys = [f"k{n}" for n in range(1500)]
        made = await store.cas_many([Change(key, b"", None) for key in keys])
        gone = [
            Change(key, None, outcome.revision)
            for key, outcome in zip(keys, made, strict=True)
            if isinstance(outcome, Applied)
        ]
        await store.cas_many(gone)
        async with asyncio.timeout(5):
            while not isinstance(event := await anext(events), Snapshot):
                pass
        assert event == Snapshot(())


async def test_a_forked_child_may_not_use_the_store(store: SqliteStore) -> None:
    real = store._file._pid
    store._file._pid = real + 1  # what a child would see: another process's number
    with pytest.raises(StoreUnavailable, match="forked"):
        await store.get("k")
    store._file._pid = real


async def test_a_write_is_durable_before_it_is_answered(store: SqliteStore) -> None:
    connection = store._file._connection
    assert connection is not None
    mode, level, mmap = await store._call(
        lambda: tuple(
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("journal_mode", "synchronous", "mmap_size")
        )
    )
    if sqlite3.sqlite_version_info < (3, 51, 3):
        assert (mode, level) == (("truncate",), (3,))
    assert mmap in ((0,), None)


async def test_an_idle_store_costs_almost_nothing(store: SqliteStore) -> None:
    before, started = time.process_time(), time.monotonic()
    await asyncio.sleep(1.0)
    share = (time.process_time() - before) / (time.monotonic() - started)
    assert share < 0.05


async def test_refused_outcomes_leave_the_revision_counter_alone(store: SqliteStore) -> None:
    first = await store.cas(Change("k", b"1", None))
    assert await store.cas(Change("k", b"2", None)) == Refused()
    second = await store.cas(Change("l", b"1", None))
    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    assert int(second.revision) == int(first.revision) + 1
    assert os.path.exists(store.path)
