"""`headrace consume`: records to standard output, in whatever form."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.cli.line_format import LETTERS_HELP, FormatFault, Render, compile_format
from headrace.cli.options import Bootstrap, bootstrap_of
from headrace.cli.session import run
from headrace.protocol.ids import TopicPartition
from headrace.protocol.record import Record
from headrace.sdk import Consumer

FETCH_MAX = 5_000
"""Records printed at once."""

COMMIT_EVERY_S = 1.0
"""Between two commits of what has been printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to read and when to stop."""

    topics: tuple[str, ...]
    group: str | None
    from_beginning: bool
    offset: int | None
    partition: int | None
    max_records: int | None
    exit_at_end: bool
