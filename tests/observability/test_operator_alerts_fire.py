"""The operator's alerts fire when what they watch for is done to real operators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apiserver.faults import Fault
from observability.alerts import OPERATOR
from testkit.alerts import Scrape, fires, scrape
from testkit.operators import Operator, World, make_cluster, until, world_in

BY_NAME = {alert.name: alert for alert in OPERATOR}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_in(tmp_path) as found:
        yield found


async def look(operator: Operator, at_s: float | None = None) -> Scrape:
    url = await operator.health_url()
    return await asyncio.to_thread(scrape, {"operator-0": url}, at_s=at_s)


def holds(name: str, *scrapes: Scrape) -> bool:
    return bool(fires(BY_NAME[name], scrapes))


async def until_it_fires(name: str, operator: Operator, *before: Scrape, late_s: float = 0) -> None:
    """Scrapes until the expression holds, by a clock that is so late."""
    scrapes, deadline = list(before), time.monotonic() + 30
    while True:
        scrapes.append(await look(operator, time.time() + late_s))
        if holds(name, *scrapes):
            return
        assert time.monotonic() < deadline, f"{name} doesn't fire"
        await asyncio.sleep(0.1)


async def test_an_operator_without_troubles_is_quiet_and_a_bad_cluster_is_not_ready(
    world: World,
) -> None:
    async with world.operator() as operator:
        await until(lambda: "leads" in operator.text)
        found = await look(operator)
        assert [name for name in BY_NAME if holds(name, found)] == []
        make_cluster(world)  # whose pods nobody starts
        await until_it_fires("HeadraceResourceNotReady", operator)


async def test_an_operator_that_can_not_have_the_lease_does_not_work(world: World) -> None:
    world.api.faults.add(Fault(resource="leases", times=1_000_000, code=503))
    async with world.operator() as operator:
        await until_it_fires("HeadraceOperatorDown", operator)


async def test_passes_that_fail_again_and_again(world: World) -> None:
    async with world.operator() as operator:
        make_cluster(world)
        await until(lambda: world.found("apps", "statefulsets", "main") is not None)
        before = await look(operator)
        world.api.faults.add(Fault(resource="statefulsets", times=1_000_000, code=500))
        for number in range(8):
            make_cluster(world, f"other-{number}")
        # The first failure makes the series; each cluster's is tried again.
        await until_it_fires("HeadraceOperatorFails", operator, before)


async def test_a_pass_that_hangs(world: World) -> None:
    async with world.operator() as operator:
        await until(lambda: "leads" in operator.text)
        world.api.faults.add(Fault(resource="statefulsets", times=1_000_000, action="hang"))
        make_cluster(world)
        await until_it_fires("HeadraceReconcileHangs", operator, late_s=700)
        assert not holds("HeadraceReconcileHangs", await look(operator))
