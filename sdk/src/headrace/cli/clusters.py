"""`headrace cluster ...`."""

from __future__ import annotations

import asyncio

import msgspec
import typer

from headrace.cli import tables
from headrace.cli.options import Bootstrap, Output, OutputFormat, bootstrap_of, output_of
from headrace.cli.output import print_json, print_tables
from headrace.cli.session import run_admin
from headrace.protocol import models
from headrace.protocol.errors import HeadraceError
from headrace.sdk import Admin

cluster_app = typer.Typer(no_args_is_help=True, help="Look at the cluster and its brokers.")


@cluster_app.callback()
def cluster() -> None:
    """Look at the cluster and its brokers."""


@cluster_app.command()
def describe(ctx: typer.Context, bootstrap: Bootstrap = None, output: Output = None) -> None:
    """Show the cluster and its brokers."""

    async def work(admin: Admin) -> tuple[models.ClusterInfo, list[models.BrokerInfo]]:
        info = await admin.describe_cluster()
        details = await asyncio.gather(*[_detail(admin, broker) for broker in info.brokers])
        return info, details

    info, brokers = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        fields = msgspec.to_builtins(info)
        fields["brokers"] = [msgspec.to_builtins(broker) for broker in brokers]
        print_json(fields)
        return
    title = f"cluster {info.cluster_id}: {info.topics} topic(s), {info.partitions} partition(s)"
    print_tables(title, tables.brokers(brokers, controller_id=info.controller_id))


async def _detail(admin: Admin, broker: models.BrokerInfo) -> models.BrokerInfo:
    """The broker from within, or what the cluster says of it when it doesn't answer."""
    try:
        return await admin.describe_broker(broker.id)
    except HeadraceError:
        return broker
