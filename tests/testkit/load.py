"""Clients at work on a topic while a test breaks the cluster, writing down what they are told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.protocol.errors import HeadraceError
from headrace.sdk import Admin, Consumer, Producer
from testkit.history import History

KEYS = 5
DELIVERY_TIMEOUT_S = 60.0
PAUSE_S = 0.005
"""Between two sends of a writer: the machine has other things to do as well."""


@dataclass
class Load:
    """Writers and a reader on one topic; `history` grows while they work."""

    bootstrap: str
    topic: str
    partitions: int
    writers: int = 2
    history: History = field(default_factory=History)
    errors: list[HeadraceError] = field(default_factory=list)
    acknowledged_at: list[float] = field(default_factory=list)
    """When the writers were told, on the monotonic clock."""

    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, writer: int, dice: random.Random) -> None:
        """Sends bursts until it is over."""
        number = 0
        async with Producer(self.bootstrap, delivery_timeout=DELIVERY_TIMEOUT_S) as producer:
            while not self.done.is_set():
                sends = []
                for _ in range(dice.choice([1, 1, 3, 40])):
                    value = b"%d:%d:" % (writer, number) + b"x" * dice.randrange(60)
                    key = b"w%d-k%d" % (writer, number % KEYS)
                    sends.append(self.history.send(writer, key, value))
                    number += 1
                try:
                    places = await producer.send_many(
                        self.topic, [s.value for s in sends], keys=[s.key for s in sends]
                    )
                except HeadraceError as error:
                    self.errors.append(error)
                    return
                for send, place in zip(sends, places, strict=True):
                    send.place = (place.partition, place.offset)
                self.acknowledged_at.append(time.monotonic())
                await asyncio.sleep(PAUSE_S)

    async def read(self, reader: str) -> None:
        """Reads along until it is over."""
        async with Consumer(self.bootstrap, self.topic) as consumer:
            while not self.done.is_set():
                for record in await consumer.fetch(max_records=1_000, timeout=0.2):
                    self.history.saw(reader, record.partition, record.offset, record.value or b"")

    @asynccontextmanager
    async def running(self, seed: int) -> AsyncIterator[None]:
        """Everybody works while the block runs; afterwards the whole log is read."""
        async with asyncio.TaskGroup() as clients:
            for writer in range(self.writers):
                clients.create_task(self.write(writer, random.Random(seed + writer)))
            clients.create_task(self.read("along"))
            try:
                yield
            finally:
                self.done.set()
        self.history.final = await self.read_all()

    async def read_all(self) -> dict[int, list[tuple[int, bytes]]]:
        """The log from its first to its last record."""
        found: dict[int, list[tuple[int, bytes]]] = {part: [] for part in range(self.partitions)}
        async with Consumer(self.bootstrap, self.topic) as consumer:
            while True:
                records = await consumer.fetch(max_records=10_000, timeout=0.5)
                for record in records:
                    found[record.partition].append((record.offset, record.value or b""))
                if not records and not any((await consumer.lag()).values()):
                    return found

    def longest_pause_s(self, since: float, until: float) -> float:
        """The longest time without an acknowledgement between two moments."""
        inside = [since, *(at for at in self.acknowledged_at if since <= at <= until), until]
        return max(after - before for before, after in zip(inside, inside[1:], strict=False))


async def leaders_of(bootstrap: str, topic: str) -> dict[int, tuple[int | None, int]]:
    """Partition → leader and its epoch."""
    async with Admin(bootstrap) as admin:
        found = await admin.describe_topic(topic)
    return {part.partition: (part.leader, part.leader_epoch) for part in found.partitions}


async def until_in_sync(bootstrap: str, topic: str, *, timeout_s: float = 30.0) -> None:
    """Waits until every replica of the topic is in sync."""
    async with Admin(bootstrap) as admin, asyncio.timeout(timeout_s):
        while True:
            found = await admin.describe_topic(topic)
            if all(
                part.leader is not None and len(part.isr) == len(part.replicas)
                for part in found.partitions
            ):
                return
            await asyncio.sleep(0.05)
