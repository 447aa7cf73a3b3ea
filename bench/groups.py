"""Consumer groups: a storm of members, pauses, idle groups, commits, loading, and reading.

    python bench/groups.py [--only PART] [--members 100] [--partitions 300] [--json]

storm     members join one group at once; then one more joins and one leaves
pauses    ten members and records in all partitions every 20 ms, while one joins and one leaves:
          the longest gap in partitions that stay, in those that move, and before all that
idle      1,000 groups of 3 members that only live: the broker's CPU
commits   one coordinator, one offset a request, and a hundred; what they cost the broker
load      1,000,000 committed offsets, the broker killed and started again
reading   a group's only member against a consumer that was assigned the partitions, in turns
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import time
from pathlib import Path

import aiohttp
from own_broker import broker_usage, data_folder, own_broker, show

from headrace.sdk import Admin, Consumer, Producer

TOPIC = "storm"
HEARTBEAT_WAIT_MS = 15_000
IDLE_GROUPS, IDLE_MEMBERS, IDLE_S = 1_000, 3, 20.0
COMMITTERS, COMMITS_S = 128, 5.0
PAUSES_MEMBERS, PAUSES_PARTITIONS, PAUSES_EVERY_S, PAUSES_S = 10, 30, 0.02, 3.0
READ_RECORDS, READ_BYTES, READ_ROUNDS = 500_000, 100, 5
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


async def pauses(folder: Path) -> dict[str, float | int]:
    """Gaps between records in each partition, as the members see them."""
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(
            TOPIC, partitions=PAUSES_PARTITIONS, config={"flush.policy": "interval"}
        )
        clock = time.perf_counter
        last: dict[int, float] = {}
        gaps: dict[int, float] = {}

        async def read(consumer: Consumer) -> None:
            async for record in consumer:
                now, where = clock(), record.partition
                gaps[where] = max(gaps.get(where, 0.0), now - last.get(where, now))
                last[where] = now

        async def send(producer: Producer) -> None:
            due = clock()
            while True:
                for partition in range(PAUSES_PARTITIONS):
                    producer.enqueue(TOPIC, b"x", partition=partition)
                due += PAUSES_EVERY_S
                await asyncio.sleep(max(0.0, due - clock()))

        def worst(partitions: set[int]) -> float:
            return round(1000 * max((gaps.get(each, 0.0) for each in partitions), default=0.0), 1)

        everything = set(range(PAUSES_PARTITIONS))
        async with Producer(cluster.bootstrap) as producer:
            members = [Consumer(cluster.bootstrap, TOPIC, group="g") for _ in range(PAUSES_MEMBERS)]
            for each in members:
                await each.__aenter__()
            await settled(members, PAUSES_PARTITIONS)
            tasks = [asyncio.create_task(read(each)) for each in members]
            tasks.append(asyncio.create_task(send(producer)))
            await asyncio.sleep(PAUSES_S)
            gaps.clear()
            await asyncio.sleep(PAUSES_S)
            figures: dict[str, float | int] = {"longest gap, nobody moves ms": worst(everything)}
            for what in ("joins", "leaves"):
                before = owners(members)
                gaps.clear()
                if what == "joins":
                    members.append(Consumer(cluster.bootstrap, TOPIC, group="g"))
                    await members[-1].__aenter__()
                    tasks.append(asyncio.create_task(read(members[-1])))
                else:
                    tasks.pop(0).cancel()
                    await members.pop(0).close()
                await settled(members, PAUSES_PARTITIONS)
                await asyncio.sleep(PAUSES_S)
                now = owners(members)
                stayed = {each for each in everything if now[each] is before[each]}
                figures[f"one {what}, longest gap where nothing moves ms"] = worst(stayed)
                figures[f"one {what}, longest gap of those that move ms"] = worst(
                    everything - stayed
                )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*[each.close() for each in members])
        return figures


def owners(consumers: list[Consumer]) -> dict[int, Consumer]:
    return {where.partition: each for each in consumers for where in each.assignment}


async def commits(folder: Path) -> dict[str, float | int]:
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=100)
        figures: dict[str, float | int] = {}
        for offsets, name in ((1, "one offset each"), (100, "a hundred each")):
            before, began = broker_usage(cluster).cpu_s, time.perf_counter()
            done = await commit_count(cluster.bootstrap, offsets)
            taken = time.perf_counter() - began
            used = broker_usage(cluster).cpu_s - before
            figures[f"commits/s, {name}"] = round(done / taken)
            figures[f"broker's CPU per commit us, {name}"] = round(used / done * 1e6)
            figures[f"commits a CPU second, {name}"] = round(done / used)
        return figures


async def commit_count(url: str, offsets: int) -> int:
    """Commits answered in `COMMITS_S`. By plain sockets: an HTTP client costs more than a broker
    and would be what is measured."""
    host, port = url.removeprefix("http://").split(":")
    parts = [{"topic": TOPIC, "partition": p, "offset": 1} for p in range(offsets)]
    body = json.dumps({"offsets": parts})
    request = (
        f"POST /v1/groups/g/offsets HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json"
        f"\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    deadline = time.perf_counter() + COMMITS_S

    async def commit() -> int:
        done = 0
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < deadline:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            done += head.startswith(b"HTTP/1.1 200")
        writer.close()
        return done

    return sum(await asyncio.gather(*[commit() for _ in range(COMMITTERS)]))


async def reading(folder: Path) -> dict[str, float | int]:
    async with own_broker(folder) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=6)
        async with Producer(cluster.bootstrap) as producer:
            values = [secrets.token_bytes(READ_BYTES // 2).hex().encode() for _ in range(1_000)]
            for start in range(0, READ_RECORDS, 5_000):
                await producer.send_many(TOPIC, values * 5, partition=start // 5_000 % 6)
        rates: dict[str, list[float]] = {"group": [], "assigned": []}
        for number in range(READ_ROUNDS + 1):
            for kind, found in rates.items():
                rate = await read_rate(cluster.bootstrap, f"g{number}", grouped=kind == "group")
                if number:  # The first round counts for nothing.
                    found.append(rate)
        group, assigned = (statistics.median(each) for each in rates.values())
        return {
            "records/s as a group's member": round(group),
            "records/s assigned": round(assigned),
            "group / assigned": round(group / assigned, 3),
        }


async def read_rate(url: str, group: str, *, grouped: bool) -> float:
    """From the first record on: joining takes a moment, which isn't consumption."""
    options = {"group": group} if grouped else {}
    async with Consumer(url, TOPIC, **options) as consumer:
        if not grouped:
            await consumer.assign([(TOPIC, partition) for partition in range(6)])
        first = len(await consumer.fetch(max_records=1))
        began, count = time.perf_counter(), first
        while count < READ_RECORDS:
            count += len(await consumer.fetch(max_records=5_000, timeout=10))
        return (count - first) / (time.perf_counter() - began)


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
        if arguments.only in (None, "pauses"):
            figures |= await pauses(folder / "pauses")
        if arguments.only in (None, "commits"):
            figures |= await commits(folder / "commits")
        if arguments.only in (None, "load"):
            figures |= await load(folder / "load")
        if arguments.only in (None, "reading"):
            figures |= await reading(folder / "reading")
        if arguments.only in (None, "idle"):
            figures |= await idle(folder / "idle")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("storm", "pauses", "idle", "commits", "load", "reading"))
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    show("groups", asyncio.run(run(arguments)), as_json=arguments.json)


if __name__ == "__main__":
    main()
