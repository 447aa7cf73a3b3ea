"""The world that all scenarios share, and a namespace and a cluster for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kubelet.emulator import Emulator, why_not
from suite.cluster import Cluster
from suite.kube import Kube, kubeconfig_of_a_real_cluster
from suite.world import World, the_world

SCENARIO_TIMEOUT_S = 900
FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scenarios take longer than other tests."""
    for item in items:
        if "scenarios" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SCENARIO_TIMEOUT_S))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remembers a failure, so that the world is described before it is tidied."""
    outcome: Any = yield
    if outcome.get_result().failed:
        item.stash[FAILED] = True


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if not kubeconfig_of_a_real_cluster() and (missing := why_not()):
        pytest.skip(f"no real cluster is given, and there can't be an emulated one: {missing}")
    with the_world(tmp_path_factory.mktemp("world")) as found:
        yield found


@pytest.fixture
def namespace(world: World, request: pytest.FixtureRequest) -> Iterator[str]:
    with world.namespace() as name:
        yield name
        if request.node.stash.get(FAILED, False):
            request.node.add_report_section("teardown", "the world", world.report(name))
            print(world.report(name))


@pytest.fixture
def cluster(world: World, namespace: str) -> Cluster:
    """A cluster that isn't created yet."""
    return world.cluster(namespace)


@pytest.fixture
def kube(world: World) -> Kube:
    return world.kube


@pytest.fixture
def emulator(world: World) -> Emulator:
    """For what can only be done to an emulated Kubernetes."""
    if world.emulator is None:
        pytest.skip("a real API server and its nodes can't be made to fail from here")
    return world.emulator
