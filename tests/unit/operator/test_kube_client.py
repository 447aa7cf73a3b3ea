"""Requests to the API server: what is asked again, what never is, and how refusals are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apiserver.faults import Fault
from apiserver.server import ApiServer
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.paths import CONFIG_MAP, KINDS, POD


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def kube(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KubeClient]:
    api.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    async with KubeClient() as client:
        yield client


def config_map(name: str = "one", **data: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "labels": {"app": "mill"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


async def test_what_is_written_is_read_and_what_is_not_there_is_none(kube: KubeClient) -> None:
    made = await kube.create(config_map(key="value"))
    assert await kube.get(CONFIG_MAP, "default", "one") == made
    assert await kube.get(CONFIG_MAP, "default", "other") is None
    changed = await kube.replace({**made, "data": {"key": "new"}})
    assert changed["data"] == {"key": "new"}


async def test_a_list_has_all_pages_and_says_what_they_are(kube: KubeClient) -> None:
    for number in range(7):
        await kube.create(config_map(f"cm-{number}"))
    found = await kube.listing(CONFIG_MAP, "default", selector="app=mill")
    assert [each["metadata"]["name"] for each in found] == [f"cm-{n}" for n in range(7)]
    assert {each["kind"] for each in found} == {"ConfigMap"}
    assert await kube.listing(CONFIG_MAP, "default", selector="app=other") == []


async def test_a_write_over_what_somebody_has_changed_is_a_conflict(kube: KubeClient) -> None:
    made = await kube.create(config_map())
    await kube.replace({**made, "data": {"a": "b"}})
    with pytest.raises(KubernetesError) as caught:
        await kube.replace({**made, "data": {"a": "c"}})
    assert caught.value.is_conflict


async def test_another_one_of_that_name_is_not_deleted(kube: KubeClient) -> None:
    made = await kube.create(config_map())
    await kube.delete(CONFIG_MAP, "default", "one", uid="somebody-elses")
    assert await kube.get(CONFIG_MAP, "default", "one") is not None
    await kube.delete(CONFIG_MAP, "default", "one", uid=made["metadata"]["uid"])
    await kube.delete(CONFIG_MAP, "default", "one", uid=made["metadata"]["uid"])
    assert await kube.get(CONFIG_MAP, "default", "one") is None


async def test_a_read_whose_connection_broke_is_asked_again_and_a_write_never(
    api: ApiServer, kube: KubeClient
) -> None:
    lost = api.faults.add(Fault(verb="get", resource="configmaps", action="drop"))
    assert await kube.get(CONFIG_MAP, "default", "one") is None
    assert lost.met == 2
    lost = api.faults.add(Fault(verb="create", resource="configmaps", action="drop", applied=True))
    with pytest.raises(KubernetesError) as caught:
        await kube.create(config_map())
    assert (caught.value.status, lost.met, caught.value.is_passing) == (0, 1, True)
    assert await kube.get(CONFIG_MAP, "default", "one") is not None


async def test_too_many_requests_are_waited_out_for_a_while(
    api: ApiServer, kube: KubeClient
) -> None:
    api.faults.add(Fault(verb="create", code=429, retry_after_s=0.05, times=3))
    await kube.create(config_map())
    api.faults.add(Fault(verb="create", code=429, retry_after_s=60))
    with pytest.raises(KubernetesError) as caught:
        await kube.create(config_map("two"))
    assert caught.value.status == 429


async def test_credentials_that_are_not_known_any_more_are_read_again(
    api: ApiServer, kube: KubeClient
) -> None:
    refused = api.faults.add(Fault(verb="create", code=401))
    await kube.create(config_map())
    assert refused.met == 2


async def test_credentials_that_cannot_be_read_for_a_moment_stay(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    (tmp_path / "kubeconfig").unlink()
    api.faults.add(Fault(verb="create", code=401))
    await kube.create(config_map())


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_a_refusal_is_told_in_the_servers_words(
    api: ApiServer, kube: KubeClient, code: int
) -> None:
    api.faults.add(Fault(verb="create", code=code))
    with pytest.raises(KubernetesError, match="injected fault") as caught:
        await kube.create(config_map())
    assert caught.value.is_refusal


def test_paths_are_those_of_the_api() -> None:
    assert POD.path("q", "main-0") == "/api/v1/namespaces/q/pods/main-0"
    assert POD.path() == "/api/v1/pods"
    topic = KINDS["Topic"].path("q", "orders", "status")
    assert topic == "/apis/headrace.dev/v1alpha1/namespaces/q/topics/orders/status"
    assert KINDS["Node"].path("", "n 1") == "/api/v1/nodes/n%201"
