"""`python -m headrace.cli.lifeline PARENT ARG...`: become `python ARG...`, tied to a parent's life.

When the parent dies, even by SIGKILL, the kernel sends this process SIGTERM (prctl(2),
PR_SET_PDEATHSIG, kept across exec): a broker started by `headrace dev` stops cleanly and never
stays behind as an orphan on its port. Done in a step of its own between fork and the real program,
because running Python between fork and exec of a process with threads can deadlock. Where there is
no prctl (macOS) the program just starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask the kernel for SIGTERM at the parent's death."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (AttributeError, OSError):
        return


def main(argv: list[str]) -> None:
    """Replace this process by `python argv[1:]`; exit at once if the parent is already gone."""
    parent = int(argv[0])
    _die_with_parent()
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-P", *argv[1:]])


if __name__ == "__main__":
    main(sys.argv[1:])
