"""A child started through `lifeline` dies with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PARENT = """
import subprocess, sys, time
from headrace.cli.dev_cluster import lifeline_command
command = lifeline_command("-c", "import time; time.sleep(60)")
child = subprocess.Popen(command, start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_the_child_of_a_parent_that_was_killed_does_not_stay_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)  # past the exec: the tie must outlast it
        assert is_running(child)
        parent.kill()
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        assert not is_running(child)
    finally:
        if is_running(child):
            os.kill(child, signal.SIGKILL)


def test_a_child_whose_parent_is_already_gone_does_not_start() -> None:
    command = [sys.executable, "-P", "-m", "headrace.cli.lifeline", "1", "-c", "print('ran')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stdout == ""
