"""A whole small Kubernetes on this machine: API server, controllers, nodes, in one thread.

    with Emulator(folder) as cluster:
        cluster.kubeconfig    # for any client
        cluster.api.faults    # what shall go wrong

It needs Linux, `openssl` for the API server's certificate, and the right to make mount namespaces:
root, or a kernel that gives users theirs. `why_not` says what is missing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from apiserver.server import ApiServer
from kubelet.addresses import Network
from kubelet.control_plane import ControlPlane
from kubelet.settings import Settings

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
CALL_TIMEOUT_S = 60.0
SETTLE_S = 0.2
"""For connections that were ended to be gone."""


def why_not() -> str:
    """What keeps this machine from running it; empty if nothing does."""
    if not sys.platform.startswith("linux"):
        return "pods need Linux' mount namespaces"
    if shutil.which("openssl") is None:
        return "the API server's certificate needs openssl"
    tried = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv[1]);"
         "from kubelet import sandbox; sandbox.unshare()", str(ROOT / "e2e")],
        capture_output=True, text=True,
    )  # fmt: skip
    return "" if tried.returncode == 0 else f"no mount namespaces: {tried.stderr[-200:]}"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of its own for 127.0.0.1, and its key."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=kubernetes", "-addext",
         "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(key), "-out",
         str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def _show_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """What everybody waits for, to stderr."""
    for task in asyncio.all_tasks(loop):
        task.print_stack(limit=4)


class Emulator:
    """Runs while the block does. `overrides`: fields of `Settings`."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        self.folder = folder
        self._overrides = overrides
        self.api: ApiServer
        self.control: ControlPlane
        self.kubeconfig = folder / "kubeconfig"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="emulator", daemon=True)

    def __enter__(self) -> Emulator:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carries out a coroutine in the emulator's thread."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(CALL_TIMEOUT_S)
        except TimeoutError:
            self._loop.call_soon_threadsafe(_show_tasks, self._loop)
            if sys.__stderr__ is not None:
                faulthandler.dump_traceback(sys.__stderr__)
            raise

    async def _start(self) -> None:
        certificate, key = make_certificate(self.folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.api = ApiServer(enforce_rbac=True)
        await self.api.start(tls=context)
        self.api.write_kubeconfig(self.kubeconfig, authority=certificate)
        self._network = Network()
        programs = Path(sys.executable).parent
        chosen: dict[str, Any] = {
            "path": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "keep": (str(ROOT), sys.prefix, sys.base_prefix),
            **self._overrides,
        }
        settings = Settings(
            folder=self.folder,
            url=self.api.url,
            authority=certificate,
            network=self._network.prefix,
            **chosen,
        )
        self.control = ControlPlane(settings, self._network)
        await self.control.start()

    async def _stop(self) -> None:
        await self.control.stop()
        await self.api.stop()
        self._network.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(SETTLE_S)

    # --- faults ---

    def lose_node(self, name: str) -> None:
        """The machine is gone, with all that ran there."""
        self.run(self.control.nodes.lose(name))

    def bring_back_node(self, name: str) -> None:
        """The machine starts again."""
        self.run(self.control.nodes.bring_back(name))

    def bring_back_nodes(self) -> None:
        """All machines that are lost start again."""
        for node in self.control.nodes.all:
            if node.is_lost:
                self.bring_back_node(node.name)

    def signal_pod(
        self, namespace: str, name: str, number: int, *, no_back_off: bool = False
    ) -> None:
        """A signal to the processes of a pod. `no_back_off`: what dies of it starts at once."""

        async def send() -> None:
            run = self.control.nodes.run_of(namespace, name)
            assert run is not None, f"no pod {name} runs"
            if no_back_off:
                run.forgive()
            run.signal(number)

        self.run(send())

    def log_of(self, uid: str, container: str) -> str:
        """What a container wrote, also after its pod is gone."""
        path = self.folder / "pods" / uid / f"{container}.log"
        return path.read_text(errors="replace") if path.exists() else ""
