"""Runs a command's coroutine and says plainly what went wrong when something did."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import NoReturn, TypeVar

import typer

from headrace.protocol.errors import ConnectionFailed, HeadraceError

T = TypeVar("T")

REFUSED = 1
"""Exit code: the cluster said no, or could not be reached."""

WRONG_USAGE = 2
"""Exit code: the command, or what was fed to it, can't work as it is."""


def run(work: Coroutine[object, object, T]) -> T:
    """Run `work` to its end and hand back its value; a `HeadraceError` ends the program with its
    message and code on stderr and exit code 1."""
    try:
        return asyncio.run(work)
    except HeadraceError as error:
        refuse(error)


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
