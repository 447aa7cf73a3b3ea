"""`headrace cluster ...`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from headrace.cli import tables
from headrace.cli.options import (
    Bootstrap,
    Output,
    OutputFormat,
    bootstrap_of,
    config_of,
    output_of,
)
from headrace.cli.output import print_json, print_tables
from headrace.cli.session import REFUSED, WRONG_USAGE, fail, run_admin
from headrace.protocol import cluster_models, models
from headrace.protocol.errors import HeadraceError
from headrace.sdk import Admin

cluster_app = typer.Typer(no_args_is_help=True, help="Look at the cluster and its brokers.")


@cluster_app.callback()
def cluster() -> None:
    """Look at the cluster and its brokers."""


@cluster_app.command()
def describe(ctx: typer.Context, bootstrap: Bootstrap = None, output: Output = None) -> None:
    """Show the cluster and its brokers."""

    async def work(
        admin: Admin,
    ) -> tuple[models.ClusterInfo, list[models.BrokerInfo], cluster_models.ClusterHealth]:
        info = await admin.describe_cluster()
        health = await admin.cluster_health(limit=0)
        dead = {load.id for load in health.brokers if load.state == "dead"}
        details = await asyncio.gather(
            *[_detail(admin, broker, is_dead=broker.id in dead) for broker in info.brokers]
        )
        return info, details, health

    info, brokers, health = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        fields = msgspec.to_builtins(info)
        fields["brokers"] = [msgspec.to_builtins(broker) for broker in brokers]
        fields["health"] = msgspec.to_builtins(health)
        print_json(fields)
        return
    title = f"cluster {info.cluster_id}: {info.topics} topic(s), {info.partitions} partition(s)"
    print_tables(
        title,
        tables.brokers(brokers, controller_id=info.controller_id, loads=health.brokers),
        tables.health_line(health),
    )


@cluster_app.command()
def config(
    ctx: typer.Context,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a value; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Back to the default; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Show or change the settings of the whole cluster, while it runs."""
    changes: dict[str, models.ConfigValue | None] = {**config_of(set_, flag="--set")}
    changes.update(dict.fromkeys(unset or []))

    async def work(admin: Admin) -> dict[str, models.ConfigEntry]:
        return await (admin.alter_cluster_config(changes) if changes else admin.cluster_config())

    found = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json({"config": found})
        return
    print_tables("cluster settings", tables.settings(found))


@cluster_app.command("restart-check")
def restart_check(
    ctx: typer.Context,
    broker_id: Annotated[int, typer.Argument(metavar="ID", show_default=False)],
    after: Annotated[
        bool,
        typer.Option("--after", help="Ask whether it is whole again after its start."),
    ] = False,
    allow_unavoidable: Annotated[
        bool,
        typer.Option(
            "--allow-unavoidable",
            help="Partitions with too few replicas to do without any of them don't count.",
        ),
    ] = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Tell whether a broker may be stopped now; exit code 1 if not. Any doubt is a no."""
    phase: cluster_models.RestartPhase = "after" if after else "before"

    async def work(admin: Admin) -> cluster_models.RestartCheck:
        return await admin.restart_check(broker_id, phase=phase)

    check = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(check)
    else:
        _print_check(check)
    if check.blocking - (check.unavoidable if allow_unavoidable else 0):
        raise typer.Exit(REFUSED)


@cluster_app.command()
def recover(
    ctx: typer.Context,
    from_disks: Annotated[
        bool, typer.Option("--from-disks", help="From the copies on the brokers' disks.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; else it is only shown what would be done.")
    ] = False,
    accept_missing: Annotated[
        bool,
        typer.Option("--accept-missing", help="Though brokers are away that may know more."),
    ] = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Put a store right that went back in time (a restored backup) or was lost."""
    if not from_disks:
        fail("say where from: --from-disks", code=WRONG_USAGE)

    async def work(admin: Admin) -> cluster_models.RecoverAnswer:
        return await admin.recover(execute=execute, accept_missing=accept_missing)

    found = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(found)
        return
    _print_recovery(found)


def _print_recovery(found: cluster_models.RecoverAnswer) -> None:
    if not (found.cluster or found.topics or found.partition_count or found.skipped):
        print_tables("the store has the newest that any broker knows: nothing to do")
        return
    done = "put right" if found.executed else "to put right (with --execute)"
    head = f"{done}: {len(found.topics)} topic(s), {found.partition_count} partition(s)"
    if found.unheard:
        head += f"; not heard of: broker {', '.join(map(str, found.unheard))}"
    rows = [
        (each.topic, each.partition, each.store_epoch, each.partition_epoch, each.source)
        for each in found.partitions
    ]
    columns = ("topic", "partition", "store has", "written", "from broker")
    print_tables(head, tables.table(columns, rows), *(f"skipped: {s}" for s in found.skipped))


def _print_check(check: cluster_models.RestartCheck) -> None:
    yes, no = (
        ("may be stopped", "may not be stopped now")
        if check.phase == "before"
        else ("is whole", "isn't whole yet")
    )
    lines = [f"broker {check.broker_id} {yes if check.ok else no}"]
    for each in check.blockers:
        where = f"{each.topic}/{each.partition}: " if each.topic else ""
        lines.append(f"  {where}{each.reason}")
    if check.blocking > len(check.blockers):
        lines.append(f"  and {check.blocking - len(check.blockers)} more")
    print_tables("\n".join(lines))


async def _detail(admin: Admin, broker: models.BrokerInfo, *, is_dead: bool) -> models.BrokerInfo:
    """The broker from within, or what the cluster says of it when it doesn't answer."""
    if is_dead:
        return broker
    try:
        return await admin.describe_broker(broker.id)
    except HeadraceError:
        return broker
