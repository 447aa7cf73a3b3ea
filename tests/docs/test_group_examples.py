"""The examples of examples/groups run as they are: the notebook cell by cell, the service under its
own server."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.sdk import Admin
from testkit.brokers import BrokerProcess
from testkit.http import eventually

EXAMPLES = Path(__file__).parents[2] / "examples" / "groups"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "broker").start()
    yield process
    process.stop()


async def run_cells(notebook: Path) -> list[Any]:
    """The value of each code cell's last line, as a notebook shows it (None: a statement)."""
    shown, names = [], {"__name__": "__main__"}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body[-1]
            if isinstance(last, ast.Expr):
                tree.body[-1] = ast.parse("shown = 0").body[0]
                tree.body[-1].value = last.value  # type: ignore[attr-defined]
            code = compile(
                ast.fix_missing_locations(tree), notebook.name, "exec",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            )  # fmt: skip
            names["shown"] = None  # type: ignore[assignment]
            outcome = eval(code, names)
            if outcome is not None:
                await outcome
            shown.append(names["shown"])
    return shown


async def test_the_notebook_replays_what_it_has_read(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.url)
    *_, seen, replayed, (state, lag) = await run_cells(EXAMPLES / "replay.ipynb")
    assert [count for _, count in seen] == [24, 24, 24]
    assert replayed == 240
    assert (state, lag) == ("Empty", {0: 0, 1: 0, 2: 0})


@contextlib.asynccontextmanager
async def serving(url: str) -> Any:
    """The service under uvicorn; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--port", str(port), "fastapi_app:app"],
        cwd=EXAMPLES, env={**os.environ, "HEADRACE_BOOTSTRAP": url},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        while True:
            assert process.poll() is None, "the service has ended"
            assert time.monotonic() < deadline, "the service doesn't listen"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


async def test_the_service_handles_orders_and_says_when_it_can_not(broker: BrokerProcess) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    async with Admin(broker.url) as admin, aiohttp.ClientSession() as session:
        await admin.create_topic("orders", partitions=6)
        async with serving(broker.url) as url:
            for cents in (100, 20, 3):
                order = {"customer": "ada", "cents": cents}
                async with session.post(f"{url}/orders", json=order) as answer:
                    assert answer.status == 202, await answer.text()

            async def handled() -> bool:
                async with session.get(f"{url}/totals/ada") as answer:
                    return bool((await answer.json())["cents"] == 123)

            await eventually(handled)
            async with session.get(f"{url}/healthz") as answer:
                assert (await answer.json())["partitions"] == [0, 1, 2, 3, 4, 5]
            poison = {"customer": "eve", "cents": "not a number"}
            async with session.post(f"{url}/orders", json=poison) as answer:
                assert answer.status == 422
            await admin.delete_topic("orders")

            async def is_ill() -> bool:
                async with session.get(f"{url}/healthz") as answer:
                    return answer.status == 503 and "TopicNotFound" in await answer.text()

            await eventually(is_ill, timeout_s=20)
