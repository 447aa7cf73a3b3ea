"""`headrace group ...`: members, what groups have committed and how far behind; moving that."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from headrace.cli import tables
from headrace.cli.options import Bootstrap, Output, OutputFormat, bootstrap_of, output_of
from headrace.cli.output import notice, print_json, print_tables
from headrace.cli.session import run_admin
from headrace.sdk import Admin
from headrace.sdk.group_reset import PlannedReset, Shift
from headrace.sdk.offsets import Where

group_app = typer.Typer(no_args_is_help=True, help="List, describe, delete, reset consumer groups.")

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
    """Show a group's members, committed offsets and lag."""
    found = run_admin(bootstrap_of(ctx, bootstrap), lambda admin: admin.describe_group(group))
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(found)
        return
    lags = [offset.lag for offset in found.offsets if offset.lag is not None]
    title = f"group {found.group}: {found.state}, lag {sum(lags):,} record(s)"
    print_tables(title, tables.group_offsets(found))
    if found.members:
        print_tables(f"{len(found.members)} member(s)", tables.group_members(found))


@group_app.command()
def delete(
    ctx: typer.Context,
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", help="Although it has members; they join again, afresh.")
    ] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete groups: their committed offsets are forgotten."""

    async def work(admin: Admin) -> None:
        for group in groups:
            await admin.delete_group(group, force=force)
            notice(f"group {group} deleted")

    run_admin(bootstrap_of(ctx, bootstrap), work)


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def duration_of(text: str) -> timedelta:
    """`90s`, `15m`, `1h30m`, `7d`, ...

    Raises:
        typer.BadParameter: another form.
    """
    parts = re.findall(r"(\d+)(ms|[smhdw])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 15m, 1h30m or 7d")
    return timedelta(seconds=sum(int(number) * _UNITS[unit] for number, unit in parts))


def instant_of(text: str) -> datetime:
    """A time in ISO 8601; without a zone it is UTC.

    Raises:
        typer.BadParameter: another form.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-01-31T12:00:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def place_of(
    *,
    earliest: bool,
    latest: bool,
    at: str | None,
    offset: int | None,
    back: str | None,
    shift: int | None,
) -> Where | Shift:
    """The one place that was named.

    Raises:
        typer.BadParameter: none, or several.
    """
    named: list[Where | Shift] = []
    named += ["earliest"] if earliest else []
    named += ["latest"] if latest else []
    named += [] if at is None else [instant_of(at)]
    named += [] if offset is None else [offset]
    named += [] if back is None else [datetime.now(UTC) - duration_of(back)]
    named += [] if shift is None else [Shift(shift)]
    if len(named) != 1:
        raise typer.BadParameter(
            "name one place: --to-earliest, --to-latest, --to-datetime, --to-offset,"
            " --by-duration or --shift-by"
        )
    return named[0]


@group_app.command("reset-offsets")
def reset_offsets(
    ctx: typer.Context,
    group: GroupName,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME", help="Repeatable. Default: those with committed offsets."
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Repeatable.")
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Only what comes next.")] = False,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="The first record at or after an ISO time.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option(metavar="N", min=0)] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="So far back in time: 90s, 15m, 7d.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="So many records on, or (negative) back.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; else it is only shown.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although the group has members; restart them then.")
    ] = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Move a group's committed offsets. Shows what would be done; --execute does it."""
    to = place_of(
        earliest=to_earliest,
        latest=to_latest,
        at=to_datetime,
        offset=to_offset,
        back=by_duration,
        shift=shift_by,
    )

    async def work(admin: Admin) -> list[PlannedReset]:
        plan = await admin.plan_group_reset(
            group, to, topics=topics or (), partitions=partitions or None
        )
        if execute:
            for result in await admin.reset_group_offsets(group, plan, force=force):
                if result.error is not None:
                    raise result.error.to_error()
        return plan

    plan = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(plan)
    else:
        print_tables(tables.planned_resets(plan))
    notice("done" if execute else "nothing was changed: add --execute to do this")
