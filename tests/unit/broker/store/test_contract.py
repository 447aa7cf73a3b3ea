"""What every store backend does, the same tests for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from apiserver.server import ApiServer
from headrace.broker.store.base import (
    Applied,
    Change,
    Gone,
    Item,
    Put,
    Refused,
    Snapshot,
    Store,
    WatchEvent,
)
from headrace.broker.store.kubernetes import KubernetesStore
from headrace.broker.store.memory import MemoryStore
from headrace.broker.store.sqlite import SqliteStore
from testkit import kubernetes


@asynccontextmanager
async def _memory(_folder: Path) -> AsyncIterator[Store]:
    yield MemoryStore()


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[Store]:
    yield await SqliteStore.open(folder / "store.db")


@asynccontextmanager
async def _kubernetes(folder: Path) -> AsyncIterator[Store]:
    async with ApiServer() as api:
        yield await kubernetes.open_store(api, folder)


@asynccontextmanager
async def _real_cluster(_folder: Path) -> AsyncIterator[Store]:
    async with kubernetes.real_namespace() as (kubeconfig, namespace):
        yield await KubernetesStore.open(cluster="mill", namespace=namespace, kubeconfig=kubeconfig)


BACKENDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Store]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "kubernetes": _kubernetes,
}
if kubernetes.real_kubeconfig():
    BACKENDS["real-cluster"] = _real_cluster

# Over HTTP each change is a request of its own; in a cluster an idle control plane does 945/s.
CHANGES_A_SECOND = {"memory": 10_000, "sqlite": 10_000, "kubernetes": 200, "real-cluster": 100}


@pytest.fixture(params=sorted(BACKENDS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with BACKENDS[request.param](tmp_path) as opened:
        yield opened
        await opened.close()


async def put(store: Store, key: str, value: bytes, expected: str | None = None) -> str:
    outcome = await store.cas(Change(key, value, expected))
    assert isinstance(outcome, Applied)
    return outcome.revision


async def until(events: AsyncIterator[WatchEvent], wanted: Callable[[WatchEvent], bool]) -> None:
    async with asyncio.timeout(5):
        async for event in events:
            if wanted(event):
                return


async def test_what_was_written_is_read_with_its_revision(store: Store) -> None:
    assert await store.get("topics/a") is None
    revision = await put(store, "topics/a", b"one")
    assert await store.get("topics/a") == Item("topics/a", b"one", revision)


async def test_every_write_changes_the_revision_even_with_the_same_value(store: Store) -> None:
    first = await put(store, "k", b"same")
    second = await put(store, "k", b"same", first)
    assert first != second


async def test_creating_what_is_there_is_refused(store: Store) -> None:
    await put(store, "k", b"1")
    assert await store.cas(Change("k", b"2", None)) == Refused()


async def test_a_write_from_an_old_or_foreign_revision_is_refused(store: Store) -> None:
    first = await put(store, "k", b"1")
    await put(store, "k", b"2", first)
    for wrong in (first, "", "nonsense", "-1", "999999", "٣"):
        assert await store.cas(Change("k", b"3", wrong)) == Refused()
    assert await store.cas(Change("absent", b"3", first)) == Refused()


async def test_removal_needs_the_revision_and_frees_the_key(store: Store) -> None:
    revision = await put(store, "k", b"1")
    assert await store.cas(Change("k", None, "999")) == Refused()
    assert await store.cas(Change("k", None, None)) == Refused()
    assert await store.cas(Change("k", None, revision)) == Applied("")
    assert await store.get("k") is None
    assert await store.cas(Change("k", None, revision)) == Refused()
    assert await store.cas(Change("k", None, None)) == Applied("")
    assert await put(store, "k", b"again") != revision


async def test_list_gives_the_keys_under_a_prefix_in_order(store: Store) -> None:
    for key in ("topics/b", "topics/a", "topicsx", "topics", "brokers/1", "topics/é"):
        await put(store, key, key.encode())
    assert [item.key for item in await store.list("topics/")] == [
        "topics/a",
        "topics/b",
        "topics/é",
    ]
    assert len(await store.list("")) == 6


async def test_many_changes_have_an_outcome_each(store: Store) -> None:
    revision = await put(store, "a", b"1")
    outcomes = await store.cas_many(
        [Change("a", b"2", revision), Change("a", b"3", revision), Change("b", b"1", None)]
    )
    assert [type(outcome) for outcome in outcomes] == [Applied, Refused, Applied]
    assert await store.cas_many([]) == []


async def test_of_many_writers_from_one_revision_exactly_one_wins(store: Store) -> None:
    revision = await put(store, "k", b"0")
    outcomes = await asyncio.gather(
        *(store.cas(Change("k", str(i).encode(), revision)) for i in range(20))
    )
    assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 1


async def test_a_watch_begins_with_a_snapshot_and_goes_on_with_changes(store: Store) -> None:
    first = await put(store, "topics/a", b"1")
    async with aclosing(store.watch("topics/")) as events:
        assert await anext(events) == Snapshot((Item("topics/a", b"1", first),))
        second = await put(store, "topics/a", b"2", first)
        await until(events, lambda e: e == Put(Item("topics/a", b"2", second)))
        await store.cas(Change("topics/a", None, second))
        await until(events, lambda e: e == Gone("topics/a"))


async def test_a_watch_hears_nothing_of_other_prefixes_and_of_leases(store: Store) -> None:
    async with aclosing(store.watch("")) as events:
        assert await anext(events) == Snapshot(())
        await put(store, "leases/broker-0", b"1")
        revision = await put(store, "topics/a", b"1")
        assert await anext(events) == Put(Item("topics/a", b"1", revision))
    async with aclosing(store.watch("leases/")) as events:
        snapshot = await anext(events)
        assert isinstance(snapshot, Snapshot)
        assert [item.key for item in snapshot.items] == ["leases/broker-0"]


async def test_a_key_made_again_ends_as_put_for_the_watcher(store: Store) -> None:
    revision = await put(store, "k", b"1")
    async with aclosing(store.watch("k")) as events:
        await anext(events)
        await store.cas(Change("k", None, revision))
        last = await put(store, "k", b"2")
        await until(events, lambda e: e == Put(Item("k", b"2", last)))


async def test_a_slow_watcher_gets_the_newest_state_of_each_key_last(store: Store) -> None:
    async with aclosing(store.watch("k")) as events:
        await anext(events)
        revisions = dict.fromkeys((f"k{i}" for i in range(5)), "")
        for round_ in range(50):
            for key, revision in revisions.items():
                revisions[key] = await put(store, key, str(round_).encode(), revision or None)
        seen: dict[str, str] = {}
        async with asyncio.timeout(5):
            while seen != revisions:
                event = await anext(events)
                assert isinstance(event, Put)
                seen[event.item.key] = event.item.revision


async def test_several_watches_hear_the_same(store: Store) -> None:
    async with aclosing(store.watch("k")) as one, aclosing(store.watch("k")) as two:
        await anext(one)
        await anext(two)
        revision = await put(store, "k", b"1")
        assert await anext(one) == await anext(two) == Put(Item("k", b"1", revision))


async def test_closing_the_store_ends_its_watches(store: Store) -> None:
    async with aclosing(store.watch("k")) as events:
        await anext(events)
        await store.close()
        assert [event async for event in events] == []


async def test_values_are_bytes_untouched_and_empty_ones_too(store: Store) -> None:
    for number, value in enumerate((b"", bytes(range(256)), b"x" * 300_000)):
        await put(store, f"k{number}", value)
        item = await store.get(f"k{number}")
        assert item is not None
        assert item.value == value


async def test_many_changes_in_one_call_take_under_a_second(
    store: Store, request: pytest.FixtureRequest
) -> None:
    loop = asyncio.get_running_loop()
    count = CHANGES_A_SECOND[request.node.callspec.params["store"]]
    started = loop.time()
    outcomes = await store.cas_many(
        [Change(f"partitions/t/{n}", b"x" * 100, None) for n in range(count)]
    )
    assert all(isinstance(outcome, Applied) for outcome in outcomes)
    assert loop.time() - started < 1.0
