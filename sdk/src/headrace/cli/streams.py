"""Standard output whose reader may leave: `headrace consume orders | head` ends quietly."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Around what writes to stdout: when its reader has seen enough, the program is done, with
    exit code 0 and no message."""
    try:
        yield
    except BrokenPipeError:
        abandon_stdout()
        raise typer.Exit(0) from None


def abandon_stdout() -> None:
    """Point stdout at nothing: the interpreter flushes it on its way out, into a closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def flush_stdout() -> None:
    """Write out what is buffered, if anybody still reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()
