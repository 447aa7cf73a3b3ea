"""Everything around the API server in one task group: caches, controllers, services, nodes.

watch event → caches → `changed` → each controller looks once → writes → watch event ...
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import aiohttp

from kubelet import budgets, claims, deployments, endpoints, scheduling, statefulsets
from kubelet.addresses import Network
from kubelet.caches import WATCHED, Caches
from kubelet.client import Api, Json, Refused
from kubelet.nodes import Nodes
from kubelet.pods import now
from kubelet.proxies import Proxies
from kubelet.settings import Settings

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Pause after which controllers look though nothing was told."""

GATHER_S = 0.02
"""Events that come within so short a time are looked at together."""


class ControlPlane:
    """The cluster but for its API server. `nodes` can be lost and brought back."""

    def __init__(self, settings: Settings, network: Network) -> None:
        self.settings = settings
        self._network = network
        self._hosts_folder = settings.folder / "hosts"
        self._hosts_folder.mkdir(parents=True, exist_ok=True)
        self.api = Api(settings.url)
        self.caches = Caches(self.api)
        self.nodes = Nodes(settings, self.caches, network, self._hosts_folder)
        self._proxies = Proxies()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Registers the nodes; from then on pods run."""
        self.caches.listen(self.nodes.follow)
        self._tasks = [asyncio.ensure_future(self.caches.follow(kind)) for kind in WATCHED]
        await self.nodes.start()
        await self.caches.create(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {
                    "name": "standard",
                    "annotations": {claims.DEFAULT_CLASS: "true"},
                },
                "provisioner": "local/folder",
                "reclaimPolicy": "Delete",
                "allowVolumeExpansion": True,
            }
        )
        self._tasks.append(asyncio.ensure_future(self._control()))

    async def stop(self) -> None:
        """Ends everything; processes are killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.nodes.stop()
        await self._proxies.keep({})
        await self.api.close()

    async def _control(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.caches.changed.wait()
            await asyncio.sleep(GATHER_S)
            self.caches.changed.clear()
            try:
                await self._look()
            except (Refused, aiohttp.ClientError, TimeoutError) as error:
                log.warning("a controller failed and tries again: %s", error)
            except Exception:
                log.exception("a controller failed")

    async def _look(self) -> None:
        # Names before pods: whoever starts shall find the others.
        await self._give_addresses()
        await endpoints.reconcile(self.caches)
        self._write_hosts()
        await self._keep_proxies()
        await statefulsets.reconcile(self.caches)
        await deployments.reconcile(self.caches)
        await claims.reconcile(self.caches, self.settings.folder)
        await self.nodes.watch_over()
        self._write_hosts()
        await scheduling.reconcile(self.caches, now())
        await budgets.reconcile(self.caches)

    # --- services ---

    async def _give_addresses(self) -> None:
        for service in self.caches.all("Service"):
            if not service["spec"].get("clusterIP"):
                with contextlib.suppress(Refused):
                    await self.caches.patch(service, {"spec": {"clusterIP": self._network.take()}})

    def _write_hosts(self) -> None:
        pods, services = self.caches.all("Pod"), self.caches.all("Service")
        namespaces = {each["metadata"]["namespace"] for each in (*pods, *services)}
        for namespace in namespaces:
            text = endpoints.hosts_text(namespace, services, pods)
            path = self._hosts_folder / namespace
            if not path.exists() or path.read_text() != text:
                # In place: pods have this very file mounted.
                path.write_text(text)

    async def _keep_proxies(self) -> None:
        wanted = {}
        for service in self.caches.all("Service"):
            address = service["spec"].get("clusterIP")
            if not address or address == "None":
                continue
            meta = service["metadata"]
            pods = self.caches.all("Pod", meta["namespace"])
            by_name = {pod["metadata"]["name"]: pod for pod in pods}
            found = endpoints.published(service, endpoints.endpoints_of(service, pods))
            for port in service["spec"].get("ports") or ():
                place = ((meta["namespace"], meta["name"]), address, port["port"])
                wanted[place] = [
                    (each.address, endpoints.port_number(port, by_name[each.pod])) for each in found
                ]
        await self._proxies.keep(wanted)


def describe(pod: Json) -> str:
    """A line about a pod, for a person who looks for what went wrong."""
    found = pod.get("status", {})
    states = [
        f"{each['name']} {next(iter(each['state']), '')} restarts={each['restartCount']}"
        for each in found.get("containerStatuses") or ()
    ]
    return f"{pod['metadata']['name']} {found.get('phase')} {' '.join(states)}"
