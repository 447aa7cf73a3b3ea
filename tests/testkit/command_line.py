"""`headrace` as a user runs it: a process of its own, its output and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

COMMAND = [sys.executable, "-m", "headrace.cli.main"]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without Headrace's settings, at a fixed terminal width."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    return {**kept, "COLUMNS": "100", "NO_COLOR": "1", **changes}


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


def headrace(*args: str, stdin: bytes = b"", bootstrap: str = "", **changes: str) -> Done:
    """Run a command to its end."""
    env = environment(**changes)
    if bootstrap:
        env["HEADRACE_BOOTSTRAP"] = bootstrap
    done = subprocess.run(
        [*COMMAND, *args], input=stdin, capture_output=True, env=env, timeout=180, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


def start(*args: str, bootstrap: str = "", **changes: str) -> subprocess.Popen[bytes]:
    """Start a command whose output is read while it runs."""
    env = environment(**changes)
    if bootstrap:
        env["HEADRACE_BOOTSTRAP"] = bootstrap
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *args], stdin=pipe, stdout=pipe, stderr=pipe, env=env)
