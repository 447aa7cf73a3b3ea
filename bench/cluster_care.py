"""Many topics: how long three brokers take to make them, and to get over a death.

    python bench/cluster_care.py [--topics 1000] [--partitions 3] [--rounds 3] [--json]

create   topics in one batch, until each partition has a leader and all replicas in sync; then a
         hundred by one call each, one after the other and side by side
death    SIGKILL of each broker in turn; until the others lead all that it led (a third of all
         partitions, of each topic one), and until each of those has acknowledged a record

The store is sqlite. Plans of reassignment: bench/plans.py.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from pathlib import Path

from own_broker import data_folder, own_cluster, show

from headrace.cli.dev_cluster import DevCluster
from headrace.protocol.cluster_models import ClusterHealth
from headrace.protocol.models import TopicCreate
from headrace.sdk import Admin, Producer

BROKERS = 3
REPLICAS = 3
POLL_S = 0.05
SETTLE_TIMEOUT_S = 120.0
SINGLES = 100
"""Topics made by a call each."""

QUIET_S = 3.0
"""Between two deaths, after everything is in sync again."""

Figures = dict[str, float | int | str]


async def create(admin: Admin, topics: int, partitions: int) -> Figures:
    """In one call, then by one call each; from the first call until everything is in sync."""
    wanted = [TopicCreate(f"many-{n}", partitions, REPLICAS) for n in range(topics)]
    began = time.perf_counter()
    outcomes = await admin.create_topics(wanted)
    answered_s = time.perf_counter() - began
    assert all(outcome.error is None for outcome in outcomes), outcomes[:3]
    await whole(admin, topics * partitions)
    figures: Figures = {
        f"{topics:,} topics x {partitions} in one call: answered s": round(answered_s, 2),
        "... all led and in sync s": round(time.perf_counter() - began, 2),
    }
    figures[f"{SINGLES} topics, one call after the other s"] = await singles(admin, at_once=1)
    figures[f"{SINGLES} topics, 20 calls at once s"] = await singles(admin, at_once=20)
    return figures


async def singles(admin: Admin, *, at_once: int) -> float:
    """Makes topics by a call each, and deletes them; how long the making took."""
    names = [f"single-{number}" for number in range(SINGLES)]
    turns = asyncio.Semaphore(at_once)

    async def make(name: str) -> None:
        async with turns:
            await admin.create_topic(name, partitions=1, replicas=REPLICAS)

    began = time.perf_counter()
    await asyncio.gather(*[make(name) for name in names])
    took_s = time.perf_counter() - began
    for name in names:
        await admin.delete_topic(name)
    return round(took_s, 2)


async def whole(admin: Admin, partitions: int) -> None:
    """Until so many partitions (and the system's own) are led, with every replica in sync."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            now = await admin.cluster_health(limit=0)
            if now.partitions >= partitions and not (now.offline or now.under_replicated):
                return
            await asyncio.sleep(POLL_S)


async def death(cluster: DevCluster, topics: int, turn: int) -> tuple[int, float, float]:
    """One broker's: partitions led by it, seconds until others lead them all, and until each has
    acknowledged a record."""
    victim = turn % BROKERS
    others = [plan.url for plan in cluster.plan.brokers if plan.broker_id != victim]
    pid = cluster.pid(victim)
    assert pid is not None
    async with Admin(others[0]) as admin, Producer(",".join(others)) as producer:
        led = led_by(await admin.cluster_health(limit=0), victim)
        names = [f"many-{number}" for number in range(topics)]
        at_victim = await partitions_led(admin, names, victim)
        await asyncio.gather(*[producer.send(name, b"x", partition=p) for name, p in at_victim])
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        while led_by(await admin.cluster_health(limit=0), victim):
            await asyncio.sleep(POLL_S)
        led_s = time.perf_counter() - began
        await asyncio.gather(*[producer.send(name, b"x", partition=p) for name, p in at_victim])
        written_s = time.perf_counter() - began
        await cluster.back(victim, pid)
        await whole(admin, topics)
        await admin.reassign(mode="leaders")
        while not led_by(await admin.cluster_health(limit=0), victim):
            await asyncio.sleep(POLL_S)
    await asyncio.sleep(QUIET_S)
    return led, led_s, written_s


def led_by(health: ClusterHealth, broker: int) -> int:
    """How many partitions the broker leads."""
    return next(load.leaders for load in health.brokers if load.id == broker)


async def partitions_led(admin: Admin, topics: list[str], broker: int) -> list[tuple[str, int]]:
    """Which partitions of these topics the broker leads."""
    infos = await asyncio.gather(*[admin.describe_topic(topic) for topic in topics])
    return [
        (info.name, part.partition)
        for info in infos
        for part in info.partitions
        if part.leader == broker
    ]


async def measure(folder: Path, topics: int, partitions: int, rounds: int) -> Figures:
    """Everything on one cluster."""
    async with own_cluster(folder, brokers=BROKERS) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            figures = await create(admin, topics, partitions)
            say(str(figures))
        deaths = []
        for turn in range(rounds):
            deaths.append(await death(cluster, topics, turn))
            say(f"death {turn + 1}: led {deaths[-1][0]}, {deaths[-1][1]:.2f} s")
    led, led_s, written_s = zip(*deaths, strict=True)
    figures["led by a broker that dies"] = spread(led, digits=0)
    figures["... all led again s"] = spread(led_s)
    figures["... each has acknowledged a record s"] = spread(written_s)
    return figures


def spread(values: tuple[float, ...], *, digits: int = 2) -> str:
    """Median (smallest-largest)."""
    shown = [
        f"{each:,.{digits}f}" for each in (statistics.median(values), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]}-{shown[2]})"


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measures in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with data_folder() as folder:
        found = asyncio.run(measure(folder, given.topics, given.partitions, given.rounds))
    show("cluster care", found, as_json=given.json)


if __name__ == "__main__":
    main()
