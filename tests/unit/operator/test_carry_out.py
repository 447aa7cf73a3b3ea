"""Actions on Kubernetes objects, carried out against an API server; those on brokers are carried
out in e2e/scenarios."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest

from apiserver.faults import Fault
from apiserver.server import ApiServer
from headrace.operator import spec
from headrace.operator.core import actions
from headrace.operator.core.observed import Cluster
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.events import Events
from headrace.operator.reconcile import carry_out
from headrace.operator.reconcile.carry_out import CarryOut
from headrace.operator.spec import BrokerClusterSpec, Owner

RAW = {
    "apiVersion": "headrace.dev/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "main", "namespace": "default", "uid": "u"},
}


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def events(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Events]:
    api.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    async with KubeClient() as kube:
        found = Events(kube, "test")
        telling = asyncio.create_task(found.run())
        yield found
        telling.cancel()


@pytest.fixture
def carrying(events: Events) -> CarryOut:
    wanted = {"replicas": 1, "image": "i", "storage": {"size": "1Gi"}}
    seen = Cluster(
        owner=Owner(namespace="default", name="main", uid="u"),
        spec=spec.read(BrokerClusterSpec, wanted),
    )
    return CarryOut(events._kube, events, seen, RAW, None)


def pod(name: str = "main-0") -> dict[str, Any]:
    containers = [{"name": "broker", "image": "i"}]
    meta = {"name": name, "namespace": "default"}
    spec = {"containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def config_map(**data: str) -> dict[str, Any]:
    meta = {"name": "main-config", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def stored(api: ApiServer, plural: str) -> list[dict[str, Any]]:
    return [value for _, value in api.state.listed(("", plural), "default")]


def test_somebody_carries_out_every_action() -> None:
    text = inspect.getsource(carry_out)
    assert [
        each for each in get_args(actions.Action) if f"actions.{each.__name__}" not in text
    ] == []


async def test_what_is_there_already_or_has_changed_is_left_for_the_next_look(
    api: ApiServer, carrying: CarryOut
) -> None:
    await carrying.all([actions.Create(config_map(a="1")), actions.Create(config_map(a="2"))])
    [before] = stored(api, "configmaps")
    await carrying.one(actions.Replace({**before, "data": {"a": "3"}}))
    await carrying.one(actions.Replace({**before, "data": {"a": "4"}}))
    assert [each["data"] for each in stored(api, "configmaps")] == [{"a": "3"}]


async def test_a_refusal_names_the_object_and_ends_the_rest(
    api: ApiServer, carrying: CarryOut
) -> None:
    api.faults.add(Fault(verb="create", resource="configmaps", code=422))
    with pytest.raises(KubernetesError, match="ConfigMap main-config: injected fault"):
        await carrying.all([actions.Create(config_map()), actions.Create(pod())])
    assert stored(api, "pods") == []


async def test_this_very_pod_is_deleted_and_people_are_told(
    api: ApiServer, carrying: CarryOut
) -> None:
    uid = api.make(pod())["metadata"]["uid"]
    await carrying.one(actions.DeletePod("main-0", "another", "ManualRollingUpdate", "restarting"))
    assert not stored(api, "pods")[0]["metadata"].get("deletionTimestamp")
    await carrying.one(actions.AnnotatePod("main-0", {"headrace.dev/rack": "east"}))
    assert stored(api, "pods")[0]["metadata"]["annotations"] == {"headrace.dev/rack": "east"}
    await carrying.one(actions.DeletePod("main-0", uid, "ManualRollingUpdate", "restarting"))
    left = stored(api, "pods")
    assert not left or left[0]["metadata"].get("deletionTimestamp")
    async with asyncio.timeout(5):
        while not stored(api, "events"):
            await asyncio.sleep(0.01)
    [event] = stored(api, "events")
    assert (event["reason"], event["type"]) == ("ManualRollingUpdate", "Normal")
    assert event["involvedObject"]["name"] == "main"


async def test_the_same_event_is_told_once(api: ApiServer, events: Events) -> None:
    for reason in ("Ready", "Ready", "PodsStuck"):
        events.tell(RAW, "Normal", reason, "ü" * 2_000)
    async with asyncio.timeout(5):
        while len(stored(api, "events")) < 2:
            await asyncio.sleep(0.01)
    assert sorted(each["reason"] for each in stored(api, "events")) == ["PodsStuck", "Ready"]
    assert all(len(each["message"].encode()) <= 1_024 for each in stored(api, "events"))


async def test_an_event_that_is_refused_stops_none_after_it(api: ApiServer, events: Events) -> None:
    api.faults.add(Fault(verb="create", resource="events", code=403))
    events.tell(RAW, "Normal", "First", "lost")
    events.tell(RAW, "Normal", "Second", "told")
    async with asyncio.timeout(5):
        while not stored(api, "events"):
            await asyncio.sleep(0.01)
    assert [each["reason"] for each in stored(api, "events")] == ["Second"]
