"""Consumer groups: a storm of members, idle groups, commits, and loading a coordinator.

    python bench/groups.py [--only PART] [--members 100] [--partitions 300] [--json]

storm     members join one group at once; then one more joins and one leaves
idle      1,000 groups of 3 members that only live: the broker's CPU
commits   one coordinator, one offset a request, and a hundred
load      1,000,000 committed offsets, the broker killed and started again
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from pathlib import Path

import aiohttp
from own_broker import broker_usage, data_folder, own_broker, show

from headrace.sdk import Admin, Consumer

TOPIC = "storm"
HEARTBEAT_WAIT_MS = 15_000
IDLE_GROUPS, IDLE_MEMBERS, IDLE_S = 1_000, 3, 20.0
COMMITTERS, COMMITS_S = 32, 5.0
LOAD_GROUPS, LOAD_PARTITIONS = 500, 2_000


async def storm(folder: Path, members: int, partitions: int) -> dict[str, float | int]:
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=partitions)
        consumers = [Consumer(cluster.bootstrap, TOPIC, group="g") for _ in range(members)]
        began = time.perf_counter()
        await asyncio.gather(*[each.__aenter__() for each in consumers])
        joined = time.perf_counter()
        await settled(consumers, partitions)
        figures: dict[str, float | int] = {
            "all joined s": round(joined - began, 2),
            "converged after the last join s": round(time.perf_counter() - joined, 2),
        }
        before = {where: each for each in consumers for where in each.assignment}
        late = Consumer(cluster.bootstrap, TOPIC, group="g")
        began = time.perf_counter()
        await late.__aenter__()
        await settled([*consumers, late], partitions)
        figures["one joins s"] = round(time.perf_counter() - began, 2)
        figures["one joins, partitions moved"] = moved(before, [*consumers, late])
        before = {where: each for each in [*consumers, late] for where in each.assignment}
        began = time.perf_counter()
        await consumers.pop().close()
        await settled([*consumers, late], partitions)
        figures["one leaves s"] = round(time.perf_counter() - began, 2)
        figures["one leaves, partitions moved"] = moved(before, [*consumers, late])
        await asyncio.gather(*[each.close() for each in [*consumers, late]])
        return figures


async def settled(consumers: list[Consumer], partitions: int) -> None:
    """Until each partition has an owner and shares are equal."""
    least = partitions // len(consumers)
    while True:
        owned = [len(each.assignment) for each in consumers]
        if sum(owned) == partitions and min(owned) >= least and max(owned) <= least + 1:
            return
        await asyncio.sleep(0.005)


def moved(before: dict, consumers: list[Consumer]) -> int:
    """Partitions whose owner is another one now."""
    now = {where: each for each in consumers for where in each.assignment}
    return sum(before[where] is not now[where] for where in before)


async def idle(folder: Path) -> dict[str, float | int]:
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=6)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            tasks = []
            for group in range(IDLE_GROUPS):
                for _ in range(IDLE_MEMBERS):
                    url = f"{cluster.bootstrap}/v1/groups/g{group}/heartbeat"
                    tasks.append(asyncio.create_task(live(session, url)))
                await asyncio.sleep(0.01)
            await asyncio.sleep(20)
            before, began = broker_usage(cluster).cpu_s, time.perf_counter()
            await asyncio.sleep(IDLE_S)
            used = (broker_usage(cluster).cpu_s - before) / (time.perf_counter() - began)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return {"idle members": len(tasks), "cpu of a core %": round(used * 100, 1)}


async def live(session: aiohttp.ClientSession, url: str) -> None:
    """One member that does what it is told at once."""
    body = {"member_id": secrets.token_hex(8), "epoch": 0, "topics": [TOPIC], "wait_ms": 0}
    while True:
        async with session.post(url, json=body) as answer:
            told = await answer.json()
        if answer.status == 200:
            body = {
                "member_id": body["member_id"], "epoch": told["epoch"],
                "wait_ms": HEARTBEAT_WAIT_MS,
            }  # fmt: skip
        else:
            await asyncio.sleep(0.5)


async def commits(folder: Path) -> dict[str, float | int]:
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=100)
        return {
            "commits/s, one offset each": await commit_rate(cluster.bootstrap, 1),
            "offsets/s, a hundred each": 100 * await commit_rate(cluster.bootstrap, 100),
        }


async def commit_rate(url: str, offsets: int) -> int:
    done = 0
    deadline = time.perf_counter() + COMMITS_S

    async def commit(session: aiohttp.ClientSession) -> None:
        nonlocal done
        parts = [{"topic": TOPIC, "partition": p, "offset": 1} for p in range(offsets)]
        while time.perf_counter() < deadline:
            path = f"{url}/v1/groups/g/offsets"
            async with session.post(path, json={"offsets": parts}) as answer:
                await answer.read()
                done += answer.status == 200

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*[commit(session) for _ in range(COMMITTERS)])
    return round(done / COMMITS_S)


async def load(folder: Path) -> dict[str, float | int]:
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=LOAD_PARTITIONS)
        for group in range(LOAD_GROUPS):
            offsets = {(TOPIC, partition): 1 for partition in range(LOAD_PARTITIONS)}
            await admin.alter_group_offsets(f"g{group}", offsets)
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        began = time.perf_counter()
        await asyncio.gather(
            *[admin.group_offsets(f"g{group}", topic="none") for group in range(LOAD_GROUPS)]
        )
        taken = time.perf_counter() - began
        rss = broker_usage(cluster).rss_bytes >> 20
    return {
        "offsets": LOAD_GROUPS * LOAD_PARTITIONS,
        "loaded after the broker serves s": round(taken, 2),
        "broker's memory MiB": rss,
    }


async def run(arguments: argparse.Namespace) -> dict[str, float | int | str]:
    figures: dict[str, float | int | str] = {}
    with data_folder() as folder:
        if arguments.only in (None, "storm"):
            figures |= await storm(folder / "storm", arguments.members, arguments.partitions)
        if arguments.only in (None, "commits"):
            figures |= await commits(folder / "commits")
        if arguments.only in (None, "load"):
            figures |= await load(folder / "load")
        if arguments.only in (None, "idle"):
            figures |= await idle(folder / "idle")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("storm", "idle", "commits", "load"))
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    show("groups", asyncio.run(run(arguments)), as_json=arguments.json)


if __name__ == "__main__":
    main()
