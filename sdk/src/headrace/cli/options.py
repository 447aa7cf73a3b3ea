"""Flags that many commands share, and where a value comes from when a flag is left out.

`--bootstrap` and `--output` are taken both before and after the subcommand; the later one wins.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.protocol import routes

DEFAULT_BOOTSTRAP = f"http://127.0.0.1:{routes.DEFAULT_PORT}"
"""Where `headrace dev` listens."""


class OutputFormat(enum.StrEnum):
    """Tables for people, JSON (the API's models) for programs."""

    TABLE = "table"
    JSON = "json"


class Acks(enum.StrEnum):
    """What a produce waits for."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


class Compression(enum.StrEnum):
    """Codec of the batches a producer makes."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Common:
    """The flags given before the subcommand."""

    bootstrap: str
    output: OutputFormat


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="URL",
        help=f"Address of any broker. Else $HEADRACE_BOOTSTRAP, else {DEFAULT_BOOTSTRAP}.",
        show_default=False,
    ),
]
Output = Annotated[
    OutputFormat | None,
    typer.Option("--output", help="Table for people or JSON for programs.", show_default="table"),
]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="A topic setting; may be repeated."),
]


def bootstrap_of(ctx: typer.Context, given: str | None) -> str:
    """The address to use: the command's own flag, else what stood before it."""
    common: Common = ctx.find_root().obj
    return given or common.bootstrap


def output_of(ctx: typer.Context, given: OutputFormat | None) -> OutputFormat:
    """The output format to use: the command's own flag, else what stood before it."""
    common: Common = ctx.find_root().obj
    return given or common.output


def config_of(
    pairs: list[str] | None, *, flag: str = "--config"
) -> dict[str, str | int | float | bool]:
    """`["retention.ms=1000", "x=true"]` as a dict with numbers and booleans read as such.

    Raises:
        typer.BadParameter: a pair without `=` or without a key.
    """
    return {key: _config_value(value) for key, value in pairs_of(pairs, flag=flag).items()}


def pairs_of(pairs: list[str] | None, *, flag: str) -> dict[str, str]:
    """`["a=b"]` as a dict.

    Raises:
        typer.BadParameter: a pair without `=` or without a key.
    """
    parsed: dict[str, str] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=flag)
        parsed[key] = value
    return parsed


def _config_value(text: str) -> str | int | float | bool:
    if text in {"true", "false"}:
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
