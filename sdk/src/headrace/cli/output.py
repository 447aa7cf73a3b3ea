"""Prints: tables on a console that never cuts a cell in a pipe, JSON on stdout, progress only for
somebody who is watching."""

from __future__ import annotations

import sys
from typing import Literal

import msgspec
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from headrace.cli.streams import reader_may_leave

_PIPE_WIDTH = 1_000
"""Columns of a console that is no terminal: wide enough that nothing is folded or cut there."""


def console() -> Console:
    """Where tables go: as wide as the terminal, or as wide as they want in a pipe."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def print_json(value: object) -> None:
    """A model as indented JSON, in the API's own keys."""
    raw = msgspec.json.format(msgspec.json.encode(value), indent=2)
    with reader_may_leave():
        sys.stdout.buffer.write(raw + b"\n")
        sys.stdout.buffer.flush()


def print_tables(*tables: RenderableType) -> None:
    """Tables or lines for people, one after the other."""
    out = console()
    with reader_may_leave():
        for item in tables:
            out.print(item, markup=False)


def notice(message: str) -> None:
    """A line for people, on stderr, so that stdout holds only what was asked for."""
    print(message, file=sys.stderr, flush=True)


def progress(*, unit: Literal["records", "bytes"] = "records") -> Progress:
    """A progress bar on stderr; it shows nothing unless stderr is a terminal."""
    watcher = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if unit == "records" else DownloadColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=watcher,
        disable=not watcher.is_terminal,
        transient=True,
    )
