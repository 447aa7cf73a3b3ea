"""`python -m headrace.operator`: the operator, until SIGTERM or SIGINT; settings by environment
(docs/operator.md).

Exit codes: 0 stopped; 1 could not start (the reason is the last line); 2 wrong settings.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

import kopf

from headrace.operator import settings as settings_module
from headrace.operator.process import logs
from headrace.operator.process.assembly import Operator
from headrace.operator.settings import Settings
from headrace.protocol.errors import InvalidConfig

log = logging.getLogger("headrace.operator")


def main() -> int:
    """Reads the settings, runs the operator; answers the exit code."""
    argparse.ArgumentParser(prog="python -m headrace.operator", description=__doc__).parse_args()
    try:
        chosen = settings_module.load(os.environ)
    except InvalidConfig as error:
        sys.stderr.write(f"headrace operator: {error}\n")
        return 2
    logs.set_up(log_format=chosen.log_format, level=chosen.log_level)
    try:
        return asyncio.run(_run(chosen))
    except InvalidConfig as error:
        sys.stderr.write(f"headrace operator: {error}\n")
        return 2
    except (kopf.LoginError, OSError) as error:
        log.error("the operator can't start: %s", error)
        return 1


async def _run(chosen: Settings) -> int:
    operator = Operator(chosen)
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log.info("%s: stopping", number.name)
        operator.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    await operator.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
