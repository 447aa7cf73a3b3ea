"""Puts the commands together and reads the flags that stand before them."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from headrace.cli import dev, reassign
from headrace.cli.bench.commands import bench_app
from headrace.cli.clusters import cluster_app
from headrace.cli.consume import consume
from headrace.cli.demo import demo
from headrace.cli.groups import group_app
from headrace.cli.options import DEFAULT_BOOTSTRAP, Common, OutputFormat
from headrace.cli.produce import produce
from headrace.cli.topics import topic_app

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version("headrace"))
        raise typer.Exit


@app.callback()
def headrace(
    ctx: typer.Context,
    bootstrap: Annotated[
        str,
        typer.Option(
            metavar="URL", envvar="HEADRACE_BOOTSTRAP", help="Address of any broker of the cluster."
        ),
    ] = DEFAULT_BOOTSTRAP,
    output: Annotated[
        OutputFormat, typer.Option(help="Table for people or JSON for programs.")
    ] = OutputFormat.TABLE,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """A durable message queue: run it, feed it, read it.

    Exit codes: 0 done, 1 the cluster said no, 2 wrong usage.
    """
    ctx.obj = Common(bootstrap=bootstrap or DEFAULT_BOOTSTRAP, output=output)


app.command()(dev.dev)
app.command()(dev.broker)
app.command()(dev.operator)
app.add_typer(topic_app, name="topic")
app.command()(produce)
app.command()(consume)
app.add_typer(group_app, name="group")
for command in (reassign.reassign, reassign.cordon, reassign.uncordon, reassign.drain):
    cluster_app.command()(command)
app.add_typer(cluster_app, name="cluster")
app.add_typer(bench_app, name="bench")
app.command()(demo)
