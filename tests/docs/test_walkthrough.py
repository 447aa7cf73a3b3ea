"""README and docs are true: every command in them runs against a broker and says what they say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.sdk import sync
from testkit.walkthrough import Step, matches, steps_of

ROOT = Path(__file__).parents[2]
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if steps_of(page)
]
READY_WITHIN_S = 30
STEP_WITHIN_S = 30
DOCUMENTED_PORT = 9420
BROKERS = 3


def _free_ports() -> int:
    """The lowest of six neighbouring ports that nobody listens on: two for each broker."""
    while True:
        with ExitStack() as held:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for further in range(port + 1, port + 2 * BROKERS):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", further))
            except (OSError, OverflowError):
                continue
            return port


def _environment(port: int) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HEADRACE_")}
    scripts = str(Path(sys.executable).parent)
    return kept | {
        "HEADRACE_BOOTSTRAP": f"http://127.0.0.1:{port}",
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
    }


def _wait_until_ready(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"headrace dev ended:\n{process.communicate()[0]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the broker was not ready after {READY_WITHIN_S} s")


@pytest.fixture(params=PAGES, ids=lambda page: page.stem)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def port_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The first port of a cluster that was started as the README says."""
    folder = tmp_path_factory.mktemp("walkthrough")
    port = _free_ports()
    process = subprocess.Popen(
        ["headrace", "dev", "--data-dir", str(folder / "data"), "--port", str(port)],
        env=_environment(port),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait_until_ready(process, port)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@pytest.fixture
def port(port_of_all: int) -> Iterator[int]:
    """The same without anybody's topics and groups: each page begins anew."""
    yield port_of_all
    with sync.Admin(f"http://127.0.0.1:{port_of_all}") as admin:
        for group in admin.list_groups().groups:
            admin.delete_group(group.group)
        for topic in admin.list_topics().topics:
            if not topic.internal:
                admin.delete_topic(topic.name)


def _run(step: Step, *, port: int, folder: Path) -> str:
    """What the step prints, with the ports that the page knows."""
    ports = {str(DOCUMENTED_PORT + n): str(port + n) for n in range(2 * BROKERS)}
    source = step.source
    for documented, real in ports.items():
        source = source.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{real}")
    command = ["bash", "-c", source] if step.kind == "shell" else [sys.executable, "-c", source]
    done = subprocess.run(
        command, env=_environment(port), cwd=folder, text=True, timeout=STEP_WITHIN_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    output = done.stdout
    for documented, real in ports.items():
        output = output.replace(f"127.0.0.1:{real}", f"127.0.0.1:{documented}")
    assert done.returncode == 0, f"exit code {done.returncode}:\n{output}"
    return output


def test_a_reader_who_follows_the_page_gets_what_it_shows(
    page: Path, port: int, tmp_path: Path
) -> None:
    for step in steps_of(page):
        output = _run(step, port=port, folder=tmp_path)
        assert step.expected is None or matches(step.expected, output), (
            f"{page.name}:{step.line}: {step.source}\n--- promised\n{step.expected}\n"
            f"--- printed\n{output}"
        )
