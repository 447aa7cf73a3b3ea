"""`headrace group ...`: what groups have committed, and how far behind they are."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import tables
from headrace.cli.options import Bootstrap, Output, OutputFormat, bootstrap_of, output_of
from headrace.cli.output import notice, print_json, print_tables
from headrace.cli.session import run_admin
from headrace.sdk import Admin

group_app = typer.Typer(no_args_is_help=True, help="List, describe, delete consumer groups.")

GroupName = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]


@group_app.command("list")
def list_groups(ctx: typer.Context, bootstrap: Bootstrap = None, output: Output = None) -> None:
    """List the groups."""
    found = run_admin(bootstrap_of(ctx, bootstrap), lambda admin: admin.list_groups())
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(found)
    else:
        print_tables(tables.groups(found))


@group_app.command()
def describe(
    ctx: typer.Context, group: GroupName, bootstrap: Bootstrap = None, output: Output = None
) -> None:
    """Show a group's committed offsets and lag."""
    found = run_admin(bootstrap_of(ctx, bootstrap), lambda admin: admin.describe_group(group))
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(found)
        return
    lags = [offset.lag for offset in found.offsets if offset.lag is not None]
    title = f"group {found.group}: {found.state}, lag {sum(lags):,} record(s)"
    print_tables(title, tables.group_offsets(found))


@group_app.command()
def delete(
    ctx: typer.Context,
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", show_default=False)],
    bootstrap: Bootstrap = None,
) -> None:
    """Delete groups: their committed offsets are forgotten."""

    async def work(admin: Admin) -> None:
        for group in groups:
            await admin.delete_group(group)
            notice(f"group {group} deleted")

    run_admin(bootstrap_of(ctx, bootstrap), work)
