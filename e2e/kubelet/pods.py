"""A node's work on one pod: volumes, process, probes, restarts, status, the end.

    scheduled → folders made → image → (start → probes → exit → back-off)* → asked to go
              → preStop → SIGTERM → grace → SIGKILL → deleted

`PodRun.live` is the pod's whole life on the node, one task.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fnmatch
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp

from kubelet import probes, volumes
from kubelet.addresses import Network
from kubelet.caches import Caches
from kubelet.claims import volume_folder
from kubelet.client import KINDS, Json, Refused
from kubelet.environment import Missing, Sources, data_of, variables_of, words_of
from kubelet.pod_status import ContainerState, status
from kubelet.settings import Settings
from kubelet.statefulsets import is_ending

log = logging.getLogger(__name__)

LOOK_S = 0.3
MINIMUM_GRACE_S = 0.5
SANDBOX = Path(__file__).with_name("sandbox.py")


def now() -> str:
    """The time as the API writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PodRun:
    """One pod on one node."""

    def __init__(
        self, pod: Json, settings: Settings, caches: Caches, network: Network, hosts: Path,
        host_address: str,
    ) -> None:  # fmt: skip
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.folder = settings.folder / "pods" / self.uid
        self._settings = settings
        self._caches = caches
        self._network = network
        self._hosts = hosts
        self._host_address = host_address
        self._address = ""
        self._is_gone = False
        self._containers = [
            ContainerState(each["name"], each.get("image", ""))
            for each in pod["spec"]["containers"]
        ]
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._changed = asyncio.Event()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0)
        )

    # --- what the node tells ---

    def see(self, pod: Json | None) -> None:
        """The pod as it is now; None: it was removed."""
        if pod is None or pod["metadata"]["uid"] != self.uid:
            self._is_gone = True
        else:
            self.pod = pod
        self._changed.set()

    def log_path(self, container: str) -> Path:
        """Where a container's output is."""
        return Path(self.folder, f"{container}.log")

    @property
    def process_ids(self) -> list[int]:
        """Those that run now."""
        return [each.pid for each in self._processes.values() if each.returncode is None]

    def forgive(self) -> None:
        """Its containers' next crash is their first, as after ten minutes without one."""
        for container in self._containers:
            container.crashes = 0

    def signal(self, number: int) -> None:
        """A signal to every process, as by a person on the node."""
        for process in self._processes.values():
            _signal(process, number)

    # --- its life ---

    async def live(self) -> None:
        """Until the pod is gone. Cancelled: the node died; nothing is written any more."""
        life = asyncio.ensure_future(self._run())
        try:
            while not (self._is_gone or is_ending(self.pod)):
                self._changed.clear()
                # Not wait_for, which swallows a cancellation now and then (before Python 3.12).
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._changed.wait()
                await self._refresh()
            # Nothing is restarted from here on.
            life.cancel()
            await asyncio.wait({life})
            if not self._is_gone:
                await self._terminate()
        finally:
            life.cancel()
            self._kill()
            await asyncio.wait({life})
            _log_failure(life)
            for process in self._processes.values():
                await process.wait()
            await self._session.close()
        await self._bury()

    async def _run(self) -> None:
        if not await self._prepare():
            return
        self._address = self._network.take()
        async with asyncio.TaskGroup() as running:
            for index in range(len(self._containers)):
                running.create_task(self._keep_running(index))

    async def _prepare(self) -> bool:
        """Waits for what the pod refers to."""
        while True:
            try:
                await self._project(await self._sources())
                break
            except Missing as error:
                self._set_waiting("ContainerCreating", str(error))
            await self._report()
            await asyncio.sleep(LOOK_S)
        for container in self._containers:
            if not any(fnmatch.fnmatch(container.image, each) for each in self._settings.images):
                self._set_waiting("ImagePullBackOff", f'can\'t pull image "{container.image}"')
                await self._report()
                return False
        return True

    def _set_waiting(self, reason: str, message: str) -> None:
        for container in self._containers:
            container.state = {"waiting": {"reason": reason, "message": message}}

    async def _keep_running(self, index: int) -> None:
        state = self._containers[index]
        policy = self.pod["spec"].get("restartPolicy", "Always")
        while True:
            code = await self._run_once(index)
            ended: Json = {
                "exitCode": code if code >= 0 else 128 - code,
                "reason": "Completed" if code == 0 else "Error",
                "startedAt": state.state.get("running", {}).get("startedAt", now()),
                "finishedAt": now(),
            }
            state.is_ready = state.is_started = False
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                state.state = {"terminated": ended}
                await self._report()
                return
            state.last = {"terminated": ended}
            state.restarts += 1
            state.crashes += 1
            await self._back_off(state)

    async def _back_off(self, state: ContainerState) -> None:
        low, high = self._settings.backoff_s
        pause_s = 0.0 if state.crashes < 2 else min(high, low * 2.0 ** (state.crashes - 2))
        reason = "CrashLoopBackOff" if pause_s else "ContainerCreating"
        message = f"back-off {pause_s:g} s restarting failed container={state.name}"
        state.state = {"waiting": {"reason": reason, "message": message}}
        await self._report()
        await asyncio.sleep(pause_s)

    async def _run_once(self, index: int) -> int:
        container, state = self.pod["spec"]["containers"][index], self._containers[index]
        try:
            words, variables = await self._command(container)
        except Missing as error:
            state.state = {
                "waiting": {"reason": "CreateContainerConfigError", "message": str(error)}
            }
            await self._report()
            await asyncio.sleep(LOOK_S)
            return 1
        process = await self._spawn(container, words, variables)
        self._processes[state.name] = process
        state.state = {"running": {"startedAt": now()}}
        state.is_started = "startupProbe" not in container
        state.is_ready = state.is_started and "readinessProbe" not in container
        await self._report()
        watching = asyncio.ensure_future(self._probe(container, state, process))
        try:
            return await process.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    # --- the process ---

    async def _command(self, container: Json) -> tuple[list[str], dict[str, str]]:
        sources = await self._sources()
        server = self._settings.url.rpartition("//")[2].rpartition(":")
        variables = {
            "PATH": self._settings.path,
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "HOSTNAME": self.pod["spec"].get("hostname") or self.pod["metadata"]["name"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "KUBERNETES_SERVICE_HOST": server[0],
            "KUBERNETES_SERVICE_PORT": server[2],
            **variables_of(container, self._with_address(), self._address, sources),
        }
        words = words_of(container, variables, self._address)
        if not container.get("command"):
            words = [*self._settings.entry, *words]
        return words, variables

    def _with_address(self) -> Json:
        known = {"podIP": self._address, "hostIP": self._host_address}
        return {**self.pod, "status": {**self.pod.get("status", {}), **known}}

    async def _spawn(
        self, container: Json, words: list[str], variables: dict[str, str]
    ) -> asyncio.subprocess.Process:
        mounts = [
            *volumes.mounts_of(container, self._folders()),
            (str(self._hosts), "/etc/hosts"),
        ]
        if self.pod["spec"].get("automountServiceAccountToken", True):
            mounts.append((str(self.folder / "token"), volumes.TOKEN_FOLDER))
        told = {
            "parent": os.getpid(),
            "mounts": mounts,
            "keep": list(self._settings.keep),
            "read_only": (container.get("securityContext") or {}).get("readOnlyRootFilesystem"),
            "words": words,
            "variables": variables,
            "folder": container.get("workingDir", ""),
        }
        file = self.folder / f"{container['name']}-{len(os.listdir(self.folder))}.json"
        file.write_text(json.dumps(told))
        with self.log_path(container["name"]).open("ab") as output:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", str(SANDBOX), str(file),
                    stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                )
            )  # fmt: skip
            try:
                return await asyncio.shield(starting)
            except asyncio.CancelledError:
                process = await starting
                _signal(process, signal.SIGKILL)
                await process.wait()
                raise

    async def _probe(
        self, container: Json, state: ContainerState, process: asyncio.subprocess.Process
    ) -> None:
        factor = self._settings.probe_factor
        told: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
        async with asyncio.TaskGroup() as asking:

            def ask(kind: str) -> asyncio.Task[None]:
                return asking.create_task(
                    probes.watch(
                        self._session, container, container[kind], self._address, factor,
                        lambda ok: told.put_nowait((kind, ok)),
                    )
                )  # fmt: skip

            if "startupProbe" in container:
                starting = ask("startupProbe")
                if not (await told.get())[1]:
                    _signal(process, signal.SIGKILL)
                    return
                starting.cancel()
                state.is_started = True
            for kind in ("livenessProbe", "readinessProbe"):
                if kind in container:
                    ask(kind)
            state.is_ready = "readinessProbe" not in container
            await self._report()
            while True:
                kind, ok = await told.get()
                if kind == "livenessProbe" and not ok:
                    _signal(process, signal.SIGTERM)
                elif kind == "readinessProbe" and state.is_ready != ok:
                    state.is_ready = ok
                    await self._report()

    # --- its files ---

    async def _sources(self) -> Sources:
        maps, secrets = volumes.references(self.pod)
        return Sources(await self._data("ConfigMap", maps), await self._data("Secret", secrets))

    async def _data(self, kind: str, names: set[str]) -> dict[str, dict[str, bytes]]:
        found = {}
        for name in names:
            path = KINDS[kind].path(self.pod["metadata"]["namespace"], name)
            with contextlib.suppress(Refused, aiohttp.ClientError, TimeoutError):
                value = await self._caches.api.call("GET", path)
                found[name] = data_of({**value, "kind": kind})
        return found

    def _folders(self) -> dict[str, Path]:
        found = {}
        for volume in self.pod["spec"].get("volumes") or ():
            folder = self.folder / "volumes" / volume["name"]
            if claimed := volume.get("persistentVolumeClaim"):
                namespace = self.pod["metadata"]["namespace"]
                claim = self._caches.get("PersistentVolumeClaim", namespace, claimed["claimName"])
                if claim is None:
                    raise Missing(f"persistentvolumeclaim {claimed['claimName']} not found")
                folder = volume_folder(self._settings.folder, claim)
            folder.mkdir(parents=True, exist_ok=True)
            found[volume["name"]] = folder
        return found

    async def _project(self, sources: Sources) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        folders = self._folders()
        for volume in self.pod["spec"].get("volumes") or ():
            files = volumes.files_of(volume, self._with_address(), sources)
            if files is not None:
                volumes.project(folders[volume["name"]], files)
        namespace = self.pod["metadata"]["namespace"]
        account = self.pod["spec"].get("serviceAccountName") or "default"
        token = {
            "token": f"sa:{namespace}:{account}".encode(),
            "namespace": namespace.encode(),
            "ca.crt": self._settings.authority.read_bytes(),
        }
        volumes.project(self.folder / "token", token)

    async def _refresh(self) -> None:
        """Fields of the downward API follow the pod; the rest is as it was at the start."""
        if not self._address:
            return
        for volume in self.pod["spec"].get("volumes") or ():
            if "downwardAPI" in volume:
                files = volumes.files_of(volume, self._with_address(), Sources()) or {}
                volumes.project(self._folders()[volume["name"]], files)

    # --- the end ---

    async def _terminate(self) -> None:
        began = asyncio.get_running_loop().time()

        def left_s() -> float:
            grace_s = float(self.pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            return max(MINIMUM_GRACE_S, grace_s) - (asyncio.get_running_loop().time() - began)

        await asyncio.gather(
            *(
                self._stop(container, self._processes[container["name"]], left_s)
                for container in self.pod["spec"]["containers"]
                if container["name"] in self._processes
            )
        )

    async def _stop(
        self, container: Json, process: asyncio.subprocess.Process, left_s: Callable[[], float]
    ) -> None:
        before = ((container.get("lifecycle") or {}).get("preStop") or {}).get("exec")
        if before and process.returncode is None:
            await self._run_hook(before["command"], process, left_s)
        _signal(process, signal.SIGTERM)
        while process.returncode is None and left_s() > 0 and not self._is_gone:
            await asyncio.sleep(0.02)
        _signal(process, signal.SIGKILL)

    async def _run_hook(
        self, words: list[str], process: asyncio.subprocess.Process, left_s: Callable[[], float]
    ) -> None:
        hook = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            while hook.returncode is None and process.returncode is None:
                if left_s() <= 0 or self._is_gone:
                    break
                await asyncio.sleep(0.02)
        finally:
            _signal(hook, signal.SIGKILL)
            await hook.wait()

    def _kill(self) -> None:
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)

    async def _bury(self) -> None:
        if not self._is_gone:
            with contextlib.suppress(Refused, aiohttp.ClientError, TimeoutError):
                await self._caches.delete(self.pod, grace_s=0)
        shutil.rmtree(self.folder / "volumes", ignore_errors=True)

    async def _report(self) -> None:
        if self._is_gone:
            return
        found = status(
            self.pod, self._containers, address=self._address, host=self._host_address, now=now()
        )
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            self.pod = await self._caches.set_status(self.pod, found)


def _log_failure(life: asyncio.Future[None]) -> None:
    if not life.cancelled() and (error := life.exception()):
        log.error("a pod's task failed", exc_info=error)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
