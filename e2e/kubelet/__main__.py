"""`python -m kubelet --folder DIR`: a small Kubernetes on this machine, until Ctrl-C.

Prints a kubeconfig's path on one line when it is up.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from kubelet.emulator import Emulator, why_not


def main() -> None:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="kubelet", description=__doc__)
    parser.add_argument("--folder", type=Path, help="for all files; else a new one in /tmp")
    parser.add_argument("--image", action="append", help="pattern of an image that can be pulled")
    options = parser.parse_args()
    if missing := why_not():
        sys.exit(missing)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="headrace-kubelet-"))
    images = tuple(options.image or ("headrace:*",))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with Emulator(folder, images=images) as cluster:
        print(cluster.kubeconfig, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
