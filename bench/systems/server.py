"""Server processes of the systems: started in a temporary folder, tied to this process's life,
stopped by their own process ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from headrace.cli.dev_cluster import lifeline_command
from systems.base import Missing

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.1

_EXEC = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"


def find_program(name: str, *, package: str) -> str:
    """Its path.

    Raises:
        Missing: it isn't installed.
    """
    # Debian keeps servers in /usr/sbin, which a user's PATH may lack.
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        raise Missing(f"{name} is not installed (Debian and Ubuntu: apt install {package})")
    return path


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One process, in a session of its own, with its output in a file."""

    def __init__(self, command: list[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self._name = Path(command[0]).name
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                lifeline_command("-c", _EXEC, *command),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process; the lifeline has become the server."""
        return self._process.pid

    async def until(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it serves.

        Raises:
            Missing: it ended or was not ready in time; with the end of its output.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await is_ready():
                    if self._process.poll() is not None:
                        break
                    await asyncio.sleep(_POLL_S)
                else:
                    return
        except TimeoutError:
            pass
        raise Missing(f"{self._name} did not start:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])

    async def stop(self) -> None:
        """SIGTERM and wait; SIGKILL to its session if it takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        with contextlib.suppress(ProcessLookupError):  # children that outlived it, e.g. of a shell
            os.killpg(self.pid, signal.SIGTERM)


def listens(port: int) -> Callable[[], Awaitable[bool]]:
    """Whether somebody accepts connections there."""

    async def check() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    return check
