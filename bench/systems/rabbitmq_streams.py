"""RabbitMQ streams: Debian's rabbitmq-server with its stream plugin, and rstream."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

from headrace.cli.bench.workload import chunks
from systems.base import (
    PRODUCING,
    STALLED_S,
    VALUES,
    Level,
    Missing,
    OnValue,
    Over,
    Send,
    SendOne,
    Stalled,
    System,
    Tasks,
    Work,
)
from systems.server import Server, find_program, free_port, listens

try:
    import rstream
except ImportError:
    rstream = None

BATCH = 1_000
"""Records a `send_batch`."""

UNCONFIRMED_MAX = 50_000
"""Records sent and not confirmed, so that a round is bounded like everybody's."""

CREDIT = 100
"""Chunks that the server may send ahead; rstream's default is 10."""

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's rabbitmq-server in /usr/sbin insists on the user rabbitmq and its own folders; this is
the script behind it."""

LEVEL = Level(
    acks="confirmed",
    flush="none",
    works=PRODUCING | {Work.LISTS, Work.ITERATE, Work.LATENCY},
    settings="batches of 1,000; credit 100",
)

CONFIG = """listeners.tcp = none
loopback_users.guest = true
stream.listeners.tcp.1 = 127.0.0.1:{port}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {port}
log.console = true
log.console.level = warning
log.file = false
"""


class RabbitMQ(System):
    """One node; a stream without replicas."""

    name = "RabbitMQ streams"
    levels = (LEVEL,)
    records = {
        Work.BULK: 200_000,
        Work.EACH: 200_000,
        Work.LISTS: 300_000,
        Work.ITERATE: 300_000,
    }

    def check(self) -> None:
        """Client, server script, epmd."""
        if rstream is None:
            raise Missing("rstream is not installed (bench/requirements.txt)")
        find_program("rabbitmq-server", package="rabbitmq-server")
        if not Path(SERVER).exists():
            raise Missing(f"{SERVER} is not there: only Debian's package is known")
        self._epmd_path = find_program("epmd", package="rabbitmq-server")

    async def start(self, folder: Path) -> None:
        """An epmd of its own, so that none stays behind, and the node."""
        self._port = free_port()
        epmd_port, dist_port = free_port(), free_port()
        (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (folder / "rabbitmq.conf").write_text(CONFIG.format(port=self._port))
        environment = {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"headrace-bench-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
        }
        log = folder / "rabbitmq.log"
        epmd = [self._epmd_path, "-port", str(epmd_port), "-address", "127.0.0.1"]
        self._epmd = Server(epmd, log=folder / "epmd.log", environment={})
        await self._epmd.until(listens(epmd_port))
        self._server = Server([SERVER], log=log, environment=environment)
        await self._server.until(listens(self._port))
        found = re.search(r"RabbitMQ (\d+\.\d+\.\d+)", log.read_text(errors="replace"))
        self._version = found[1] if found else "of unknown version"

    async def stop(self) -> None:
        """The node drains at SIGTERM; then its epmd."""
        await self._server.stop()
        await self._epmd.stop()

    def versions(self) -> str:
        """Server (from its log of the start) and client."""
        return f"{self._version}, rstream {importlib.metadata.version('rstream')}"

    def server_pid(self) -> int:
        """The start script's, whose child is the Erlang machine."""
        return self._server.pid

    def _account(self) -> dict[str, object]:
        return {
            "host": "127.0.0.1",
            "port": self._port,
            "username": "guest",
            "password": "guest",
        }

    async def new_stream(self, name: str, level: Level) -> None:
        """A stream with the plugin's defaults."""
        async with rstream.Producer(**self._account()) as producer:
            await producer.create_stream(name)

    async def drop_stream(self, name: str) -> None:
        """Delete it."""
        async with rstream.Producer(**self._account()) as producer:
            await producer.delete_stream(name)

    async def stored(self, name: str) -> int:
        """The protocol has no cheap count: read until nothing more comes."""
        count = 0

        def take(value: bytes, context: object) -> None:
            nonlocal count
            count += 1

        async with rstream.Consumer(**self._account()) as consumer:
            await consumer.subscribe(name, take, initial_credit=CREDIT)
            seen = -1
            while count > seen:
                seen = count
                await asyncio.sleep(0.5)
        return count

    @contextlib.asynccontextmanager
    async def producer(self, stream: str, level: Level, work: Work) -> AsyncIterator[Send]:
        """`send_batch` with confirmations counted; one by one, the program fills the list itself,
        because rstream's own buffer (`send`) leaves twice a second only."""
        async with rstream.Producer(**self._account()) as producer:
            confirms = Confirms()

            async def bulk(records: int) -> None:
                target = confirms.confirmed + records
                for piece in chunks(VALUES, records, BATCH):
                    await producer.send_batch(stream, piece, on_publish_confirm=confirms)
                    confirms.sent += len(piece)
                    await confirms.until(confirms.sent - UNCONFIRMED_MAX)
                await confirms.until(target)

            async def each(records: int) -> None:
                target = confirms.confirmed + records
                batch: list[bytes] = []
                for piece in chunks(VALUES, records, BATCH):
                    for value in piece:
                        batch.append(value)
                        if len(batch) == BATCH:
                            await producer.send_batch(stream, batch, on_publish_confirm=confirms)
                            confirms.sent += BATCH
                            batch = []
                            await confirms.until(confirms.sent - UNCONFIRMED_MAX)
                if batch:
                    await producer.send_batch(stream, batch, on_publish_confirm=confirms)
                    confirms.sent += len(batch)
                await confirms.until(target)

            yield bulk if work is Work.BULK else each

    async def consume(self, stream: str, records: int, work: Work, over: Over) -> int:
        """A callback for each message is the only way: lists and one by one are the same."""
        count = size = 0
        done = asyncio.Event()

        def take(value: bytes, context: object) -> None:
            nonlocal count, size
            count += 1
            size += len(value)
            if count == records:
                done.set()

        async with rstream.Consumer(**self._account()) as consumer:
            await consumer.subscribe(stream, take, initial_credit=CREDIT)
            try:
                await asyncio.wait_for(done.wait(), STALLED_S)
            except TimeoutError:
                raise Stalled(f"RabbitMQ gave {count:,} of {records:,} records") from None
            over()
        return size

    @contextlib.asynccontextmanager
    async def live(self, stream: str, level: Level, on_value: OnValue) -> AsyncIterator[SendOne]:
        """`send_wait`, which publishes at once, in a task for each record."""
        account = self._account()
        async with rstream.Producer(**account) as producer, rstream.Consumer(**account) as consumer:
            await consumer.subscribe(
                stream, lambda value, context: on_value(value), initial_credit=CREDIT
            )
            tasks = Tasks()
            yield lambda value: tasks.start(producer.send_wait(stream, value))
            await tasks.finish()


class Confirms:
    """Counts confirmations; rstream calls it once a record."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self._failed = 0
        self._more = asyncio.Event()

    def __call__(self, status: object) -> None:
        self.confirmed += 1
        self._failed += not status.is_confirmed  # type: ignore[attr-defined]
        self._more.set()

    async def until(self, target: int) -> None:
        """Wait until so many are confirmed."""
        while self.confirmed < target:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), STALLED_S)
        if self._failed:
            raise Stalled(f"RabbitMQ refused {self._failed:,} records")
