"""`headrace dev`: brokers that come back, stop in order and never stay behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.dev_cluster import free_port_pair
from testkit.command_line import headrace, start

DEADLINE_S = 30.0


class Dev:
    """A running `headrace dev`."""

    def __init__(self, data_dir: Path) -> None:
        self.port = free_port_pair()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data_dir = data_dir
        args = ("dev", "--data-dir", str(data_dir), "--port", str(self.port))
        self.process = start(*args)
        self.greeting = self._read_until("headrace consume")

    def _read_until(self, wanted: str) -> str:
        assert self.process.stderr is not None
        seen = ""
        while wanted not in seen:
            line = self.process.stderr.readline().decode()
            if not line:
                self.process.communicate()
                raise AssertionError(f"dev ended with {self.process.returncode}: {seen}")
            seen += line
        return seen

    @property
    def broker_pid(self) -> int | None:
        """What dev.json says."""
        pid: int | None = json.loads((self.data_dir / "dev.json").read_text())["brokers"][0]["pid"]
        return pid

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal and wait for the end: exit code and what it said meanwhile."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, err.decode()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    running = Dev(tmp_path / "data")
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.communicate()


def test_it_says_where_it_is_and_ctrl_c_stops_it_cleanly(dev: Dev) -> None:
    assert f"headrace is ready at {dev.url}" in dev.greeting
    pid = dev.broker_pid
    assert pid is not None
    code, said = dev.end(signal.SIGINT)
    assert code == 130
    assert "stopped" in said
    assert "Traceback" not in said
    assert not is_running(pid)
    assert dev.broker_pid is None


def test_a_broker_that_is_killed_comes_back_with_its_data(dev: Dev) -> None:
    assert headrace("topic", "create", "kept", bootstrap=dev.url).code == 0
    assert headrace("produce", "kept", stdin=b"still here\n", bootstrap=dev.url).code == 0
    killed = dev.broker_pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: dev.broker_pid not in {None, killed})
    read = ("consume", "kept", "--from-beginning", "--exit-at-end")
    assert headrace(*read, bootstrap=dev.url).out == b"still here\n"
    code, said = dev.end(signal.SIGTERM)
    assert code == 0
    assert f"broker 0 (pid {killed}) was killed by SIGKILL" in said


def test_no_broker_outlives_a_dev_that_was_killed(dev: Dev) -> None:
    pid = dev.broker_pid
    assert pid is not None
    dev.end(signal.SIGKILL)
    wait_until(lambda: not is_running(pid))


def test_a_folder_and_ports_in_use_are_refused_with_what_to_do(dev: Dev, tmp_path: Path) -> None:
    other_port = str(free_port_pair())
    same_folder = headrace("dev", "--data-dir", str(dev.data_dir), "--port", other_port)
    assert same_folder.code == 1
    assert "--data-dir" in same_folder.err
    other_folder = str(tmp_path / "other")
    same_port = headrace("dev", "--data-dir", other_folder, "--port", str(dev.port))
    assert same_port.code == 1
    assert "--port" in same_port.err
    assert is_running(dev.broker_pid or 0)


def test_a_broker_that_cannot_start_ends_dev_with_its_reason(tmp_path: Path) -> None:
    done = headrace(
        "dev", "--data-dir", str(tmp_path / "data"), "--port", str(free_port_pair()),
        HEADRACE_LOG_LEVEL="LOUD",
    )  # fmt: skip
    assert done.code == 1
    assert "log.level" in done.err
    assert "before it was ready" in done.err


def test_broker_becomes_the_broker(tmp_path: Path) -> None:
    port = free_port_pair()
    process: subprocess.Popen[bytes] = start(
        "broker",
        HEADRACE_DATA_DIR=str(tmp_path / "broker-0"),
        HEADRACE_PORT=str(port),
        HEADRACE_HEALTH_PORT=str(port + 1),
    )
    wait_until(lambda: b"headrace.broker" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
    assert headrace("topic", "list", bootstrap=f"http://127.0.0.1:{port}").code == 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
