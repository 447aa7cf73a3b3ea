"""The operator as a process against an API server that enforces its rights, without brokers: what
it makes, what it survives, who leads. With brokers: e2e/scenarios."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from apiserver.faults import Fault
from apiserver.server import ApiServer
from testkit.operators import ROOT, World, make_cluster, until, world_in


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_in(tmp_path) as found:
        yield found


async def test_a_cluster_becomes_objects_and_then_nothing_is_written_any_more(
    world: World,
) -> None:
    async with world.operator(HEADRACE_OPERATOR_POLL_SECONDS="0.1") as operator:
        make_cluster(world)
        await until(lambda: world.found("apps", "statefulsets", "main") is not None)
        await until(lambda: world.condition("brokerclusters", "main")[1] == "PodsNotReady")
        for group, plural, name in [
            ("", "secrets", "main-secret"),
            ("", "services", "main-brokers"),
            ("", "configmaps", "main-config"),
            ("policy", "poddisruptionbudgets", "main"),
            ("networking.k8s.io", "networkpolicies", "main"),
            ("rbac.authorization.k8s.io", "rolebindings", "main-broker"),
        ]:
            assert world.found(group, plural, name) is not None, name
        await asyncio.sleep(0.5)
        since = len(world.api.seen)
        await asyncio.sleep(1.0)
        assert world.writes(since) == []
        assert len(world.api.seen) > since + 20, "it looked several times"
        assert "forbidden" not in operator.text.lower()


async def test_resources_without_their_cluster_say_so_and_are_never_held(world: World) -> None:
    async with world.operator():
        world.make("Topic", "orders", clusterRef={"name": "nowhere"})
        world.make("ConsumerGroup", "billing", clusterRef={"name": "nowhere"})
        not_found = ("False", "ClusterNotFound")
        await until(lambda: world.condition("topics", "orders") == not_found)
        await until(lambda: world.condition("consumergroups", "billing") == not_found)
        found = world.found("headrace.dev", "topics", "orders")
        assert found is not None
        assert "finalizers" not in found["metadata"]


async def test_a_paused_cluster_is_left_alone_and_says_so(world: World) -> None:
    async with world.operator():
        value = {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": {
                "name": "main",
                "namespace": "q",
                "annotations": {"headrace.dev/pause-reconciliation": "true"},
            },
            "spec": {"replicas": 1, "image": "headrace:dev", "storage": {"size": "1Gi"}},
        }
        world.api.make(value)
        await until(lambda: world.condition("brokerclusters", "main", "Paused")[0] == "True")
        assert world.found("apps", "statefulsets", "main") is None


async def test_an_object_that_the_server_refuses_is_told_and_others_go_on(world: World) -> None:
    world.api.faults.add(
        Fault(verb="create", resource="statefulsets", times=10_000, code=422, name="*")
    )
    async with world.operator():
        make_cluster(world, "bad")
        world.make("Topic", "orders", clusterRef={"name": "nowhere"})
        refused = ("False", "KubernetesRefused")
        await until(lambda: world.condition("brokerclusters", "bad") == refused)
        await until(lambda: world.condition("topics", "orders")[1] == "ClusterNotFound")
        world.api.faults.clear()
        await until(lambda: world.found("apps", "statefulsets", "bad") is not None)


async def test_everything_of_the_api_server_may_fail_for_a_while(world: World) -> None:
    async with world.operator() as operator:
        make_cluster(world)
        await until(lambda: world.found("apps", "statefulsets", "main") is not None)
        outage = world.api.faults.add(Fault(times=1_000_000, action="drop"))
        world.api.watches.drop()
        await until(lambda: outage.met > 10)
        make_cluster(world, "second")
        await until(lambda: "leading no more" in operator.text)
        world.api.faults.clear()
        await until(lambda: world.found("apps", "statefulsets", "second") is not None)
        assert operator.process.returncode is None
        assert "Traceback" not in operator.text


async def test_the_resources_may_be_installed_after_the_operator(tmp_path: Path) -> None:
    async with ApiServer() as api:
        world = World(api, tmp_path)
        for name in ("q", "headrace-system"):
            api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        async with world.operator() as operator:
            await until(lambda: "can't be listed" in operator.text)
            for path in (ROOT / "crds").glob("*.yaml"):
                api.make(yaml.safe_load(path.read_text()))
            make_cluster(world)
            await until(lambda: world.found("apps", "statefulsets", "main") is not None)


async def test_of_two_operators_one_leads_and_the_other_takes_over(world: World) -> None:
    async with world.operator("one") as one, world.operator("two") as two:
        await until(lambda: "leads" in one.text and "leads" in two.text)
        first, second = (one, two) if "waiting" in two.text else (two, one)
        assert await first.stop() == 0
        stopped = time.monotonic()
        make_cluster(world)
        await until(lambda: world.found("apps", "statefulsets", "main") is not None)
        assert time.monotonic() - stopped < 2.0, "the lease was given back, not waited for"
        assert second.process.returncode is None


async def test_a_leader_that_is_killed_is_replaced_after_its_lease(world: World) -> None:
    async with world.operator("one") as one:
        await until(lambda: "one leads" in one.text)
        async with world.operator("two") as two:
            await until(lambda: "waiting" in two.text)
            one.process.kill()
            make_cluster(world)
            await until(lambda: world.found("apps", "statefulsets", "main") is not None)


async def test_health_and_metrics(world: World) -> None:
    async with world.operator() as operator, aiohttp.ClientSession() as session:
        url = await operator.health_url()
        make_cluster(world)
        await until(lambda: world.condition("brokerclusters", "main")[0] == "False")
        async with session.get(url + "/livez") as live, session.get(url + "/readyz") as ready:
            assert (live.status, ready.status) == (200, 200)
            assert await ready.json() == {"state": "leader"}
        text = ""
        async with asyncio.timeout(20):
            while 'kind="BrokerCluster",state="not_ready"} 1.0' not in text:
                async with session.get(url + "/metrics") as response:
                    text = await response.text()
        for wanted in (
            'headrace_operator_reconciliations_total{kind="BrokerCluster",result="ok"}',
            'headrace_operator_reconciliation_duration_seconds_count{kind="BrokerCluster"}',
            "headrace_operator_leads 1.0",
            'headrace_operator_kubernetes_requests_total{code="201",kind="StatefulSet"',
        ):
            assert wanted in text


async def test_only_the_namespaces_that_are_named_are_looked_after(world: World) -> None:
    world.api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    async with world.operator(HEADRACE_OPERATOR_NAMESPACES="other"):
        make_cluster(world)
        value = world.found("headrace.dev", "brokerclusters", "main")
        assert value is not None
        other = {**value, "metadata": {"name": "main", "namespace": "other"}}
        world.api.make(other)
        sets = ("apps", "statefulsets")
        await until(lambda: bool(list(world.api.state.listed(sets, "other"))))
        assert not list(world.api.state.listed(sets, "q"))


async def test_a_setting_that_cannot_be_ends_with_its_name(world: World) -> None:
    async with world.operator(HEADRACE_OPERATOR_RESINK_SECONDS="9") as operator:
        async with asyncio.timeout(60):
            assert await operator.process.wait() == 2
        assert "HEADRACE_OPERATOR_RESINK_SECONDS: there is no such setting" in operator.text
