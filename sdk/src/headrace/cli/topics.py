"""`headrace topic ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import tables
from headrace.cli.options import (
    Bootstrap,
    Config,
    Output,
    OutputFormat,
    bootstrap_of,
    config_of,
    output_of,
)
from headrace.cli.output import notice, print_json, print_tables
from headrace.cli.session import WRONG_USAGE, fail, run_admin
from headrace.protocol import cluster_models, models
from headrace.protocol.errors import TopicExists, TopicNotFound
from headrace.sdk import Admin

topic_app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, delete topics.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


@topic_app.command()
def create(
    ctx: typer.Context,
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option(help="How many partitions.", show_default="the cluster's: 6")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Copies of each partition.", show_default="the cluster's")
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Create a topic."""
    settings = config_of(config)

    async def work(admin: Admin) -> models.TopicInfo:
        try:
            return await admin.create_topic(
                topic, partitions=partitions, replicas=replicas, config=settings
            )
        except TopicExists:
            if not if_not_exists:
                raise
            return await admin.describe_topic(topic)

    made = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(made)
    else:
        print_tables(
            f"topic {made.name}: {len(made.partitions)} partition(s),"
            f" {made.replicas} replica(s), id {made.topic_id}"
        )


@topic_app.command("list")
def list_topics(
    ctx: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="The system's topics too.")] = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """List the topics."""
    address = bootstrap_of(ctx, bootstrap)
    found = run_admin(address, lambda admin: admin.list_topics(internal=internal))
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(found)
    else:
        print_tables(tables.topics(found))


@topic_app.command()
def describe(
    ctx: typer.Context, topic: TopicName, bootstrap: Bootstrap = None, output: Output = None
) -> None:
    """Show a topic's settings and partitions."""
    found = run_admin(bootstrap_of(ctx, bootstrap), lambda admin: admin.describe_topic(topic))
    _show(found, output_of(ctx, output))


@topic_app.command()
def alter(
    ctx: typer.Context,
    topic: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(help="New, larger count. Keys may move to other partitions from then on."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(help="New number of copies; they are made or dropped in the background."),
    ] = None,
    config: Config = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Back to the default; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Change a topic's settings, partitions or replicas."""
    changes: dict[str, models.ConfigValue | None] = {**config_of(config)}
    changes.update(dict.fromkeys(unset or []))
    if not changes and partitions is None and replicas is None:
        fail(
            "error: nothing to change: give --config, --unset, --partitions or --replicas",
            code=WRONG_USAGE,
        )
    altered = run_admin(
        bootstrap_of(ctx, bootstrap),
        lambda admin: admin.alter_topic(
            topic, config=changes, partitions=partitions, replicas=replicas
        ),
    )
    _show(altered, output_of(ctx, output))


@topic_app.command()
def delete(
    ctx: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False)],
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="A topic that isn't there is fine.")
    ] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete topics with all their records. There is no way back."""

    async def work(admin: Admin) -> None:
        for topic in topics:
            await _delete(admin, topic, if_exists)

    run_admin(bootstrap_of(ctx, bootstrap), work)


async def _delete(admin: Admin, topic: str, if_exists: bool) -> None:
    try:
        await admin.delete_topic(topic)
        notice(f"topic {topic} deleted")
    except TopicNotFound:
        if not if_exists:
            raise


def _show(topic: models.TopicInfo, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(topic)
        return
    title = f"topic {topic.name}, id {topic.topic_id}, {topic.replicas} replica(s)"
    print_tables(title, tables.topic_settings(topic), tables.topic_partitions(topic))


@topic_app.command("elect-leader")
def elect_leader(
    ctx: typer.Context,
    topic: TopicName,
    partition: Annotated[int, typer.Option(help="Which partition.", show_default=False)],
    broker: Annotated[int, typer.Option(help="The broker that shall lead.", show_default=False)],
    unclean: Annotated[
        bool, typer.Option("--unclean", help="It leads although records may be missing there.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, lose what it lacks.")] = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Make a broker lead a partition with what it has, when those with all records are gone."""
    if not (unclean and yes):
        fail(
            f"whatever broker {broker}'s replica of {topic}/{partition} lacks is lost for good: if"
            " nobody who has it can be brought back, say so with --unclean --yes",
            code=WRONG_USAGE,
        )

    async def work(admin: Admin) -> cluster_models.ElectedLeader:
        return await admin.elect_leader(topic, partition, broker, unclean=True)

    made = run_admin(bootstrap_of(ctx, bootstrap), work)
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(made)
        return
    notice(f"broker {made.leader} leads {topic}/{partition} in epoch {made.leader_epoch}")
