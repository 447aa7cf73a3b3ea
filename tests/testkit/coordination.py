"""A broker's coordination without a broker: over any store, with a volume of a few fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.broker.controller.coordination import Coordination
from headrace.broker.controller.copies import NoDisk
from headrace.broker.controller.membership import Identity
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ViewEvent
from headrace.broker.core.election import LogEnd
from headrace.broker.core.model import PartitionRecord
from headrace.broker.core.standing import LocalMeta, LocalState
from headrace.broker.store.base import Store
from headrace.broker.store.memory import Call, Fate
from testkit.peer_net import PeerNet


def fast_time(factor: float = 100.0) -> TimeSource:
    """Time that runs `factor` times as fast as the loop's."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / factor)

    return TimeSource(lambda: asyncio.get_running_loop().time() * factor, sleep)


@dataclass
class Volume:
    """A data directory as far as coordination sees it; `prepare` is what writes its meta."""

    state: LocalState = field(default_factory=LocalState)
    copies: NoDisk = field(default_factory=NoDisk)

    async def prepare(self, meta: LocalMeta) -> None:
        """Keeps the meta; from now on the directory counts as in use."""
        self.state = LocalState(meta=meta, ending="same_boot", same_volume=True)

    @property
    def found(self) -> LocalState:
        """What a start reads: the state with the last number that a process noted (H27)."""
        meta = self.state.meta
        if meta is None:
            return self.state
        return replace(self.state, meta=replace(meta, beat=max(meta.beat, self.copies.beat)))

    def power_cut(self) -> None:
        """The machine lost its page cache."""
        self.state = replace(self.state, ending="other_boot")


@dataclass
class Node:
    """A started broker's coordination with what its listeners heard."""

    coordination: Coordination
    volume: Volume
    events: list[ViewEvent] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)
    net: PeerNet = field(default_factory=PeerNet)
    ends: dict[int, LogEnd] = field(default_factory=dict)
    """How far this broker's replicas go, by partition, whatever the topic."""

    async def kill(self) -> None:
        """Ends the process as SIGKILL does: nobody listens, no lease is given up."""
        self.net.handlers.pop(self.coordination.broker_id, None)
        await self.coordination.stop(clean=False)

    def records(self, name: str) -> list[PartitionRecord]:
        """The topic's readable partition records in order."""
        topic = self.coordination.view.all_topics[name]
        found = self.coordination.view.records(topic.topic_id)
        return [r for _, r in sorted(found.items()) if isinstance(r, PartitionRecord)]


def make_node(
    store: Store,
    *,
    broker_id: int = 0,
    volume: Volume | None = None,
    clock: TimeSource | None = None,
    net: PeerNet | None = None,
    rebuild: bool = False,
) -> Node:
    """A broker's coordination, not started yet. Without a `net` nobody can call anybody, so that
    only leases tell who lives."""
    overtaken: list[str] = []
    kept = volume or Volume()
    network = net or _deaf()
    ends: dict[int, LogEnd] = {}
    coordination = Coordination(
        store,
        Identity(broker_id=broker_id, url=f"http://127.0.0.1:{9420 + 2 * broker_id}"),
        local=kept.found,
        prepare=kept.prepare,
        on_overtaken=overtaken.append,
        peers=network.peers_of(broker_id),
        disk=kept.copies,
        rebuild=rebuild,
        log_end_of=lambda _topic_id, partition: ends.get(partition),
        clock=clock or fast_time(),
    )
    return Node(coordination, kept, overtaken=overtaken, net=network, ends=ends)


def _deaf() -> PeerNet:
    net = PeerNet()
    net.silent.update(range(100))
    return net


async def start_node(
    store: Store,
    *,
    broker_id: int = 0,
    volume: Volume | None = None,
    clock: TimeSource | None = None,
    net: PeerNet | None = None,
    rebuild: bool = False,
) -> Node:
    """A broker that has joined and can lead."""
    node = make_node(
        store, broker_id=broker_id, volume=volume, clock=clock, net=net, rebuild=rebuild
    )
    try:
        node.net.handlers[broker_id] = node.coordination.peer_handlers
        await node.coordination.start()
        node.coordination.view.listen(node.events.append)
        await node.coordination.activate()
    except BaseException:
        await node.coordination.stop(clean=False)
        raise
    return node


def dying_at(number: int, *, applied: bool) -> Callable[[Call], Fate]:
    """A fate that ends the caller's world at one call: that call is lost, applied or not, and no
    later one arrives. As seen from the store, the process was killed there."""

    def fate(call: Call) -> Fate:
        if call.number < number:
            return Fate()
        if call.number == number:
            return Fate("lost_after" if applied else "lost_before")
        return Fate("unavailable")

    return fate
