"""Three brokers under load while their processes, their network and their store are broken: what
was acknowledged is there, once, in order, and what was read stays.

The seed is in every failure; HEADRACE_CHAOS_SEED=<seed> plays the same blows again (what the
brokers were doing when they fell is up to the machine).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.sdk import Admin, Producer
from testkit.brokers import BrokerProcess
from testkit.clusters import ClusterProcesses
from testkit.history import assert_clean, check
from testkit.load import Load, leaders_of, until_in_sync
from testkit.namespaces import Net
from testkit.proxies import Proxy

TOPIC = "chaos"
PARTITIONS = 3
CALM_S = 0.5
"""Between two blows."""


def chosen_seed() -> int:
    """From the environment, else a new one."""
    given = os.environ.get("HEADRACE_CHAOS_SEED")
    return int(given) if given else random.randrange(1 << 32)


@dataclass
class Stage:
    """A cluster under load."""

    cluster: ClusterProcesses
    load: Load
    dice: random.Random
    done: list[str] = field(default_factory=list)
    """The blows so far, each with the second of the day."""

    async def leader(self) -> BrokerProcess:
        """The broker that leads a partition drawn by lot."""
        leaders = await leaders_of(self.cluster.bootstrap, TOPIC)
        broker_id = leaders[self.dice.randrange(PARTITIONS)][0]
        assert broker_id is not None
        return self.cluster.brokers[broker_id]

    async def follower(self) -> BrokerProcess:
        """A broker that doesn't lead a partition drawn by lot."""
        leader = await self.leader()
        return self.dice.choice([each for each in self.cluster.brokers if each is not leader])

    async def controller(self) -> BrokerProcess:
        """The broker that is the controller."""
        async with Admin(self.cluster.bootstrap) as admin:
            broker_id = (await admin.describe_cluster()).controller_id
        return self.cluster.brokers[broker_id or 0]

    async def in_sync(self) -> None:
        """Waits until nothing is missing any more."""
        await until_in_sync(self.cluster.bootstrap, TOPIC)


@asynccontextmanager
async def stage(
    folder: Path, seed: int, *, cluster: ClusterProcesses | None = None
) -> AsyncIterator[Stage]:
    """A running cluster whose clients work; at the end the history is judged."""
    brokers = cluster or ClusterProcesses(folder / "cluster")
    done: list[str] = []
    try:
        await asyncio.to_thread(brokers.start)
        async with Admin(brokers.bootstrap) as admin:
            config = {"segment.bytes": 200_000}
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, config=config)
        load = Load(brokers.bootstrap, TOPIC, PARTITIONS)
        async with load.running(seed):
            yield Stage(brokers, load, random.Random(seed), done)
            await asyncio.sleep(CALM_S)
        assert not load.errors, load.errors
        assert_clean(load.history)
    except BaseException as error:
        ended = [f"{index}: {broker.exit_code}" for index, broker in enumerate(brokers.brokers)]
        error.add_note(
            f"HEADRACE_CHAOS_SEED={seed}; {', '.join(done)}; exit codes {', '.join(ended)}; the"
            f" brokers' logs end:\n{brokers.log_tails}"
        )
        raise
    finally:
        for broker in brokers.brokers:
            broker.resume()
        await asyncio.to_thread(brokers.stop)


# --- blows ----------------------------------------------------------------------------------------


async def kill_leader(on: Stage) -> None:
    """SIGKILL of a leader, and a new start."""
    broker = await on.leader()
    await asyncio.to_thread(broker.kill)
    await asyncio.sleep(on.dice.uniform(0, 1))
    await asyncio.to_thread(broker.start)


async def kill_follower(on: Stage) -> None:
    """SIGKILL of a follower, and a new start."""
    broker = await on.follower()
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


async def kill_controller(on: Stage) -> None:
    """SIGKILL of the controller, and a new start."""
    broker = await on.controller()
    await asyncio.to_thread(broker.kill)
    await asyncio.sleep(on.dice.uniform(0, 1))
    await asyncio.to_thread(broker.start)


async def kill_all(on: Stage) -> None:
    """SIGKILL of all at once, and a new start of all."""
    on.cluster.kill()
    await asyncio.to_thread(on.cluster.start)


async def freeze(on: Stage, brokers: list[BrokerProcess]) -> None:
    """SIGSTOP for a while; they go on as if nothing had happened."""
    for broker in brokers:
        broker.signal(signal.SIGSTOP)
    await asyncio.sleep(on.dice.uniform(0.2, 4))
    for broker in brokers:
        broker.signal(signal.SIGCONT)


async def freeze_leader(on: Stage) -> None:
    """SIGSTOP and SIGCONT of a leader."""
    await freeze(on, [await on.leader()])


async def freeze_follower(on: Stage) -> None:
    """SIGSTOP and SIGCONT of a follower."""
    await freeze(on, [await on.follower()])


async def freeze_controller(on: Stage) -> None:
    """SIGSTOP and SIGCONT of the controller."""
    await freeze(on, [await on.controller()])


async def freeze_all(on: Stage) -> None:
    """SIGSTOP and SIGCONT of all."""
    await freeze(on, on.cluster.brokers)


async def freeze_then_kill(on: Stage) -> None:
    """SIGSTOP of a leader that never comes back to itself."""
    broker = await on.leader()
    broker.signal(signal.SIGSTOP)
    await asyncio.sleep(on.dice.uniform(0.2, 2))
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


async def bounce_leader(on: Stage) -> None:
    """A clean stop and start of a leader."""
    broker = await on.leader()
    assert await asyncio.to_thread(broker.stop) == 0
    await asyncio.to_thread(broker.start)


Blow = Callable[[Stage], Awaitable[None]]
KILLS: list[Blow] = [kill_leader, kill_follower, kill_controller, kill_all]
FREEZES: list[Blow] = [
    freeze_leader,
    freeze_follower,
    freeze_controller,
    freeze_all,
    freeze_then_kill,
]
BLOWS: list[Blow] = [*KILLS, *FREEZES, bounce_leader]


async def batter(on: Stage, blows: list[Blow]) -> None:
    """One blow after another, each with time to recover or not."""
    for blow in blows:
        await asyncio.sleep(on.dice.uniform(0, CALM_S))
        on.done.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {blow.__name__}")
        await blow(on)
        if on.dice.random() < 0.7:
            await on.in_sync()


# --- tests ----------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.parametrize("blows", [KILLS, FREEZES], ids=["killed", "frozen"])
async def test_processes_that_die_or_freeze_cost_nothing_that_was_acknowledged(
    tmp_path: Path, blows: list[Blow]
) -> None:
    seed = chosen_seed()
    async with stage(tmp_path, seed) as on:
        await batter(on, random.Random(seed).sample(blows, len(blows)))


@pytest.mark.timeout(300)
async def test_a_rolling_restart_fails_no_send(tmp_path: Path) -> None:
    async with stage(tmp_path, chosen_seed()) as on:
        for broker in on.cluster.brokers:
            await on.in_sync()
            assert await asyncio.to_thread(broker.stop) == 0
            await asyncio.to_thread(broker.start)
        await on.in_sync()
        await bounce_leader(on)


async def test_what_acks_1_may_lose_is_seen_by_the_judge(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path / "cluster")
    try:
        await asyncio.to_thread(cluster.start)
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=1, replicas=3)
        await until_in_sync(cluster.bootstrap, TOPIC)
        ((leader_id, _),) = (await leaders_of(cluster.bootstrap, TOPIC)).values()
        leader = cluster.brokers[leader_id or 0]
        load = Load(cluster.bootstrap, TOPIC, 1)
        async with Producer(leader.url, acks="1") as producer:
            await producer.partitions_for(TOPIC)
            for broker in cluster.brokers:
                if broker is not leader:
                    broker.signal(signal.SIGSTOP)
            for number in range(20):
                send = load.history.send(0, b"", b"%d" % number)
                place = await producer.send(TOPIC, send.value)
                send.place = (place.partition, place.offset)
        await asyncio.to_thread(leader.kill)
        for broker in cluster.brokers:
            broker.resume()
        await asyncio.to_thread(leader.start)
        await until_in_sync(cluster.bootstrap, TOPIC)
        load.history.final = await load.read_all()
        assert {each.kind for each in check(load.history)} <= {"lost", "unseen"}
        with pytest.raises(AssertionError, match=r"lost|unseen"):
            assert_clean(load.history)
    finally:
        for broker in cluster.brokers:
            broker.resume()
        await asyncio.to_thread(cluster.stop)


async def store_away(on: Stage, seconds: float) -> None:
    """Nobody can read or write the store for so long."""
    held = sqlite3.connect(on.cluster.store_path, isolation_level=None, timeout=5)
    try:
        held.execute("BEGIN EXCLUSIVE")
        await asyncio.sleep(seconds)
        held.execute("ROLLBACK")
    finally:
        held.close()


async def without_store(folder: Path, seconds: float) -> None:
    """Produce and fetch go on without the store, and nobody is taken for dead afterwards."""
    async with stage(folder, chosen_seed()) as on:
        await on.in_sync()
        before = await leaders_of(on.cluster.bootstrap, TOPIC)
        since = time.monotonic()
        await store_away(on, seconds)
        until = time.monotonic()
        await asyncio.sleep(5)
        assert await leaders_of(on.cluster.bootstrap, TOPIC) == before
        assert on.load.longest_pause_s(since, until) < 2


async def test_ten_seconds_without_the_store_are_not_noticed(tmp_path: Path) -> None:
    await without_store(tmp_path, 10)


@asynccontextmanager
async def cluster_behind_proxies(
    folder: Path,
) -> AsyncIterator[tuple[ClusterProcesses, list[Proxy]]]:
    """Brokers that are reached through proxies only, by clients and by each other."""
    cluster = ClusterProcesses(folder / "cluster")
    proxies = [Proxy(broker.port) for broker in cluster.brokers]
    try:
        for broker, proxy in zip(cluster.brokers, proxies, strict=True):
            await proxy.start()
            broker.set(HEADRACE_ADVERTISED_URL=proxy.url)
        yield cluster, proxies
    finally:
        for proxy in proxies:
            await proxy.stop()


@pytest.mark.parametrize("peers_only", [True, False], ids=["from_peers", "from_everybody"])
async def test_a_leader_that_is_cut_off_loses_nothing(tmp_path: Path, peers_only: bool) -> None:
    seed = chosen_seed()
    async with (
        cluster_behind_proxies(tmp_path) as (cluster, proxies),
        stage(tmp_path, seed, cluster=cluster) as on,
    ):
        for _ in range(2):
            await on.in_sync()
            broker_id = on.cluster.brokers.index(await on.leader())
            proxies[broker_id].cut(peers_only=peers_only)
            await asyncio.sleep(on.dice.uniform(1, 4))
            proxies[broker_id].heal()
        await on.in_sync()


Cut = Callable[[Net, int], None]


def from_peers(net: Net, broker_id: int) -> None:
    """The broker and the others hear nothing of each other; clients reach all."""
    net.cut(broker_id, [each for each in range(3) if each != broker_id])


def from_one_peer(net: Net, broker_id: int) -> None:
    """Only one of the others is out of reach."""
    net.cut(broker_id, [(broker_id + 1) % 3])


def one_way(net: Net, broker_id: int) -> None:
    """The others don't hear the broker, but it hears them."""
    net.cut(broker_id, [each for each in range(3) if each != broker_id], one_way=True)


def unplugged(net: Net, broker_id: int) -> None:
    """Nobody reaches it, and it reaches nobody."""
    net.unplug(broker_id)


CUTS: list[Cut] = [from_peers, from_one_peer, one_way, unplugged]
needs_root = pytest.mark.skipif(not Net.is_allowed(), reason="network namespaces need root")


async def cuts_by_the_kernel(folder: Path, longest_s: float) -> None:
    """Leaders are cut off in every way; each cut heals."""
    seed = chosen_seed()
    with Net(3).standing() as net:
        cluster = ClusterProcesses(folder / "cluster")
        for index, broker in enumerate(cluster.brokers):
            broker.host, broker.prefix = net.hosts[index], net.prefix(index)
        async with stage(folder, seed, cluster=cluster) as on:
            for cut in random.Random(seed).sample(CUTS, len(CUTS)):
                await on.in_sync()
                cut(net, cluster.brokers.index(await on.leader()))
                await asyncio.sleep(on.dice.uniform(1, longest_s))
                net.heal()
            await on.in_sync()


@needs_root
@pytest.mark.timeout(300)
async def test_cuts_by_the_kernel_lose_nothing(tmp_path: Path) -> None:
    await cuts_by_the_kernel(tmp_path, 4)


@needs_root
@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_cuts_that_outlast_leases_lose_nothing(tmp_path: Path) -> None:
    await cuts_by_the_kernel(tmp_path, 30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_fifty_blows(tmp_path: Path) -> None:
    seed = chosen_seed()
    dice = random.Random(seed)
    async with stage(tmp_path, seed) as on:
        await batter(on, [dice.choice(BLOWS) for _ in range(50)])


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_minute_without_the_store_is_not_noticed(tmp_path: Path) -> None:
    await without_store(tmp_path, 60)
