"""`headrace consume`: records to standard output, in whatever form."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.cli.line_format import LETTERS_HELP, FormatFault, Render, compile_format
from headrace.cli.options import Bootstrap, bootstrap_of
from headrace.cli.output import notice
from headrace.cli.session import run
from headrace.cli.streams import reader_may_leave
from headrace.protocol.errors import HeadraceError, OffsetOutOfRange
from headrace.protocol.ids import TopicPartition
from headrace.protocol.record import Record
from headrace.sdk import Consumer

FETCH_MAX = 5_000
"""Records printed at once."""

COMMIT_EVERY_S = 1.0
"""Between two commits of what has been printed."""

LAST_COMMIT_S = 5.0
"""How long the commit at the end may take."""

END_POLL_S = 0.2
"""With --exit-at-end: pause between two looks whether the end is reached, when nothing comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to read and when to stop."""

    topics: tuple[str, ...]
    group: str | None
    from_beginning: bool
    offset: int | None
    partition: int | None
    max_records: int | None
    exit_at_end: bool


def consume(
    ctx: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Start where this group committed, and commit what has been printed.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start with the oldest record (with --group: where nothing is committed)."
            " Else only new records are read.",
        ),
    ] = False,
    offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Start at this offset.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Read only this partition.")
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N records.")
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option("--exit-at-end", help="Stop at what was the end when the command started."),
    ] = False,
    line_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help=LETTERS_HELP)
    ] = "%v",
    null_value: Annotated[
        str, typer.Option(metavar="TEXT", help="Shown for a null key or value; JSON has null.")
    ] = "",
    bootstrap: Bootstrap = None,
) -> None:
    """Print records, each followed by a newline, until Ctrl-C, --max or --exit-at-end.

    Keys and values are printed as the bytes they are; in JSON as text, or as {"base64": ...} where
    they are not UTF-8.
    """
    if from_beginning and offset is not None:
        raise typer.BadParameter("choose one of --from-beginning and --offset")
    try:
        render = compile_format(line_format, null=os.fsencode(null_value))
    except FormatFault as error:
        raise typer.BadParameter(str(error), param_hint="--format") from error
    wanted = Wanted(
        topics=tuple(topics),
        group=group,
        from_beginning=from_beginning,
        offset=offset,
        partition=partition,
        max_records=max_records,
        exit_at_end=exit_at_end,
    )
    address = bootstrap_of(ctx, bootstrap)
    with reader_may_leave():
        run(_consume(address, wanted, render), bootstrap=address)


async def _consume(bootstrap: str, wanted: Wanted, render: Render) -> None:
    from_start = wanted.from_beginning or wanted.offset is not None
    topics = wanted.topics if wanted.partition is None else ()
    printed = _Printed(commits=wanted.group is not None)
    async with Consumer(
        bootstrap,
        *topics,
        group=wanted.group,
        offset_reset="earliest" if from_start else "latest",
        auto_commit=False,
        on_revoked=printed.let_go,
        on_lost=printed.forget,
    ) as consumer:
        if wanted.partition is not None:
            await consumer.assign((topic, wanted.partition) for topic in wanted.topics)
        if wanted.offset is not None:
            await _seek(consumer, wanted.offset)
        await _print_records(consumer, wanted, render, printed)


async def _seek(consumer: Consumer, offset: int) -> None:
    """Go to the offset in every partition read.

    Raises:
        OffsetOutOfRange: a partition has no such offset; nothing is skipped silently.
    """
    await consumer.seek_to_earliest()
    lags = await consumer.lag()
    for where, lag in lags.items():
        start = await consumer.position(where) or 0
        if not start <= offset <= start + lag:
            raise OffsetOutOfRange(
                f"{where.topic}/{where.partition} has offsets {start} to {start + lag},"
                f" not {offset}",
                details={"log_start_offset": start, "log_end_offset": start + lag},
            )
        await consumer.seek(where, offset)


async def _print_records(
    consumer: Consumer, wanted: Wanted, render: Render, printed: _Printed
) -> None:
    ends = await _ends(consumer) if wanted.exit_at_end else None
    left = wanted.max_records
    try:
        while left != 0 and not (ends is not None and await _reached(consumer, ends)):
            records = await consumer.fetch(
                max_records=FETCH_MAX if left is None else min(left, FETCH_MAX),
                timeout=None if ends is None else END_POLL_S,
            )
            if records:
                await printed.add(consumer, records, render)
                left = None if left is None else left - len(records)
    finally:
        await printed.finish(consumer)


async def _ends(consumer: Consumer) -> dict[TopicPartition, int]:
    """Where each partition ends now."""
    lags = await consumer.lag()
    return {where: (await consumer.position(where) or 0) + lag for where, lag in lags.items()}


async def _reached(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    """Whether all has been printed that was there at the start (but for what the group has given to
    another member)."""
    for where, end in ends.items():
        if where in consumer.assignment and (await consumer.position(where) or 0) < end:
            return False
    return True


class _Printed:
    """Writes records out and commits them afterwards: what wasn't printed comes again."""

    def __init__(self, *, commits: bool) -> None:
        self._commits = commits
        self._offsets: dict[tuple[str, int], int] = {}
        self._committed_at = time.monotonic()

    async def add(self, consumer: Consumer, records: Sequence[Record], render: Render) -> None:
        """Print the records; commit if the last commit is long enough ago."""
        sys.stdout.buffer.write(render(records))
        sys.stdout.buffer.flush()
        if not self._commits:
            return
        for record in records:
            self._offsets[record.topic, record.partition] = record.offset + 1
        if time.monotonic() - self._committed_at >= COMMIT_EVERY_S:
            await self._commit(consumer)

    async def let_go(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Commit what is printed of partitions that go to another member."""
        gone: dict[tuple[str, int], int] = {
            where: self._offsets.pop(where) for where in partitions if where in self._offsets
        }
        if gone:
            await consumer.commit(gone)

    def forget(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were lost: whoever has them prints those records again."""
        for where in partitions:
            self._offsets.pop(where, None)

    async def finish(self, consumer: Consumer) -> None:
        """Commit what is printed, also when Ctrl-C or an error ends the command."""
        if not self._offsets:
            return
        try:
            async with asyncio.timeout(LAST_COMMIT_S):
                await self._commit(consumer)
        except TimeoutError:
            notice("the last offsets could not be committed in time: some records will come again")
        except HeadraceError as error:
            notice(f"the last offsets could not be committed: {error.message} ({error.code})")

    async def _commit(self, consumer: Consumer) -> None:
        offsets, self._offsets = self._offsets, {}
        await consumer.commit(offsets)
        self._committed_at = time.monotonic()
