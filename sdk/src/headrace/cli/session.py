"""Runs a command's coroutine and says plainly what went wrong when something did."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

import typer

from headrace.protocol.errors import ConnectionFailed, HeadraceError
from headrace.sdk import Admin
from headrace.sdk.settings import bootstrap_urls

T = TypeVar("T")

REFUSED = 1
"""Exit code: the cluster said no, or could not be reached."""

WRONG_USAGE = 2
"""Exit code: the command, or what was fed to it, can't work as it is."""

REACH_TIMEOUT_S = 5.0
"""How long a command waits for somebody to listen at its address: a broker's restart, not the half
minute and more that the SDK grants a program at work. Nobody wants to stare at a wrong address."""

REACH_PAUSE_S = 0.2
"""Between two tries to reach an address."""


def run(work: Coroutine[object, object, T], *, bootstrap: str) -> T:
    """Run `work` to its end and hand back its value; a `HeadraceError` ends the program with its
    message and code on stderr and exit code 1. Nothing is begun while nobody listens at the
    address."""
    try:
        return asyncio.run(_after_reaching(bootstrap, work))
    except HeadraceError as error:
        refuse(error)


def run_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """`run` for what needs an `Admin`."""

    async def with_admin() -> T:
        async with Admin(bootstrap) as admin:
            return await work(admin)

    return run(with_admin(), bootstrap=bootstrap)


async def _after_reaching(bootstrap: str, work: Coroutine[object, object, T]) -> T:
    try:
        await reach(bootstrap)
    except BaseException:
        work.close()
        raise
    return await work


async def reach(bootstrap: str) -> None:
    """Return once somebody listens at one of the addresses.

    Raises:
        ConnectionFailed: nobody does within `REACH_TIMEOUT_S`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REACH_TIMEOUT_S
    while True:
        for url in bootstrap_urls(bootstrap):
            fault = await _knock(url, within_s=max(deadline - loop.time(), REACH_PAUSE_S))
            if fault is None:
                return
        if loop.time() + REACH_PAUSE_S > deadline:
            raise ConnectionFailed(f"no broker can be reached at {bootstrap}: {fault}")
        await asyncio.sleep(REACH_PAUSE_S)


async def _knock(url: str, *, within_s: float) -> str | None:
    """None if a connection to the address can be made, else why not."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return "no answer"
    except (OSError, ValueError) as error:
        return str(error)
    writer.close()
    return None


def refuse(error: HeadraceError) -> NoReturn:
    """Print what the cluster said and leave with exit code 1."""
    message = f"error: {error.message} ({error.code})"
    if isinstance(error, ConnectionFailed):
        message += "\nhint: start a broker with `headrace dev`, or name one with --bootstrap URL"
    fail(message, code=REFUSED)


def fail(message: str, *, code: int) -> NoReturn:
    """Print a message to stderr and leave."""
    print(message, file=sys.stderr, flush=True)
    raise typer.Exit(code)
