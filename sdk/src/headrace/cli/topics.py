"""`headrace topic ...`."""

from __future__ import annotations

from collections.abc import Collection
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
from headrace.cli.session import REFUSED, WRONG_USAGE, fail, run_admin
from headrace.protocol import cluster_models, models
from headrace.protocol.errors import TopicExists, TopicNotFound
from headrace.sdk import Admin

topic_app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, delete topics.")

TROUBLED_MAX = 10_000
"""Partitions with problems that are shown at most."""

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)]


@topic_app.command()
def create(
    ctx: typer.Context,
    topics: TopicNames,
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
    """Create a topic, or many alike in one call."""
    settings = config_of(config)
    address, shown = bootstrap_of(ctx, bootstrap), output_of(ctx, output)
    if len(topics) > 1:
        wanted = [models.TopicCreate(name, partitions, replicas, dict(settings)) for name in topics]
        outcomes = run_admin(address, lambda admin: admin.create_topics(wanted))
        fine = {TopicExists.code} if if_not_exists else set[str]()
        _show_outcomes(outcomes, shown, done="created", fine=fine)
        return
    topic = topics[0]

    async def work(admin: Admin) -> models.TopicInfo:
        try:
            return await admin.create_topic(
                topic, partitions=partitions, replicas=replicas, config=settings
            )
        except TopicExists:
            if not if_not_exists:
                raise
            return await admin.describe_topic(topic)

    made = run_admin(address, work)
    if shown is OutputFormat.JSON:
        print_json(made)
    else:
        print_tables(
            f"topic {made.name}: {len(made.partitions)} partition(s),"
            f" {made.replicas} replica(s), id {made.topic_id}"
        )


def _show_outcomes(
    outcomes: list[cluster_models.TopicOutcome],
    shown: OutputFormat,
    *,
    done: str,
    fine: Collection[str] = (),
) -> None:
    """What became of each topic; exit code 1 if one failed otherwise than by a `fine` code."""
    failed = [each for each in outcomes if each.error and each.error.code not in fine]
    if shown is OutputFormat.JSON:
        print_json({"topics": outcomes})
    else:
        good = sum(each.error is None for each in outcomes)
        print_tables(f"{good:,} of {len(outcomes):,} topic(s) {done}")
    for each in failed:
        assert each.error is not None
        notice(f"error: {each.name}: {each.error.message} ({each.error.code})")
    if failed:
        raise typer.Exit(REFUSED)


UnderReplicated = Annotated[
    bool,
    typer.Option("--under-replicated", help="Only partitions with a replica out of sync."),
]
UnderMinIsr = Annotated[
    bool,
    typer.Option("--under-min-isr", help="Only partitions that refuse acks=all."),
]
Offline = Annotated[bool, typer.Option("--offline", help="Only partitions that nobody leads.")]


def _problem(*, under_replicated: bool, under_min_isr: bool, offline: bool) -> str | None:
    """The one problem that is asked for."""
    chosen = {
        "under_replicated": under_replicated,
        "under_min_isr": under_min_isr,
        "offline": offline,
    }
    asked = [name for name, is_asked in chosen.items() if is_asked]
    if len(asked) > 1:
        fail("error: give one of --under-replicated, --under-min-isr, --offline", code=WRONG_USAGE)
    return asked[0] if asked else None


@topic_app.command("list")
def list_topics(
    ctx: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="The system's topics too.")] = False,
    under_replicated: UnderReplicated = False,
    under_min_isr: UnderMinIsr = False,
    offline: Offline = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """List the topics: all, or those with partitions that have a problem."""
    address = bootstrap_of(ctx, bootstrap)
    problem = _problem(
        under_replicated=under_replicated, under_min_isr=under_min_isr, offline=offline
    )

    async def work(admin: Admin) -> models.TopicList:
        found = await admin.list_topics(internal=internal)
        if problem is not None:
            health = await admin.cluster_health(problem=problem, limit=TROUBLED_MAX)
            names = {each.topic for each in health.troubled}
            found.topics = [topic for topic in found.topics if topic.name in names]
        return found

    found = run_admin(address, work)
    if output_of(ctx, output) is OutputFormat.JSON:
        print_json(found)
    else:
        print_tables(tables.topics(found))


@topic_app.command()
def describe(
    ctx: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", show_default=False)] = None,
    under_replicated: UnderReplicated = False,
    under_min_isr: UnderMinIsr = False,
    offline: Offline = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """Show a topic's settings and partitions; or, of one or all, the partitions with a problem."""
    address = bootstrap_of(ctx, bootstrap)
    problem = _problem(
        under_replicated=under_replicated, under_min_isr=under_min_isr, offline=offline
    )
    if problem is not None:
        _show_troubled(address, problem, topic, output_of(ctx, output))
        return
    if topic is None:
        fail("error: name a TOPIC, or choose partitions with --offline or so", code=WRONG_USAGE)
    found = run_admin(address, lambda admin: admin.describe_topic(topic))
    _show(found, output_of(ctx, output))


def _show_troubled(address: str, problem: str, topic: str | None, output: OutputFormat) -> None:
    async def work(admin: Admin) -> cluster_models.ClusterHealth:
        if topic is not None:
            await admin.describe_topic(topic)
        return await admin.cluster_health(problem=problem, topic=topic, limit=TROUBLED_MAX)

    found = run_admin(address, work)
    if output is OutputFormat.JSON:
        print_json({"partitions": found.troubled})
        return
    what = problem.replace("_", " ")
    if not found.listed:
        print_tables(f"no partition is {what}")
        return
    print_tables(f"{found.listed:,} partition(s) {what}", tables.troubled(found))


@topic_app.command()
def alter(
    ctx: typer.Context,
    topics: TopicNames,
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
    """Change settings, partitions or replicas of a topic, or the same of many in one call."""
    changes: dict[str, models.ConfigValue | None] = {**config_of(config)}
    changes.update(dict.fromkeys(unset or []))
    if not changes and partitions is None and replicas is None:
        fail(
            "error: nothing to change: give --config, --unset, --partitions or --replicas",
            code=WRONG_USAGE,
        )
    address, shown = bootstrap_of(ctx, bootstrap), output_of(ctx, output)
    if len(topics) > 1:
        wanted = [
            cluster_models.NamedTopicAlter(dict(changes), partitions, replicas, name=name)
            for name in topics
        ]
        outcomes = run_admin(address, lambda admin: admin.alter_topics(wanted))
        _show_outcomes(outcomes, shown, done="altered")
        return
    altered = run_admin(
        address,
        lambda admin: admin.alter_topic(
            topics[0], config=changes, partitions=partitions, replicas=replicas
        ),
    )
    _show(altered, shown)


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
