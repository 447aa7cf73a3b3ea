"""`python -m headrace.broker [--config FILE]`: one broker, until SIGTERM or SIGINT.

Exit codes: 0 stopped cleanly; 1 could not start (the reason is the last line); 2 wrong usage;
3 another process took over this broker's id.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import signal
import sys
from pathlib import Path

from headrace.broker import logging_setup, settings
from headrace.broker.allocator import keep_freed_memory
from headrace.broker.assembly import Broker
from headrace.protocol.errors import HeadraceError, InvalidConfig

log = logging.getLogger("headrace.broker")


def main() -> int:
    """Reads the settings, runs the broker; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.broker", description=__doc__)
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    arguments = parser.parse_args()
    try:
        chosen = settings.load(file=arguments.config)
    except InvalidConfig as error:
        print(f"headrace broker: {error}", file=sys.stderr)
        return 2
    logging_setup.set_up(
        log_format=chosen.log_format, level=chosen.log_level, broker_id=chosen.broker_id
    )
    _raise_file_limit()
    keep_freed_memory()
    return asyncio.run(_run(chosen))


async def _run(chosen: settings.Settings) -> int:
    broker = Broker(chosen)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log.info("%s: stopping", number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    lost = asyncio.ensure_future(broker.overtaken())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await asyncio.wait({stopping, lost}, return_when=asyncio.FIRST_COMPLETED)
    except (HeadraceError, OSError) as error:
        log.error("the broker can't start: %s", error)
        await broker.stop(clean=False)
        return 1
    finally:
        for task in (starting, stopping, lost):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
    if lost.done() and not lost.cancelled():
        log.critical("another process took over this broker's id: %s; stopping at once", lost)
        await broker.stop(clean=False)
        return 3
    await broker.stop()
    return 0


def _raise_file_limit() -> None:
    """As many open files as the system lets us have: segments, sockets and indexes are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
