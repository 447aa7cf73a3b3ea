"""One machine with, most of the time, a broker's process on it: production's `Node`, our ports."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from headrace.broker.api.auth import ANONYMOUS, Policy
from headrace.broker.api.produce import Produce
from headrace.broker.controller.timing import TimeSource
from headrace.broker.log.compactor import Done, Group, Job
from headrace.broker.log.files import Workers
from headrace.broker.log.volume import Volume
from headrace.broker.metrics import Metrics
from headrace.broker.node import Node, Ports
from headrace.broker.peers.base import PeerRefused
from headrace.broker.settings import Settings
from headrace.protocol.errors import ConnectionFailed, HeadraceError
from headrace.protocol.ids import TopicIdPartition
from headrace.protocol.requests import ProduceResult
from testkit.simulation.disk import Cut, Machine, SimDisk
from testkit.simulation.loop import Process
from testkit.simulation.store import SimStore
from testkit.simulation.wire import ANSWER, ASK, Message

if TYPE_CHECKING:
    from testkit.simulation.world import World

P = ParamSpec("P")
T = TypeVar("T")

RESTART_S = 1.0
"""A process that ended by itself starts again after so long."""

REQUESTS_END_S = 5
"""How long a stop waits for requests that are under way."""

_metrics = Metrics()


@dataclass(slots=True)
class SimClock:
    """A machine's clocks: `skew_ms` off the truth."""

    process: Process
    skew_ms: int

    def now_ms(self) -> int:
        return 1_800_000_000_000 + int(self.process.loop.now * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self.process.loop.now


class SimWorkers(Workers):
    """Threads: jobs begin and end some time later, each at one moment."""

    def __init__(self, rng: random.Random, slowest_s: float) -> None:
        self._rng = rng
        self._slowest_s = slowest_s

    async def run(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(self._slowest_s * self._rng.random())
        result = job(*args, **kwargs)
        await asyncio.sleep(0)
        return result

    def submit(self, job: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(self._slowest_s * self._rng.random(), job)

    def close(self) -> None:
        return


class NoCleaning:
    """Compaction has a simulation of its own (tests/properties); here nothing is cleaned."""

    async def run(self, job: Job) -> AsyncIterator[Group | Done]:
        raise ConnectionFailed("no compaction in the simulation")
        yield Done(*[])  # makes it a generator

    async def stop(self) -> int | None:
        return None


class SimPeers:
    """The other brokers, as one process reaches them."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    async def call(self, broker_id: int, path: str, body: bytes, *, timeout_s: float) -> memoryview:
        data = memoryview(bytes(body))

        async def serve(broker: SimBroker) -> memoryview:
            handler = broker.node.peer_handlers.get(path)
            if handler is None:
                raise ConnectionFailed(f"broker {broker_id} doesn't know {path}")
            return memoryview(b"".join(bytes(piece) for piece in await handler(data)))

        target = self._world.brokers[broker_id]
        return await ask(self._world, self._process, target, path, serve, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a process is working at."""

    source: str
    what: str
    answer: Callable[[object], None]


async def ask(
    world: World,
    process: Process,
    target: SimBroker,
    what: str,
    serve: Callable[[SimBroker], object],
    *,
    timeout_s: float,
) -> T:
    """Asks a broker's process from another process, over the wire.

    Raises:
        PeerRefused: no process there. ConnectionFailed: no answer. HeadraceError: its refusal.
    """
    loop, wire = world.loop, world.wire
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: object) -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def answer(result: object) -> None:
        wire.send(Message(ANSWER, target.name, process.name, what, lambda: settle(result)))

    async def work() -> None:
        target.asked[work] = Asked(process.name, what, answer)
        try:
            result: object = await serve(target)  # type: ignore[misc]
        except HeadraceError as error:
            result = error
        finally:
            target.asked.pop(work, None)
        answer(result)

    def arrive() -> None:
        if target.process is None or not target.is_listening:
            if target.is_powered:
                answer(PeerRefused(f"nobody listens at {target.name}"))
        else:
            target.process.spawn(work(), what)

    wire.send(Message(ASK, process.name, target.name, what, arrive))
    timer = loop.call_later(
        timeout_s, settle, ConnectionFailed(f"{target.name} didn't answer {what}")
    )
    try:
        return await future
    finally:
        timer.cancel()


class SimBroker:
    """A machine, its disk, and the broker's process on it, if any."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.name = f"b{broker_id}"
        self.machine = Machine(self.name, world.tally)
        self.skew_ms = 0
        self.process: Process | None = None
        self.is_listening = False
        self.is_powered = True
        self.is_wanted = False
        self.has_lost = False
        """Whether log bytes were lost since the last registration (A1)."""
        self.asked: dict[object, Asked] = {}
        self._node: Node | None = None
        self._disk: SimDisk | None = None
        self._store: SimStore | None = None
        self._produce: Produce | None = None

    @property
    def node(self) -> Node:
        """The running process's node."""
        assert self._node is not None
        return self._node

    @property
    def live(self) -> Process:
        """The running process."""
        assert self.process is not None
        return self.process

    @property
    def is_up(self) -> bool:
        """Whether a process runs and has a node."""
        return self.process is not None and self._node is not None

    @property
    def is_broken(self) -> bool:
        """Whether one of its logs is offline for good, in this process or for the next one."""
        files = self.machine.tree.files
        if any(p.endswith("/failed") and "/stray/" not in p for p in files):
            return True
        return self.is_up and any(p.log.failure is not None for p in self.node.partitions)

    @property
    def store(self) -> SimStore:
        """The running process's way to the store."""
        assert self._store is not None
        return self._store

    def start(self) -> None:
        """Starts a process, if none runs."""
        self.is_wanted = self.is_powered = True
        if self.process is not None:
            return
        self.world.trace(f"{self.name} starts")
        process = self.process = Process(self.world.loop, self.name)
        self._disk = SimDisk(self.machine)
        process.spawn(self._run(process, self._disk), "broker")

    async def _run(self, process: Process, disk: SimDisk) -> None:
        world = self.world
        try:
            volume = Volume.open("/data", broker_id=self.id, disk=disk)
            self._store = SimStore(world.cluster, process, world.wire)
            node = self._node = self._make_node(process, volume)
            await node.join()
            self.has_lost = False
            self.is_listening = True
            await node.serve()
            world.trace(f"{self.name} serves")
        except (HeadraceError, OSError) as error:
            world.trace(f"{self.name} can't start: {error}")
            self._end()
        except Exception as error:
            world.trace("".join(traceback.format_exception(error)))
            world.loop.errors.append(f"{self.name}'s start: {error!r}")

    def _make_node(self, process: Process, volume: Volume) -> Node:
        world = self.world
        clock = SimClock(process, self.skew_ms)
        settings = replace(Settings(data_dir="/data", broker_id=self.id), **world.settings)  # type: ignore[arg-type]
        node = Node(
            settings,
            volume,
            Ports(
                store=self.store,
                peers=SimPeers(world, process),
                clock=clock,
                time=TimeSource(lambda: world.loop.now, asyncio.sleep),
                workers=lambda _threads, _name: SimWorkers(world.rng, world.disk_s),
                cleaning=NoCleaning(),
                new_id=world.new_id,
            ),
            on_overtaken=self._overtaken,
        )
        self._produce = Produce(
            node.partitions, policy=Policy(b""), clock=clock, metrics=_metrics,
            disk=node.disk_guard, quotas=node.quotas,
        )  # fmt: skip
        return node

    def _overtaken(self, reason: str) -> None:
        self.world.trace(f"{self.name}: {reason}")
        self.world.loop.at(0.0, self._end)

    async def produce(
        self, where: TopicIdPartition, batch: bytes, *, acks: int, timeout_ms: int
    ) -> ProduceResult:
        """What POST /v1/produce does with one batch."""
        assert self._produce is not None
        outcome = await self._produce.append(
            where, memoryview(batch), acks=acks, principal=ANONYMOUS
        )
        if acks == -1:
            await self._produce.wait([outcome], timeout_ms=timeout_ms)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    # --- what befalls it --------------------------------------------------------------------------

    def _end(self) -> None:
        """The process ends by itself; something starts it again."""
        if self.process is None:
            return
        self.kill(wanted=self.is_wanted)
        self.world.loop.at(RESTART_S, self._again)

    def _again(self) -> None:
        if self.is_wanted and self.is_powered:
            self.start()

    def kill(self, *, wanted: bool = False) -> None:
        """SIGKILL: the disk keeps everything, whoever waits for an answer hears of it."""
        self.is_wanted = wanted
        process, self.process = self.process, None
        if process is None:
            return
        self.world.trace(f"{self.name} is killed")
        self.world.tally["process killed"] += self.is_powered
        self.is_listening = False
        process.kill()
        assert self._disk is not None
        self._disk.kill()
        if self._store is not None:
            self._store.forget()
        self._node = self._produce = self._store = None
        asked, self.asked = self.asked, {}
        for each in asked.values() if self.is_powered else ():
            each.answer(ConnectionFailed(f"the connection to {self.name} broke off"))
        self.world.checker.forget(self)

    def power_cut(self, cut: Cut) -> None:
        """The machine stops. `cut`: what of the un-synced is lost."""
        self.world.trace(f"{self.name} loses power, and {cut} of what isn't synced")
        self.world.tally["machine rebooted"] += 1
        self.is_powered = False
        self.kill()
        if cut != "none" and not self.machine.is_synced:
            self.has_lost = True
        self.machine.power_cut(cut, self.world.rng)

    def wipe(self) -> None:
        """The machine comes back with an empty disk."""
        self.world.trace(f"{self.name} loses its disk")
        self.world.tally["disk replaced"] += 1
        self.is_powered = False
        self.kill()
        self.has_lost = True
        self.machine.wipe()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None:
            self.world.trace(f"{self.name} is paused")
            self.world.tally["process paused"] += 1
            self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.process.is_paused:
            self.world.trace(f"{self.name} goes on")
            self.process.resume()

    def stop(self) -> None:
        """SIGTERM: a controlled shutdown; something starts it again."""
        if self.is_up and self.process is not None and self.is_listening:
            self.process.spawn(self._stop(self.node), "stop")

    async def _stop(self, node: Node) -> None:
        self.world.trace(f"{self.name} stops")
        self.world.tally["controlled stop"] += 1
        is_told = await node.drain()
        self.is_listening = False
        for _ in range(REQUESTS_END_S):
            if not self.asked:
                break
            await asyncio.sleep(1.0)
        await node.close_logs(clean=True)
        await node.leave(clean=is_told)
        self.world.loop.at(0.0, self._end)
