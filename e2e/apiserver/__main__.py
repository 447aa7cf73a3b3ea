"""`python -m apiserver --port 0 --kubeconfig FILE`: the server as a process of its own.

Prints its address on one line when it listens; ends at SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from apiserver.server import ApiServer


async def _run(options: argparse.Namespace) -> None:
    api = ApiServer(enforce_rbac=options.rbac)
    await api.start(port=options.port)
    if options.kubeconfig:
        api.write_kubeconfig(options.kubeconfig)
    print(api.url, flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
    await api.stop()


def main() -> None:
    """Parses the command line and serves."""
    parser = argparse.ArgumentParser(prog="apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    parser.add_argument("--kubeconfig", type=Path, help="a file to write for clients")
    parser.add_argument("--rbac", action="store_true", help="enforce Roles and bindings")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
