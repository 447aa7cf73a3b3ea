"""The Kubernetes store when things go wrong: each trap of replication.md H8 to H13."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import certifi
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from apiserver.faults import Fault
from apiserver.rbac import token_of
from apiserver.server import ApiServer
from apiserver.state import Ref
from headrace.broker.settings import load
from headrace.broker.store import kubernetes_api
from headrace.broker.store import kubernetes_objects as objects
from headrace.broker.store.base import Applied, Change, Gone, Put, Refused, Snapshot, Unknown
from headrace.broker.store.kubernetes import PAGE, KubernetesStore
from headrace.broker.store.kubernetes_watch import Watch
from headrace.broker.store.watcher import Mailbox
from headrace.protocol.errors import InvalidConfig, InvalidRequest, StoreUnavailable
from testkit.kubernetes import QUICK, open_store

RIGHTS = Path(__file__).parents[4] / "docs" / "store-rbac.yaml"
KEY = "topics/orders"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_interval_s=0.1) as server:
        yield server


@pytest.fixture
async def store(api: ApiServer, tmp_path: Path) -> AsyncIterator[KubernetesStore]:
    opened = await open_store(api, tmp_path)
    yield opened
    await opened.close()


async def put(store: KubernetesStore, key: str, value: bytes, expected: str | None = None) -> str:
    outcome = await store.cas(Change(key, value, expected))
    assert isinstance(outcome, Applied)
    return outcome.revision


def place_of(key: str) -> Ref:
    return Ref("", "configmaps", "default", objects.place("mill", key).name)


def writes(api: ApiServer) -> int:
    return sum(seen.verb in ("create", "update", "delete") for seen in api.seen)


# --- outcomes ---


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("action", ["drop", "hang", "answer"])
async def test_a_write_without_a_good_answer_is_unknown_and_was_sent_once(
    api: ApiServer, store: KubernetesStore, action: str, applied: bool
) -> None:
    first = await put(store, KEY, b"1")
    api.faults.add(Fault(verb="update", action=action, code=500, applied=applied))  # type: ignore[arg-type]
    before = writes(api)
    assert isinstance(await store.cas(Change(KEY, b"2", first)), Unknown)
    assert writes(api) == before + 1
    item = await store.get(KEY)
    assert item is not None
    assert item.value == (b"2" if applied else b"1")


@pytest.mark.parametrize("verb", ["create", "delete"])
async def test_creations_and_removals_are_unknown_too(
    api: ApiServer, store: KubernetesStore, verb: str
) -> None:
    revision = None if verb == "create" else await put(store, KEY, b"1")
    value = b"1" if verb == "create" else None
    api.faults.add(Fault(verb=verb, action="drop", applied=True))
    before = writes(api)
    assert isinstance(await store.cas(Change(KEY, value, revision)), Unknown)
    assert writes(api) == before + 1
    assert (await store.get(KEY) is None) == (verb == "delete")


async def test_a_conflict_with_ones_own_write_is_not_a_refusal(
    api: ApiServer, store: KubernetesStore
) -> None:
    first = await put(store, KEY, b"1")
    api.faults.add(Fault(verb="update", code=409, applied=True))
    outcome = await store.cas(Change(KEY, b"2", first))
    item = await store.get(KEY)
    assert item is not None
    assert outcome == Applied(item.revision)


async def test_a_conflict_that_cannot_be_read_back_is_unknown(
    api: ApiServer, store: KubernetesStore
) -> None:
    first = await put(store, KEY, b"1")
    await put(store, KEY, b"2", first)
    api.faults.add(Fault(verb="get", code=503, times=9))
    assert isinstance(await store.cas(Change(KEY, b"3", first)), Unknown)


async def test_throttling_is_waited_out_for_a_while(api: ApiServer, store: KubernetesStore) -> None:
    api.faults.add(Fault(verb="create", code=429, retry_after_s=0.1, times=2))
    await put(store, KEY, b"1")
    endless = api.faults.add(Fault(verb="create", code=429, retry_after_s=0.3, times=99))
    with pytest.raises(StoreUnavailable, match="429"):
        await store.cas(Change("topics/other", b"1", None))
    assert 2 <= endless.met <= 5
    assert await store.get("topics/other") is None


async def test_a_server_that_cannot_be_reached_is_no_doubt(
    api: ApiServer, store: KubernetesStore
) -> None:
    await api.stop()
    with pytest.raises(StoreUnavailable, match="reached"):
        await store.cas(Change(KEY, b"1", None))
    with pytest.raises(StoreUnavailable):
        await store.get(KEY)
    with pytest.raises(StoreUnavailable):
        await store.cas_many([Change(f"topics/{n}", b"1", None) for n in range(50)])


async def test_of_many_changes_those_done_are_told_when_others_fail(
    api: ApiServer, store: KubernetesStore
) -> None:
    api.faults.add(Fault(verb="create", code=403, times=1))
    outcomes = await store.cas_many([Change(f"topics/{n}", b"1", None) for n in range(5)])
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Applied"] * 4 + ["Unknown"]


async def test_a_batch_is_given_up_when_the_store_is_away(
    api: ApiServer, store: KubernetesStore
) -> None:
    fault = api.faults.add(Fault(verb="create", code=500, times=10_000))
    outcomes = await store.cas_many([Change(f"topics/{n}", b"1", None) for n in range(500)])
    assert all(isinstance(outcome, Unknown) for outcome in outcomes)
    assert fault.met < 60


async def test_a_revision_without_both_halves_is_refused_unsent(
    api: ApiServer, store: KubernetesStore
) -> None:
    revision = await put(store, KEY, b"1")
    uid, _, version = revision.partition("/")
    before = writes(api)
    for wrong in ("", "/", f"{uid}/", f"/{version}", version):
        assert await store.cas(Change(KEY, b"2", wrong)) == Refused()
        assert await store.cas(Change(KEY, None, wrong)) == Refused()
    assert writes(api) == before


async def test_a_revision_that_a_restored_etcd_gives_out_again_is_another(
    api: ApiServer, store: KubernetesStore
) -> None:
    saved = api.save()
    old = await put(store, KEY, b"1")
    api.restore(saved)
    new = await put(store, KEY, b"2")
    assert old.partition("/")[2] == new.partition("/")[2]
    assert await store.cas(Change(KEY, b"3", old)) == Refused()
    assert await store.cas(Change(KEY, None, old)) == Refused()


# --- objects ---


async def test_an_object_of_somebody_else_under_the_name_is_not_taken_for_the_key(
    api: ApiServer, store: KubernetesStore
) -> None:
    name = place_of(KEY).name
    api.make({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"key": "topics/another", "value": "x"},
    })  # fmt: skip
    with pytest.raises(StoreUnavailable, match=name):
        await store.get(KEY)
    assert await store.cas(Change(KEY, b"1", None)) == Refused()


async def test_clusters_of_one_namespace_do_not_see_each_other(
    api: ApiServer, store: KubernetesStore, tmp_path: Path
) -> None:
    await put(store, KEY, b"1")
    other = await open_store(api, tmp_path, cluster="other")
    assert await other.list("") == []
    assert await other.get(KEY) is None
    await put(other, KEY, b"2")
    assert [item.value for item in await store.list("")] == [b"1"]
    await other.close()


async def test_a_copied_object_is_left_alone(api: ApiServer, store: KubernetesStore) -> None:
    await put(store, KEY, b"1")
    there = api.state.get(place_of(KEY))
    assert there is not None
    api.make({
        "apiVersion": "v1", "kind": "ConfigMap", "data": there["data"],
        "metadata": {"name": "backup", "labels": there["metadata"]["labels"]},
    })  # fmt: skip
    assert len(await store.list("")) == 1


async def test_a_value_that_no_object_can_hold_is_refused_before_it_is_sent(
    api: ApiServer, store: KubernetesStore
) -> None:
    for key, size in ((KEY, 900_001), ("leases/broker-0", 100_001)):
        with pytest.raises(InvalidRequest, match=f"{size} bytes"):
            await store.cas(Change(key, b"x" * size, None))
    assert writes(api) == 0
    await put(store, KEY, b'"' * 900_000)
    await put(store, "topics/binary", b"\xff" * 900_000)


_NAMES = st.text("abcXYZ._-09", min_size=1, max_size=249)
_KEYS = st.one_of(
    st.just("cluster"),
    st.integers(0, 10**6).map(lambda n: f"brokers/{n}"),
    st.integers(0, 10**6).map(lambda n: f"leases/broker-{n}"),
    _NAMES.map(lambda name: f"topics/{name}"),
    st.tuples(_NAMES, st.integers(0, 40)).map(lambda pair: f"partitions/{pair[0]}/{pair[1]}"),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
)


@given(st.sets(_KEYS, min_size=2, max_size=20))
def test_any_keys_have_valid_names_of_their_own(keys: set[str]) -> None:
    places = [objects.place("mill", key) for key in keys]
    assert len({(place.resource, place.name) for place in places}) == len(keys)
    for place in places:
        assert re.match(r"^[a-z0-9]([-a-z0-9]{0,251}[a-z0-9])?$", place.name)
        assert all(re.match(r"^[A-Za-z0-9._-]{1,63}$", value) for value in place.labels.values())


@given(_KEYS, st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_any_value_comes_back_as_it_was(key: str, value: bytes) -> None:
    place = objects.place("mill", key)
    sent = objects.manifest(place, key, value, writer="w/1", now="2026-01-01T00:00:00.000000Z")
    sent["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    item = objects.read("mill", sent)
    assert item is not None
    assert (item.key, item.value, item.revision) == (key, value, "u/7")


# --- lists and watches ---


async def test_a_list_over_many_pages_begins_again_when_they_expire(
    api: ApiServer, store: KubernetesStore
) -> None:
    for number in range(PAGE + 20):
        key = f"topics/t{number}"
        sent = objects.manifest(objects.place("mill", key), key, b"1", writer="w/1", now="")
        api.make(sent)
    api.faults.add(Fault(verb="list", code=410, skip=1))
    assert len(await store.list("topics/")) == PAGE + 20
    api.faults.clear()
    api.faults.add(Fault(verb="list", code=410, times=99))
    with pytest.raises(StoreUnavailable):
        await store.list("topics/")


async def test_a_read_that_fails_never_means_absent(api: ApiServer, store: KubernetesStore) -> None:
    await put(store, KEY, b"1")
    api.faults.add(Fault(verb="get", action="drop"))
    assert await store.get(KEY) is not None
    for code in (401, 403, 404, 410, 500, 503):
        api.faults.clear()
        api.faults.add(Fault(code=code, times=99))
        with pytest.raises(StoreUnavailable):
            await store.get(KEY)
        with pytest.raises(StoreUnavailable):
            await store.list("")


async def test_a_watch_over_a_failing_server_says_nothing_until_it_knows(
    api: ApiServer, store: KubernetesStore
) -> None:
    await put(store, KEY, b"1")
    fault = api.faults.add(Fault(verb="list", code=500, times=4))
    async with asyncio.timeout(5), aclosing(store.watch("")) as events:
        snapshot = await anext(events)
        assert isinstance(snapshot, Snapshot)
        assert [item.key for item in snapshot.items] == [KEY]
    assert fault.met >= 4


@pytest.mark.parametrize("trouble", ["drop", "silence"])
async def test_a_broken_or_silent_watch_goes_on_where_it_was(
    api: ApiServer, tmp_path: Path, trouble: str
) -> None:
    store = await open_store(api, tmp_path, timing=replace(QUICK, relist_s=60))
    async with asyncio.timeout(5), aclosing(store.watch("")) as events:
        assert await anext(events) == Snapshot(())
        revision = await put(store, KEY, b"1")
        assert isinstance(await anext(events), Put)
        getattr(api.watches, trouble)()
        await store.cas(Change(KEY, None, revision))
        assert await anext(events) == Gone(KEY)
    await store.close()


async def test_events_that_are_lost_come_back_as_a_snapshot(
    api: ApiServer, store: KubernetesStore
) -> None:
    async with asyncio.timeout(5), aclosing(store.watch("")) as events:
        assert await anext(events) == Snapshot(())
        await put(store, KEY, b"1")
        assert isinstance(await anext(events), Put)
        while not api.watches.open:
            await asyncio.sleep(0.01)
        api.watches.drop()
        api.faults.add(Fault(verb="watch", code=503, times=2))
        await put(store, "topics/other", b"1")
        api.state.compact()
        event = await anext(events)
        assert isinstance(event, Snapshot)
        assert len(event.items) == 2


async def test_an_etcd_restore_is_told_as_a_snapshot(api: ApiServer, tmp_path: Path) -> None:
    store = await open_store(api, tmp_path, timing=replace(QUICK, relist_s=60))
    async with asyncio.timeout(10), aclosing(store.watch("")) as events:
        assert await anext(events) == Snapshot(())
        first = await put(store, KEY, b"1")
        saved = api.save()
        for value in range(5):
            first = await put(store, KEY, str(value).encode(), first)
        while not isinstance(event := await anext(events), Put) or event.item.value != b"4":
            pass
        api.restore(saved)
        event = await anext(events)
        assert isinstance(event, Snapshot)
        assert [item.value for item in event.items] == [b"1"]
    await store.close()


async def test_a_full_list_repairs_what_a_watch_never_told(api: ApiServer, tmp_path: Path) -> None:
    store = await open_store(api, tmp_path, timing=replace(QUICK, silence_s=60))
    async with asyncio.timeout(10), aclosing(store.watch("")) as events:
        assert await anext(events) == Snapshot(())
        while not api.watches.open:
            await asyncio.sleep(0.01)
        for stream in api.watches.open:
            stream.skip()
        revision = await put(store, KEY, b"1")
        event = await anext(events)
        assert isinstance(event, Snapshot)
        assert event.items[0].revision == revision
    await store.close()


async def test_a_quiet_watch_is_not_listed_again_and_again(
    api: ApiServer, store: KubernetesStore
) -> None:
    async with aclosing(store.watch("")) as events:
        await anext(events)
        lists = sum(seen.verb == "list" for seen in api.seen)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 1.2)
    assert sum(seen.verb == "list" for seen in api.seen) == lists == 1


# --- rights and configuration ---


async def test_the_rights_in_the_documentation_are_enough_and_all_are_needed(
    api: ApiServer, tmp_path: Path
) -> None:
    documents = list(yaml.safe_load_all(RIGHTS.read_text()))
    for document in documents:
        api.make(document)
    api.enforce_rbac = True
    store = await open_store(api, tmp_path, token=token_of("default", "headrace-broker"))
    for key in (KEY, "leases/broker-0"):
        async with asyncio.timeout(5), aclosing(store.watch(key)) as events:
            await anext(events)
            revision = await put(store, key, b"2", await put(store, key, b"1"))
            assert await store.get(key) is not None
            assert await store.cas(Change(key, None, revision)) == Applied("")
            while not isinstance(await anext(events), Gone):
                pass
    assert await store.list("") == []
    await store.close()
    wanted = {(s.resource, s.verb) for s in api.seen}
    rules = next(d for d in documents if d["kind"] == "Role")["rules"]
    assert wanted == {(r, v) for rule in rules for r in rule["resources"] for v in rule["verbs"]}


async def test_a_missing_right_is_named(api: ApiServer, tmp_path: Path) -> None:
    api.enforce_rbac = True
    store = await open_store(api, tmp_path, token=token_of("default", "nobody"))
    with pytest.raises(StoreUnavailable, match='cannot get resource "configmaps"'):
        await store.get(KEY)
    await store.close()


async def test_a_missing_namespace_is_named(api: ApiServer, tmp_path: Path) -> None:
    file = api.write_kubeconfig(tmp_path / "config", namespace="nowhere")
    store = await KubernetesStore.open(cluster="mill", kubeconfig=str(file), timing=QUICK)
    with pytest.raises(StoreUnavailable, match="no namespace nowhere"):
        await store.cas(Change(KEY, b"1", None))
    await store.close()


async def test_a_new_token_in_the_kubeconfig_is_found_after_a_401(
    api: ApiServer, tmp_path: Path
) -> None:
    store = await open_store(api, tmp_path, token=token_of("default", "old"))
    await put(store, KEY, b"1")
    api.write_kubeconfig(tmp_path / "kubeconfig", token=token_of("default", "new"))
    api.faults.add(Fault(user="*:old", code=401, times=99))
    assert await store.get(KEY) is not None
    await store.close()


async def test_a_pod_uses_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("mills\n")
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    monkeypatch.setattr(kubernetes_api, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    store = await KubernetesStore.open(cluster="mill")
    assert store.namespace == "mills"
    assert await store._api._credentials() == {"authorization": "bearer first"}
    (tmp_path / "token").write_text("rotated")
    await store._api._load()
    assert await store._api._credentials() == {"authorization": "bearer rotated"}
    await store.close()


async def test_configuration_that_cannot_work_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(InvalidConfig, match="KUBECONFIG"):
        await KubernetesStore.open(cluster="mill", kubeconfig=str(tmp_path / "absent"))
    with pytest.raises(InvalidConfig, match="lower-case"):
        await KubernetesStore.open(cluster="The Mill")
    monkeypatch.setitem(sys.modules, "kubernetes.aio.config", None)
    with pytest.raises(InvalidConfig, match="pip install"):
        await KubernetesStore.open(cluster="mill")


def test_the_setting_names_namespace_and_cluster() -> None:
    environment = {"HEADRACE_STORE": "kubernetes", "HEADRACE_CLUSTER_NAME": "mill"}
    assert load(environment=environment).store_url == "kubernetes:/mill"
    assert load(flags={"store": "kubernetes:prod/mill"}).store_url == "kubernetes:prod/mill"
    for wrong in ("kubernetes:prod", "kubernetes:", "etcd:x"):
        with pytest.raises(InvalidConfig, match="kubernetes:NAMESPACE/CLUSTER"):
            load(flags={"store": wrong})


async def test_a_watch_outlives_what_nobody_foresaw(store: KubernetesStore) -> None:
    faults: list[Exception] = [KeyError("metadata")]

    async def list_once_broken(scope: objects.Scope) -> tuple[list[objects.Json], str]:
        if faults:
            raise faults.pop()
        return await store.list_scope(scope)

    await put(store, KEY, b"1")
    mailbox, scope = Mailbox(""), objects.scopes("mill", "", with_leases=False)[0]
    watch = Watch(store._api, store._path(scope.resource), "mill", scope, list_once_broken, mailbox)
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(5):
        event = await anext(mailbox.events())
    assert isinstance(event, Snapshot)
    assert [item.key for item in event.items] == [KEY]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
