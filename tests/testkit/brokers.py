"""A real broker as a process, for tests that talk to it over real sockets and kill it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

START_TIMEOUT_S = 60.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class BrokerProcess:
    """`python -m headrace.broker` on a folder of the test's; may be killed and started again on
    the same data and ports."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.data_dir = folder / "broker-0"
        self.host = "127.0.0.1"
        self.prefix: tuple[str, ...] = ()
        """Before the command: what runs it in a network of its own."""
        self.port, self.health_port = free_ports(2)
        self.log_path = folder / "broker.log"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://{self.host}:{self.port}"

    @property
    def advertised_url(self) -> str:
        """Where it says that it is reached."""
        return self._environment.get("HEADRACE_ADVERTISED_URL", self.url)

    @property
    def health_url(self) -> str:
        """Where /readyz and /metrics are."""
        return f"http://{self.host}:{self.health_port}"

    @property
    def pid(self) -> int:
        """The process' number."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs, or before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def is_launched(self) -> bool:
        """Whether there is a process, or was one."""
        return self._process is not None

    @property
    def log_text(self) -> str:
        """What it has logged so far, over all starts."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def set(self, **environment: str) -> None:
        """Changes settings for the next start."""
        self._environment |= environment

    def launch(self) -> None:
        """Starts the process and returns at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")},
            "HEADRACE_DATA_DIR": str(self.data_dir),
            "HEADRACE_HOST": self.host,
            "HEADRACE_PORT": str(self.port),
            "HEADRACE_HEALTH_PORT": str(self.health_port),
            "HEADRACE_DISK_RESERVE_BYTES": "1048576",
            **self._environment,
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                # Tied to this process, so that a test run that is killed leaves no broker behind.
                [*self.prefix, sys.executable, "-m", "headrace.cli.lifeline", str(os.getpid())]
                + ["-m", "headrace.broker"],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def start(self) -> BrokerProcess:
        """Starts it and waits until it serves."""
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits for /readyz; fails with the log's end if the process dies or time is over."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            code = self._process.poll()
            if code is not None:
                raise AssertionError(f"the broker exited with {code}:\n{self.log_text[-4000:]}")
            try:
                with urllib.request.urlopen(self.health_url + "/readyz", timeout=2):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.03)
        raise AssertionError(f"the broker wasn't ready in time:\n{self.log_text[-4000:]}")

    def signal(self, number: int) -> None:
        """Sends a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def resume(self) -> None:
        """Lets it go on after SIGSTOP, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = 30.0) -> int:
        """Waits for the end; answers the exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, and waits for the clean end; answers the exit code."""
        if self._process is None or self._process.poll() is not None:
            return 0 if self._process is None else int(self._process.returncode)
        self.signal(signal.SIGTERM)
        return self.wait()
