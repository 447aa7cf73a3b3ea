"""Nodes: each runs the pods that were given to it, until it is lost.

A lost node is a machine without power: its processes are dead and it says nothing more. The
controllers notice its silence, mark it and its pods, and wait, as the real ones do (they evict
after five minutes and then wait for ever).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from kubelet.addresses import Network
from kubelet.caches import Caches
from kubelet.client import Json, Refused
from kubelet.pods import PodRun, now
from kubelet.settings import Settings
from kubelet.statefulsets import is_ending

UNREACHABLE = "node.kubernetes.io/unreachable"


@dataclass(slots=True)
class Node:
    """One machine and what runs on it."""

    name: str
    zone: str
    address: str
    log_port: int = 0
    is_lost: bool = False
    silent_since: float | None = None
    runs: dict[str, PodRun] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class Nodes:
    """All nodes of the cluster."""

    def __init__(
        self, settings: Settings, caches: Caches, network: Network, hosts_folder: Path
    ) -> None:
        self._settings = settings
        self._caches = caches
        self._network = network
        self._hosts_folder = hosts_folder
        self._runner: web.AppRunner | None = None
        self.all = [
            Node(f"node-{index}", f"zone-{index % 3}", network.take())
            for index in range(settings.nodes)
        ]

    def node(self, name: str) -> Node:
        """A node by its name."""
        return next(each for each in self.all if each.name == name)

    def hosts_file(self, namespace: str) -> Path:
        """The names that pods of a namespace see."""
        return self._hosts_folder / namespace

    # --- start and end ---

    async def start(self) -> None:
        """Registers all nodes and serves their pods' logs."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve_log)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        for node in self.all:
            site = web.TCPSite(self._runner, node.address, 0)
            await site.start()
            server = site._server
            assert isinstance(server, asyncio.Server)
            node.log_port = server.sockets[0].getsockname()[1]
            made = await self._caches.create(self._object(node))
            await self._caches.set_status(made, self._status(node, ready="True"))

    async def stop(self) -> None:
        """Kills everything."""
        for node in self.all:
            await self._halt(node)
        if self._runner is not None:
            await self._runner.cleanup()

    def _object(self, node: Node) -> Json:
        labels = {
            "kubernetes.io/hostname": node.name,
            "topology.kubernetes.io/zone": node.zone,
            "kubernetes.io/os": "linux",
        }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name, "labels": labels},
            "spec": {},
        }

    def _status(self, node: Node, *, ready: str) -> Json:
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": "KubeletReady" if ready == "True" else "NodeStatusUnknown",
            "lastTransitionTime": now(),
        }
        return {
            "capacity": self._settings.node_room,
            "allocatable": self._settings.node_room,
            "conditions": [condition],
            "addresses": [{"type": "InternalIP", "address": node.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": node.log_port}},
        }

    # --- pods ---

    def follow(self, kind: str, value: Json) -> None:
        """Listener of the caches: gives each pod's news to whom runs it."""
        if kind != "Pod":
            return
        meta = value["metadata"]
        present = self._caches.get("Pod", meta["namespace"], meta["name"])
        for node in self.all:
            if run := node.runs.get(meta["uid"]):
                if not node.is_lost:
                    run.see(present)
                return
        if present is value and value["spec"].get("nodeName"):
            self._take_up(value)

    def _take_up(self, pod: Json) -> None:
        name = pod["spec"]["nodeName"]
        node = next((each for each in self.all if each.name == name), None)
        if node is None or node.is_lost:
            return
        uid = pod["metadata"]["uid"]
        hosts = self.hosts_file(pod["metadata"]["namespace"])
        run = PodRun(pod, self._settings, self._caches, self._network, hosts, node.address)
        node.runs[uid] = run
        task = asyncio.ensure_future(run.live())
        node.tasks[uid] = task
        task.add_done_callback(lambda _: self._forget(node, uid))

    def _forget(self, node: Node, uid: str) -> None:
        task = node.tasks.pop(uid, None)
        node.runs.pop(uid, None)
        if task is not None and not task.cancelled() and (error := task.exception()):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the run of pod {uid} failed", "exception": error}
            )

    def run_of(self, namespace: str, name: str) -> PodRun | None:
        """What runs a pod of this name now."""
        for node in self.all:
            for run in node.runs.values():
                meta = run.pod["metadata"]
                if (meta["namespace"], meta["name"]) == (namespace, name):
                    return run
        return None

    # --- faults ---

    async def lose(self, name: str) -> None:
        """The machine is gone: no process, no word."""
        node = self.node(name)
        node.is_lost = True
        node.silent_since = asyncio.get_running_loop().time()
        await self._halt(node)

    async def bring_back(self, name: str) -> None:
        """The machine starts again, with the pods that it is still to run."""
        node = self.node(name)
        node.is_lost, node.silent_since = False, None
        found = self._caches.get("Node", "", name)
        if found is not None:
            found = await self._caches.patch(found, {"spec": {"taints": []}})
            await self._caches.set_status(found, self._status(node, ready="True"))
        for pod in self._caches.all("Pod"):
            if pod["spec"].get("nodeName") == name:
                self._take_up(pod)

    async def _halt(self, node: Node) -> None:
        tasks = list(node.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def watch_over(self) -> None:
        """The node life cycle controller: one look."""
        for node in self.all:
            silent = node.silent_since
            clock = asyncio.get_running_loop().time()
            if silent is None or clock - silent < self._settings.node_lost_s:
                continue
            found = self._caches.get("Node", "", node.name)
            if found is None:
                await self._collect_pods(node)
                continue
            taints = [{"key": UNREACHABLE, "effect": "NoSchedule"}]
            with contextlib.suppress(Refused):
                if not found["spec"].get("taints"):
                    found = await self._caches.patch(found, {"spec": {"taints": taints}})
                    await self._caches.set_status(found, self._status(node, ready="Unknown"))
                await self._mark_pods(node)

    async def _mark_pods(self, node: Node) -> None:
        for pod in self._caches.all("Pod"):
            conditions = pod.get("status", {}).get("conditions") or []
            is_here = pod["spec"].get("nodeName") == node.name
            if not is_here or not any(
                c["type"] == "Ready" and c["status"] == "True" for c in conditions
            ):
                continue
            lost = {"status": "False", "reason": "NodeLost", "lastTransitionTime": now()}
            changed = [{**c, **(lost if c["type"] == "Ready" else {})} for c in conditions]
            await self._caches.set_status(pod, {"conditions": changed})

    async def _collect_pods(self, node: Node) -> None:
        """Pods of a node that was removed go, as by the pod garbage collector."""
        for pod in self._caches.all("Pod"):
            if pod["spec"].get("nodeName") == node.name:
                await self._caches.delete(pod, grace_s=0)

    async def sweep(self) -> None:
        """Removes pods that are to go and that no node ever took up."""
        for pod in self._caches.all("Pod"):
            if is_ending(pod) and not pod["spec"].get("nodeName"):
                await self._caches.delete(pod, grace_s=0)

    # --- logs ---

    async def _serve_log(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        pod = self._caches.get("Pod", namespace, name)
        if pod is None:
            raise web.HTTPNotFound
        folder = self._settings.folder / "pods" / pod["metadata"]["uid"]
        path = folder / f"{request.match_info['container']}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        if tail := request.query.get("tailLines"):
            text = "\n".join(text.splitlines()[-int(tail) :]) + "\n"
        return web.Response(text=text)
