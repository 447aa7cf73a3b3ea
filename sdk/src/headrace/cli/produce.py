"""`headrace produce`: lines of standard input become records."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer
from rich.progress import Progress

from headrace.cli import tables
from headrace.cli.line_format import FormatFault, LineFault, parse_line, unescape
from headrace.cli.line_source import LineSource
from headrace.cli.options import Acks, Bootstrap, Compression, bootstrap_of, pairs_of
from headrace.cli.output import notice, progress
from headrace.cli.session import WRONG_USAGE, fail, run
from headrace.protocol.errors import BufferFull, HeadraceError
from headrace.protocol.record import Headers
from headrace.sdk import Producer
from headrace.sdk.producer import Handle

PENDING_MAX = 50_000
"""Records sent and not yet known to be acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """How a line becomes a record."""

    topic: str
    partition: int | None
    separator: bytes | None
    null: bytes | None
    headers: Headers | None


@dataclass(slots=True)
class Sent:
    """How far the sending has come."""

    lines: int = 0
    acknowledged: int = 0
    value_bytes: int = 0
    pending: deque[Handle] = field(default_factory=deque)


def produce(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="A line is key, TEXT, value; the first TEXT counts. \\t and \\xHH are escapes.",
            show_default="no key",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="Send all there.", show_default="the key decides"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A header of every record; may be repeated."),
    ] = None,
    acks: Annotated[
        Acks, typer.Option(help="Who must have a record: all in-sync replicas, the leader, nobody.")
    ] = Acks.ALL,
    compression: Annotated[
        Compression | None, typer.Option(show_default="the topic's compression.type")
    ] = None,
    null_value: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A key or value that is exactly TEXT becomes null."),
    ] = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Send each line of standard input as a record; a summary goes to stderr.

    Lines end with a newline (the last one may lack it); all other bytes are sent as they are.
    """
    options = LineOptions(
        topic=topic,
        partition=partition,
        separator=_separator(key_separator),
        null=None if null_value is None else os.fsencode(null_value),
        headers={name: os.fsencode(text) for name, text in _headers(header).items()} or None,
    )
    address = bootstrap_of(ctx, bootstrap)
    work = _produce(address, options, acks=acks, compression=compression)
    run(work, bootstrap=address)


def _headers(given: list[str] | None) -> dict[str, str]:
    return pairs_of(given, flag="--header")


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        separator = unescape(text)
    except FormatFault as error:
        raise typer.BadParameter(str(error), param_hint="--key-separator") from error
    if not separator:
        raise typer.BadParameter("can't be empty", param_hint="--key-separator")
    return separator


async def _produce(
    bootstrap: str, options: LineOptions, *, acks: Acks, compression: Compression | None
) -> None:
    source = LineSource(sys.stdin.fileno())
    codec: Literal["none", "lz4", "zstd"] | None = (
        None if compression is None else compression.value
    )
    sent = Sent()
    began = time.perf_counter()
    try:
        async with Producer(bootstrap, acks=acks.value, compression=codec) as producer:
            with _bar() as bar:
                await _send_all(producer, source, options, sent, bar)
    except LineFault as fault:
        summary = _summary(sent, options.topic, time.perf_counter() - began)
        fail(f"error: line {sent.lines + 1}: {fault}\n{summary}", code=WRONG_USAGE)
    except HeadraceError:
        notice(_summary(sent, options.topic, time.perf_counter() - began))
        raise
    notice(_summary(sent, options.topic, time.perf_counter() - began))


async def _send_all(
    producer: Producer, source: LineSource, options: LineOptions, sent: Sent, bar: Progress
) -> None:
    """Send line after line; what was sent before a line that can't be sent is waited for."""
    task = bar.add_task(f"producing to {options.topic}", total=_input_bytes())
    try:
        async for lines in source.lines():
            await _send_lines(producer, lines, options, sent)
            await producer.ready()
            await _settle(sent, keep=0 if source.idle else PENDING_MAX)
            bar.update(task, completed=source.bytes_read)
    except LineFault:
        await _settle(sent, keep=0)
        raise
    await _settle(sent, keep=0)


def _bar() -> Progress:
    """A bar while a file or pipe is read; none for somebody who types."""
    bar = progress(unit="bytes")
    bar.disable = bar.disable or sys.stdin.isatty()
    return bar


def _input_bytes() -> int | None:
    """The size of the input if it is a file."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _summary(sent: Sent, topic: str, elapsed_s: float) -> str:
    rate = sent.acknowledged / elapsed_s if elapsed_s else 0.0
    text = (
        f"{sent.acknowledged:,} record(s), {tables.size(sent.value_bytes)} of values, to {topic}"
        f" in {elapsed_s:.1f} s ({rate:,.0f} records/s)"
    )
    missing = sent.lines - sent.acknowledged
    return f"{text}; {missing:,} not acknowledged" if missing else text


async def _send_lines(
    producer: Producer, lines: list[bytes], options: LineOptions, sent: Sent
) -> None:
    """Hand lines to the producer, waiting for room where its buffer is full."""
    for line in lines:
        key, value = parse_line(line, separator=options.separator, null=options.null)
        while True:
            try:
                handle = producer.enqueue(
                    options.topic,
                    value,
                    key=key,
                    headers=options.headers,
                    partition=options.partition,
                )
                break
            except BufferFull:
                await producer.ready()
        sent.pending.append(handle)
        sent.lines += 1
        sent.value_bytes += len(value or b"")


async def _settle(sent: Sent, *, keep: int) -> None:
    """Wait for the oldest records until at most `keep` are unknown; the first failure is raised."""
    while len(sent.pending) > keep:
        await sent.pending.popleft()
        sent.acknowledged += 1
