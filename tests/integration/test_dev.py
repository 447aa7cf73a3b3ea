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

    def __init__(self, data_dir: Path, *, brokers: int = 1) -> None:
        self.port = free_port_pair(brokers=brokers)
        self.url = f"http://127.0.0.1:{self.port}"
        self.data_dir = data_dir
        args = ("dev", "--data-dir", str(data_dir), "--port", str(self.port))
        self.process = start(*args, *([] if brokers == 3 else ["--brokers", str(brokers)]))
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
    def pids(self) -> list[int | None]:
        """What dev.json says."""
        found = json.loads((self.data_dir / "dev.json").read_text())["brokers"]
        return [each["pid"] for each in found]

    @property
    def broker_pid(self) -> int | None:
        """The first broker's."""
        return self.pids[0]

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


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Dev]:
    running = Dev(tmp_path / "data", brokers=3)
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.communicate()


def test_three_brokers_by_default_and_one_may_die(trio: Dev) -> None:
    assert len(trio.pids) == 3
    assert headrace("topic", "create", "safe", bootstrap=trio.url).code == 0
    made = headrace("topic", "describe", "safe", "--output", "json", bootstrap=trio.url).json
    assert {len(each["isr"]) for each in made["partitions"]} == {3}
    lines = b"".join(b"%d\n" % number for number in range(500))
    assert headrace("produce", "safe", stdin=lines, bootstrap=trio.url).code == 0
    killed = trio.pids[1]
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    assert headrace("produce", "safe", stdin=lines, bootstrap=trio.url).code == 0
    read = ("consume", "safe", "--from-beginning", "--exit-at-end")
    assert sorted(headrace(*read, bootstrap=trio.url).out.split()) == sorted(lines.split() * 2)
    wait_until(lambda: trio.pids[1] not in {None, killed})
    pids = [pid for pid in trio.pids if pid is not None]
    code, said = trio.end(signal.SIGINT)
    assert code == 130
    assert "Traceback" not in said
    assert not any(map(is_running, pids))


def test_a_folder_of_three_is_not_run_by_fewer(tmp_path: Path) -> None:
    for broker in range(3):
        (tmp_path / "data" / f"broker-{broker}").mkdir(parents=True)
    done = headrace("dev", "--brokers", "2", "--data-dir", str(tmp_path / "data"))
    assert done.code == 2
    assert "of 3 brokers" in done.err


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
    other_port = str(free_port_pair(brokers=3))
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
        "dev", "--data-dir", str(tmp_path / "data"), "--port", str(free_port_pair(brokers=3)),
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
