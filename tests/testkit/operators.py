"""The operator as a process against an emulated API server, for tests."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from apiserver.rbac import token_of
from apiserver.server import ApiServer

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class Operator:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text()

    async def health_url(self) -> str:
        await until(lambda: "health on port" in self.text)
        [port] = re.findall(r"health on port (\d+)", self.text)[-1:]
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(20):
            return await self.process.wait()


class World:
    """An API server with the resources and rights that are in the repository."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api = api
        self.folder = folder

    def make(self, kind: str, name: str, **spec: Any) -> Json:
        value = {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "q"},
            "spec": spec,
        }
        return self.api.make(value)

    def found(self, group: str, plural: str, name: str) -> Json | None:
        everything = self.api.state.listed((group, plural), "q")
        return next((value for ref, value in everything if ref.name == name), None)

    def condition(self, plural: str, name: str, kind: str = "Ready") -> tuple[str, str]:
        value = self.found("headrace.dev", plural, name) or {}
        for each in (value.get("status") or {}).get("conditions") or ():
            if each["type"] == kind:
                return each["status"], each["reason"]
        return "", ""

    def writes(self, since: int) -> list[str]:
        return [
            f"{each.verb} {each.resource} {each.name}"
            for each in list(self.api.seen)[since:]
            if each.verb in WRITES and each.resource != "leases"
        ]

    @asynccontextmanager
    async def operator(self, name: str = "one", **settings: str) -> AsyncIterator[Operator]:
        token = token_of("headrace-system", "headrace-operator")
        kubeconfig = self.api.write_kubeconfig(self.folder / name, token=token)
        log = self.folder / f"{name}.log"
        environment = {
            "HEADRACE_OPERATOR_HEALTH_HOST": "127.0.0.1",
            "HEADRACE_OPERATOR_HEALTH_PORT": "0",
            "HEADRACE_OPERATOR_LEASE_SECONDS": "2",
            "POD_NAME": name,
            "POD_NAMESPACE": "headrace-system",
            **settings,
        }
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace.cli.lifeline", str(os.getpid()),
                "-m", "headrace.operator",
                env={**os.environ, "KUBECONFIG": str(kubeconfig), **environment},
                stdout=output, stderr=output,
            )  # fmt: skip
        started = Operator(process, log)
        try:
            yield started
        finally:
            await started.stop()


async def until(holds: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it didn't come about in time"
        await asyncio.sleep(0.03)


@asynccontextmanager
async def world_in(folder: Path) -> AsyncIterator[World]:
    """An API server that enforces rights, with the custom resources, and a namespace `q`."""
    async with ApiServer(enforce_rbac=True) as api:
        for path in [*(ROOT / "crds").glob("*.yaml"), ROOT / "operator/deploy/operator.yaml"]:
            for document in yaml.safe_load_all(path.read_text()):
                api.make(document)
        api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "q"}})
        yield World(api, folder)


def make_cluster(world: World, name: str = "main", **spec: Any) -> None:
    """A BrokerCluster that nobody has anything against."""
    wanted = {"replicas": 3, "image": "headrace:dev", "storage": {"size": "1Gi"}}
    world.make("BrokerCluster", name, **{**wanted, **spec})
