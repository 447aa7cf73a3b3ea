"""Producers of a simulated world: idempotent, with bounded retries, through any broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.protocol import batch
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.requests import ProduceResult
from testkit.simulation.broker import SimBroker, ask
from testkit.simulation.loop import Process

if TYPE_CHECKING:
    from testkit.simulation.world import World

ATTEMPTS_MAX = 30
"""Tries for one record; then the producer begins anew, as another one."""

TIMEOUT_MS = 2_000
"""How long a broker waits for replicas."""


class Producer:
    """Sends records one after another to one partition and tells the checker of each answer."""

    def __init__(self, world: World, number: int, *, acks: int = -1, partition: int = 0) -> None:
        self.world = world
        self.process = Process(world.loop, f"p{number}")
        self.acks = acks
        self.partition = partition
        self.sequence = 0
        self.sent = 0
        self.acked = 0
        self._producer_id = self._new_id()
        self._target: SimBroker | None = None

    def _new_id(self) -> int:
        return self.world.rng.getrandbits(62)

    @property
    def where(self) -> TopicIdPartition:
        """The partition it writes to."""
        return TopicIdPartition(self.world.topic_id, self.partition)

    async def run(self, count: int, *, pause_s: float) -> None:
        """Sends so many records."""
        for _ in range(count):
            await asyncio.sleep(pause_s * self.world.rng.random())
            await self.send()

    async def send(self) -> bool:
        """Sends the next record; whether it was acknowledged."""
        sealed, seal = self._sealed()
        self.sent += 1
        for attempt in range(ATTEMPTS_MAX):
            target = self._target or self.world.rng.choice(self.world.brokers)
            try:
                result = await self._try(target, sealed)
            except HeadraceError as error:
                self.world.trace(
                    f"{self.process.name}: r{self.sequence} not at {target.name}: {error.code}"
                )
                self._target = None
                if error.code in ("out_of_order_sequence", "fenced"):
                    break
                await asyncio.sleep(0.05 * self.world.rng.random() * 2 ** min(attempt, 5))
                continue
            self._target = target
            self._acknowledged(result, seal)
            self.sequence += 1
            return True
        self._producer_id, self.sequence = self._new_id(), 0
        return False

    def _sealed(self) -> tuple[bytes, int]:
        sealed = bytes(
            batch.encode_records(
                [(None, b"v", 0, None)], producer_id=self._producer_id, producer_epoch=0,
                base_sequence=self.sequence,
            )
        )  # fmt: skip
        return sealed, batch.read_header(sealed).sealed_crc

    def _acknowledged(self, result: ProduceResult, seal: int) -> None:
        self.acked += 1
        self.world.trace(
            f"{self.process.name}: r{self.sequence} acknowledged at {result.base_offset}"
        )
        self.world.checker.acked(self.where, result.base_offset, seal, acks=self.acks)

    async def _try(self, target: SimBroker, sealed: bytes) -> ProduceResult:
        async def serve(broker: SimBroker) -> ProduceResult:
            return await broker.produce(self.where, sealed, acks=self.acks, timeout_ms=TIMEOUT_MS)

        return await ask(
            self.world, self.process, target, "produce", serve, timeout_s=TIMEOUT_MS / 1000 + 1
        )

    async def send_once(self, target: SimBroker) -> bool:
        """Sends the present record to one broker, without retry; whether it was acknowledged."""
        sealed, seal = self._sealed()
        try:
            result = await self._try(target, sealed)
        except HeadraceError as error:
            self.world.trace(f"{self.process.name}: not at {target.name}: {error.code}")
            return False
        self._acknowledged(result, seal)
        return True
