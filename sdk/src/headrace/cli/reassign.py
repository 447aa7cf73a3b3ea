"""`headrace cluster reassign`, `cordon`, `uncordon`, `drain`: where replicas are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from headrace.cli import tables
from headrace.cli.options import Bootstrap, Output, OutputFormat, bootstrap_of, output_of
from headrace.cli.output import notice, print_json, print_tables, progress
from headrace.cli.session import REFUSED, WRONG_USAGE, fail, run_admin
from headrace.protocol import reassignment_models as models
from headrace.sdk import Admin
from headrace.sdk.placement_admin import Plan

POLL_S = 0.5
"""Between two looks at the progress."""

SHOWN_MAX = 50
"""Moves in a table; `--output json` has all."""

BrokerId = Annotated[int, typer.Argument(metavar="BROKER", show_default=False)]
Throttle = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES", help="Bytes a second that each broker copies; -1: no bound.",
        show_default="as it is set",
    ),
]  # fmt: skip
Moves = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Partitions that one broker receives at a time.",
        show_default="as it is set",
    ),
]  # fmt: skip
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Leave when it is begun; it goes on in the background.")
]


def reassign(
    ctx: typer.Context,
    execute: Annotated[
        bool, typer.Option("--execute", help="Move; without it the plan is only shown.")
    ] = False,
    brokers: Annotated[
        str | None, typer.Option(metavar="IDS", help="Only over these brokers, as in 0,1,2.")
    ] = None,
    leaders: Annotated[
        bool, typer.Option("--leaders", help="Only even out who leads; nothing is copied.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Exactly so: {"TOPIC/PARTITION": [BROKER, ...], ...}, or a plan as printed with'
            " --output json.",
        ),
    ] = None,
    throttle: Throttle = None,
    moves: Moves = None,
    status: Annotated[bool, typer.Option("--status", help="Show how far it is.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Call it off; what is half-way goes back.")
    ] = False,
    topic: Annotated[
        list[str] | None, typer.Option(help="With --cancel: only this topic; may be repeated.")
    ] = None,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Spread replicas and leaders evenly over the brokers, with as few copies as that takes."""
    if sum([execute, status, cancel]) > 1:
        fail("error: give one of --execute, --status, --cancel", code=WRONG_USAGE)
    address, shown = bootstrap_of(ctx, bootstrap), output_of(ctx, output)
    if status:
        _show_progress(run_admin(address, lambda admin: admin.reassignments()), shown)
        return
    if cancel:
        topics = run_admin(address, lambda admin: admin.cancel_reassignment(topic))
        print_tables(f"called off in {len(topics)} topic(s)")
        return
    written = None if plan is None else _read_plan(plan)
    chosen = None if brokers is None else _ids(brokers)

    async def work(admin: Admin) -> models.ReassignmentPlan:
        made = await admin.reassign(
            written,
            mode="leaders" if leaders else "even",
            brokers=chosen,
            throttle=throttle,
            max_concurrent_moves=moves,
            dry_run=not execute,
        )
        _show_plan(made, shown)
        if execute and not no_wait:
            await _wait(admin)
        return made

    made = run_admin(address, work)
    if made.refusals:
        fail("error: not everything can be moved so; the plan says why", code=REFUSED)


def cordon(ctx: typer.Context, broker: BrokerId, bootstrap: Bootstrap = None) -> None:
    """Give the broker no new replicas, and leadership only where nobody else can have it."""
    _say(run_admin(bootstrap_of(ctx, bootstrap), lambda admin: admin.cordon(broker)))


def uncordon(ctx: typer.Context, broker: BrokerId, bootstrap: Bootstrap = None) -> None:
    """Give the broker replicas again; what was moved away doesn't come back by itself."""
    _say(run_admin(bootstrap_of(ctx, bootstrap), lambda admin: admin.uncordon(broker)))


def drain(
    ctx: typer.Context,
    broker: BrokerId,
    ignore_racks: Annotated[
        bool, typer.Option("--ignore-racks", help="Topics may end in fewer racks than now.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    throttle: Throttle = None,
    moves: Moves = None,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Cordon the broker and move all its replicas to others; then it can be removed."""
    shown = output_of(ctx, output)

    async def work(admin: Admin) -> int | None:
        made = await admin.drain(
            broker,
            ignore_racks=ignore_racks,
            throttle=throttle,
            max_concurrent_moves=moves,
            dry_run=dry_run,
        )
        _show_plan(made, shown)
        if dry_run or no_wait:
            return None
        await _wait(admin)
        return (await admin.placement(broker)).replicas

    left = run_admin(bootstrap_of(ctx, bootstrap), work)
    if left:
        fail(f"error: {left} replica(s) are still on broker {broker}: drain it again", code=REFUSED)
    if left == 0:
        notice(f"broker {broker} has no replicas any more")


async def _wait(admin: Admin) -> None:
    """Until the reassignment is over, with a bar; what it waits for is said once."""
    said: set[str] = set()
    with progress() as bar:
        task = bar.add_task("moving", total=None)
        while (now := await admin.reassignments()).state != "none":
            bar.update(task, total=now.total, completed=now.done)
            for each in now.partitions:
                if "not live" in each.reason and each.reason not in said:
                    said.add(each.reason)
                    notice(f"{each.topic}/{each.partition}: {each.reason}")
            await asyncio.sleep(POLL_S)


def _show_plan(made: models.ReassignmentPlan, shown: OutputFormat) -> None:
    if shown is OutputFormat.JSON:
        print_json(made)
        return
    what = "moving" if made.executed else "would move"
    print_tables(f"{what} {len(made.moves)} partition(s), {made.copies} replica(s) to copy")
    if made.moves:
        print_tables(_moves_table(made.moves[:SHOWN_MAX]))
    if len(made.moves) > SHOWN_MAX:
        print_tables(f"... and {len(made.moves) - SHOWN_MAX} more")
    for topic, reason in sorted(made.refusals.items()):
        print_tables(f"refused: topic {topic}: {reason}")
    if made.moves and not made.executed:
        notice("nothing was moved: add --execute (drain: leave --dry-run out)")


def _moves_table(moves: list[models.PlannedReplicas]) -> Table:
    return tables.table(
        ("topic", ">partition", "replicas", "target"),
        [
            (each.topic, each.partition, tables.ids(each.replicas), tables.ids(each.target))
            for each in moves
        ],
    )


def _show_progress(now: models.ReassignmentProgress, shown: OutputFormat) -> None:
    if shown is OutputFormat.JSON:
        print_json(now)
        return
    if now.state == "none":
        print_tables("no replicas are being moved")
        return
    left = "" if now.bytes_remaining is None else f", {tables.size(now.bytes_remaining)} to copy"
    print_tables(f"{now.state}: {now.done} of {now.total} partition(s) done{left}")
    rows = [
        (
            each.topic, each.partition, tables.ids(each.replicas), tables.ids(each.target),
            each.state, each.reason,
        )
        for each in now.partitions[:SHOWN_MAX]
    ]  # fmt: skip
    header = ("topic", ">partition", "replicas", "target", "state", "waits for")
    print_tables(tables.table(header, rows))


def _say(placed: models.BrokerPlacement) -> None:
    state = "cordoned" if placed.cordoned else "not cordoned"
    print_tables(f"broker {placed.id} is {state} and has {placed.replicas} replica(s)")


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        fail(f"error: --brokers {text!r} is not a list of ids as in 0,1,2", code=WRONG_USAGE)


def _read_plan(path: Path) -> Plan:
    """A plan by hand, or as this program printed it."""
    try:
        found: Any = msgspec.json.decode(path.read_bytes())
        if isinstance(found, dict) and isinstance(found.get("moves"), list):
            printed = msgspec.convert(found, models.ReassignmentPlan)
            return {(each.topic, each.partition): each.target for each in printed.moves}
        by_name = msgspec.convert(found, dict[str, list[int]])
        return {_where(name): brokers for name, brokers in by_name.items()}
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        fail(f"error: the plan in {path} can't be read: {error}", code=WRONG_USAGE)


def _where(name: str) -> tuple[str, int]:
    topic, slash, partition = name.rpartition("/")
    if not slash or not partition.isdecimal():
        raise ValueError(f"{name!r} is not TOPIC/PARTITION")
    return topic, int(partition)
