"""What a benchmark says: settings, surroundings, every round, and the summary."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import msgspec
from rich.table import Table

from headrace.cli import tables
from headrace.cli.bench.stats import Spread, summarise
from headrace.cli.output import print_json, print_tables

Setting = str | int | float | None


class Environment(msgspec.Struct):
    """Where it ran. `cpus` are those that this process may use; a broker on the same machine
    shares them."""

    headrace: str
    python: str
    platform: str
    cpus: int
    broker: str


class Report(msgspec.Struct):
    """The result of one benchmark; `--json` prints exactly this."""

    bench: str
    settings: dict[str, Setting]
    environment: Environment
    rounds: list[dict[str, float]]
    summary: dict[str, Spread]


def make_report(
    bench: str, *, settings: dict[str, Setting], rounds: list[dict[str, float]], broker: str
) -> Report:
    """A report of rounds already measured; `broker` is the broker's version."""
    return Report(
        bench=bench,
        settings=settings,
        environment=_environment(broker),
        rounds=rounds,
        summary=summarise(rounds),
    )


def _environment(broker: str) -> Environment:
    return Environment(
        headrace=importlib.metadata.version("headrace"),
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        broker=broker,
    )


def show(report: Report, *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        print_json(report)
        return
    where = report.environment
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    print_tables(
        f"bench {report.bench}: {settings}",
        f"headrace {where.headrace}, broker {where.broker}, Python {where.python},"
        f" {where.cpus} CPUs, {where.platform}",
        summary_table(report),
    )


def summary_table(report: Report) -> Table:
    """A row for each figure: median of the rounds, smallest and largest."""
    return tables.table(
        ("figure", ">median", ">min", ">max"),
        [
            (name, number(value.median), number(value.min), number(value.max))
            for name, value in report.summary.items()
        ],
    )


def number(value: float) -> str:
    """A figure with as many digits as one can lean on."""
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
