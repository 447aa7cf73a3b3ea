"""Real broker processes whose cluster state lies in an API server (over HTTP, RBAC enforced)."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver.faults import Fault
from apiserver.rbac import token_of
from apiserver.server import ApiServer
from testkit.brokers import BrokerProcess

RIGHTS = Path(__file__).parents[2] / "docs" / "store-rbac.yaml"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(enforce_rbac=True) as server:
        for document in yaml.safe_load_all(RIGHTS.read_text()):
            server.make(document)
        yield server


@pytest.fixture
async def broker(api: ApiServer, tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    token = token_of("default", "headrace-broker")
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig", token=token)
    process = BrokerProcess(
        tmp_path / "own", KUBECONFIG=str(kubeconfig), HEADRACE_STORE="kubernetes"
    )
    await asyncio.to_thread(process.start)
    yield process
    await asyncio.to_thread(process.stop)


def call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def use(broker: BrokerProcess) -> list[str]:
    """Makes a topic, writes to it and reads back."""
    call(f"{broker.url}/v1/topics", {"name": "orders", "partitions": 1})
    return write_and_read(broker)


def write_and_read(broker: BrokerProcess) -> list[str]:
    topic = f"{broker.url}/v1/topics/orders"
    call(topic + "/records", {"records": [{"value": "one"}]})
    found = call(topic + "/partitions/0/records?offset=0")
    return [record["value"] for record in found["records"]]


async def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it didn't come about in time"
        await asyncio.sleep(0.05)


async def test_a_broker_serves_a_topic_and_finds_it_again_after_a_kill(
    broker: BrokerProcess, api: ApiServer
) -> None:
    assert await asyncio.to_thread(use, broker) == ["one"]
    names = [ref.name for ref, _ in api.state.listed(("", "configmaps"), "default")]
    assert {"headrace-cluster", "headrace-b-0"} <= set(names)
    broker.kill()
    await asyncio.to_thread(broker.start)
    assert await asyncio.to_thread(write_and_read, broker) == ["one", "one"]


async def test_records_flow_while_the_api_server_is_away_and_all_is_well_after(
    broker: BrokerProcess, api: ApiServer
) -> None:
    await asyncio.to_thread(use, broker)
    outage = api.faults.add(Fault(action="drop", times=1_000_000))
    api.watches.drop()
    await eventually(lambda: outage.met > 5)
    assert await asyncio.to_thread(write_and_read, broker) == ["one", "one"]
    api.faults.clear()
    renewed = len(api.seen)
    await eventually(lambda: any(s.verb == "update" for s in list(api.seen)[renewed:]))
    topics = await asyncio.to_thread(call, f"{broker.url}/v1/topics")
    assert "orders" in json.dumps(topics)
    assert broker.log_text.count("Traceback") == 0


async def test_a_broker_without_rights_says_which_one_it_lacks(
    api: ApiServer, tmp_path: Path
) -> None:
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig", token=token_of("default", "nobody"))
    process = BrokerProcess(
        tmp_path / "own", KUBECONFIG=str(kubeconfig), HEADRACE_STORE="kubernetes"
    )
    process.launch()
    await eventually(lambda: 'cannot get resource "configmaps"' in process.log_text)
    await asyncio.to_thread(process.stop)
