"""Three brokers: what replication costs, what a death costs, how fast a replica is copied.

    python bench/three_brokers.py [--only PART] [--rounds N] [--json FILE]

rate      acks=all on three replicas beside acks=1 on one broker, in pairs
kill      SIGKILL of a leader under load: from the kill to the next acknowledged record
stop      the same by SIGTERM: the longest pause, and whether a send failed
copy      a replica of 1 GB goes to another broker, unthrottled and throttled
kafka     `rate` with Kafka's beside it; only by --only, with the packages of `make bench-peers`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from own_broker import data_folder, own_cluster, usage_of

from headrace.cli import tables
from headrace.cli.bench.produce_rate import Load, ProduceMode, measure_produce
from headrace.cli.bench.workload import POOL_RECORDS, make_values
from headrace.cli.dev_cluster import DevCluster
from headrace.cli.output import print_tables
from headrace.protocol.errors import HeadraceError
from headrace.sdk import Admin, Producer

VALUE_BYTES = 100
PAIRS = 5
RECORDS = 500_000
LISTS_OF = 10_000
KILLS = 20
STOPS = 6
PARTITIONS = 6
LOAD_PAUSE_S = 0.002
"""Between two sends of a writer: about 300 records a second and partition."""

ANSWER_ON_ITS_WAY_S = 0.05
"""What is acknowledged so soon after a kill was answered before it."""

COPY_BYTES = 1_000_000_000
COPY_ROUNDS = 3
BOUND_BYTES = 300_000_000
THROTTLE_BYTES_PER_S = 20_000_000
IN_SYNC_TIMEOUT_S = 60.0
_names = itertools.count()

Figures = dict[str, object]


# --- rate -----------------------------------------------------------------------------------------


async def rate(folder: Path, rounds: int) -> Figures:
    """In turn on both clusters, which run side by side; the first pair is dropped."""
    async with (
        own_cluster(folder / "one", brokers=1) as one,
        own_cluster(folder / "three", brokers=3) as three,
    ):
        pairs: list[tuple[dict[str, float], dict[str, float]]] = []
        for number in range(rounds + 1):
            alone = await produce(one, replicas=1, acks="1")
            copied = await produce(three, replicas=3, acks="all")
            if number:
                pairs.append((alone, copied))
                say(f"pair {number}: {share(pairs[-1]):.2f}")
    alone, copied = (list(each) for each in zip(*pairs, strict=True))
    return {
        "one broker, acks=1: records/s": spread([each["records_per_s"] for each in alone]),
        "three, acks=all: records/s": spread([each["records_per_s"] for each in copied]),
        "share, pair by pair": spread([share(pair) for pair in pairs], digits=2),
        "one: brokers' CPU us a record": spread([each["cpu_us"] for each in alone], digits=2),
        "three: brokers' CPU us a record": spread([each["cpu_us"] for each in copied], digits=2),
        "one: client's CPU us a record": spread(
            [each["client_cpu_us_per_record"] for each in alone], digits=2
        ),
        "three: client's CPU us a record": spread(
            [each["client_cpu_us_per_record"] for each in copied], digits=2
        ),
    }


async def kafka(folder: Path, rounds: int) -> Figures:
    """Four in turn: one and three brokers, one and three nodes of Kafka; the first turn is
    dropped."""
    from systems.kafka_trio import kafka_cluster

    found: dict[str, list[float]] = {}
    async with (
        own_cluster(folder / "one", brokers=1) as one,
        own_cluster(folder / "three", brokers=3) as three,
        kafka_cluster(folder / "kafka-one", nodes=1) as kafka_one,
        kafka_cluster(folder / "kafka-three", nodes=3) as kafka_three,
    ):
        for number in range((rounds or PAIRS) + 1):
            figures = {
                "Headrace, one, acks=1": await rate_of(one, replicas=1, acks="1"),
                "Headrace, three, acks=all": await rate_of(three, replicas=3, acks="all"),
                "Kafka, one, acks=1": await kafka_one.produce(RECORDS, "1"),
                "Kafka, three, acks=all": await kafka_three.produce(RECORDS, "all"),
            }
            say(", ".join(f"{name}: {value:,.0f}" for name, value in figures.items()))
            for name, value in figures.items() if number else ():
                found.setdefault(name, []).append(value)
    shares = {
        name: [b / a for a, b in zip(found[f"{name}, one, acks=1"], three_, strict=True)]
        for name in ("Headrace", "Kafka")
        for three_ in [found[f"{name}, three, acks=all"]]
    }
    return {
        **{f"{name}: records/s": spread(values) for name, values in found.items()},
        **{f"{name}'s share": spread(values, digits=2) for name, values in shares.items()},
    }


async def rate_of(cluster: DevCluster, *, replicas: int, acks: str) -> float:
    """Records a second."""
    return (await produce(cluster, replicas=replicas, acks=acks))["records_per_s"]


def share(pair: tuple[dict[str, float], dict[str, float]]) -> float:
    """The replicated rate over the other."""
    return pair[1]["records_per_s"] / pair[0]["records_per_s"]


async def produce(cluster: DevCluster, *, replicas: int, acks: str) -> dict[str, float]:
    """`send_many` into one partition, flushed every second on both sides."""
    topic = f"rate-{next(_names)}"
    async with Admin(cluster.bootstrap) as admin:
        config = {"flush.policy": "interval"}
        await admin.create_topic(topic, partitions=1, replicas=replicas, config=config)
        async with Producer(cluster.bootstrap, acks=acks) as producer:
            load = Load(
                topic=topic, records=RECORDS, size_bytes=VALUE_BYTES,
                mode=ProduceMode.SEND_MANY, batch=LISTS_OF, senders=1,
            )  # fmt: skip
            await producer.send_many(topic, make_values(1_000, VALUE_BYTES))
            cpu_s = brokers_cpu_s(cluster)
            figures = await measure_produce(producer, load)
            await in_sync(admin, topic, replicas)
            figures["cpu_us"] = (brokers_cpu_s(cluster) - cpu_s) / RECORDS * 1e6
        found = await admin.offsets({(topic, 0): "latest"})
        assert [end.offset for end in found.values()] == [RECORDS + 1_000], found
        await admin.delete_topic(topic)
    return figures


def brokers_cpu_s(cluster: DevCluster) -> float:
    """CPU time of all brokers so far."""
    pids = [cluster.pid(broker.broker_id) for broker in cluster.plan.brokers]
    return sum(usage_of(pid).cpu_s for pid in pids if pid is not None)


# --- kill and stop --------------------------------------------------------------------------------


@dataclass
class Writing:
    """Writers, one a partition, each awaiting each record; when each was acknowledged."""

    bootstrap: str
    topic: str
    acknowledged: dict[int, list[float]] = field(default_factory=dict)
    sent: dict[int, list[float]] = field(default_factory=dict)
    failures: list[HeadraceError] = field(default_factory=list)
    _done: bool = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All write while the block runs."""
        async with Producer(self.bootstrap, delivery_timeout=60) as producer:
            writers = [
                asyncio.create_task(self._write(producer, index)) for index in range(PARTITIONS)
            ]
            try:
                yield
            finally:
                self._done = True
                await asyncio.gather(*writers)

    async def _write(self, producer: Producer, partition: int) -> None:
        times = self.acknowledged.setdefault(partition, [])
        begun = self.sent.setdefault(partition, [])
        value = b"x" * VALUE_BYTES
        while not self._done:
            at = time.perf_counter()
            try:
                await producer.send(self.topic, value, partition=partition)
            except HeadraceError as error:
                self.failures.append(error)
            else:
                begun.append(at)
                times.append(time.perf_counter())
            await asyncio.sleep(LOAD_PAUSE_S)

    def next_after(self, partition: int, at: float) -> float:
        """Seconds from a moment to the acknowledgement of a record that the victim didn't have: of
        the last that was under way at that moment, if it was acknowledged later, or the next."""
        times = zip(self.sent[partition], self.acknowledged[partition], strict=True)
        return (
            next(told for sent, told in times if sent > at or told - at > ANSWER_ON_ITS_WAY_S) - at
        )

    def longest_pause_s(self, partition: int, since: float) -> tuple[float, float]:
        """Between two acknowledgements, from a moment on; and how long after it it began."""
        times = [since, *(each for each in self.acknowledged[partition] if each > since)]
        return max((after - before, before - since) for before, after in itertools.pairwise(times))

    def acknowledged_since(self, at: float) -> bool:
        """Whether each partition has taken a record since."""
        return all(times and times[-1] > at for times in self.acknowledged.values())


async def deaths(folder: Path, number: int, how: signal.Signals) -> tuple[Writing, list[Figures]]:
    """So many leaders end, one after the other, each once everything is in sync again."""
    found: list[Figures] = []
    async with own_cluster(folder, brokers=3) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic("load", partitions=PARTITIONS, replicas=3)
        writing = Writing(cluster.bootstrap, "load")
        async with writing.running():
            await asyncio.sleep(1)
            for turn in range(number):
                found.append(await end_one(cluster, admin, writing, turn, how))
                say(f"{turn + 1}: {found[-1]}")
    return writing, found


async def end_one(
    cluster: DevCluster, admin: Admin, writing: Writing, turn: int, how: signal.Signals
) -> Figures:
    """One broker's end, and its return; each broker that leads something in turn."""
    topic = await admin.describe_topic("load")
    leaders = sorted({part.leader for part in topic.partitions if part.leader is not None})
    victim = leaders[turn % len(leaders)]
    led = [part.partition for part in topic.partitions if part.leader == victim]
    was_controller = (await admin.describe_cluster()).controller_id == victim
    pid = cluster.pid(victim)
    assert pid is not None
    at = time.perf_counter()
    os.kill(pid, how)
    while not writing.acknowledged_since(at):
        await asyncio.sleep(0.01)
    await cluster.back(victim, pid)
    await in_sync(admin, "load", 3)
    await asyncio.sleep(0.5)
    pause_s, began_s = max(writing.longest_pause_s(index, at) for index in range(PARTITIONS))
    return {
        "controller": was_controller,
        "partitions led": len(led),
        "next s": round(max(writing.next_after(partition, at) for partition in led), 3),
        "pause s": round(pause_s, 3),
        "it began after s": round(began_s, 3),
    }


async def in_sync(admin: Admin, topic: str, replicas: int) -> None:
    """Until each partition has so many replicas in sync."""
    async with asyncio.timeout(IN_SYNC_TIMEOUT_S):
        while True:
            found = await admin.describe_topic(topic)
            if all(part.leader is not None and len(part.isr) == replicas
                   for part in found.partitions):  # fmt: skip
                return
            await asyncio.sleep(0.02)


async def kill(folder: Path, rounds: int) -> Figures:
    """Each time the worst of the partitions that the victim led."""
    writing, found = await deaths(folder, rounds or KILLS, signal.SIGKILL)
    waits = [float(str(each["next s"])) for each in found]
    of_controller = [w for w, each in zip(waits, found, strict=True) if each["controller"]]
    return {
        "leaders killed": len(found),
        "next acknowledged record s": spread(waits, digits=2),
        "when it was the controller s": spread(of_controller, digits=2) if of_controller else "-",
        "failed sends": len(writing.failures),
    }


async def stop(folder: Path, rounds: int) -> Figures:
    """The longest pause of any partition around each stop and start."""
    writing, found = await deaths(folder, rounds or STOPS, signal.SIGTERM)
    return {
        "leaders stopped": len(found),
        "longest pause s": spread([float(str(each["pause s"])) for each in found], digits=3),
        "failed sends": len(writing.failures),
        "records acknowledged": sum(map(len, writing.acknowledged.values())),
    }


# --- copy -----------------------------------------------------------------------------------------


async def copy(folder: Path, rounds: int) -> Figures:
    """One of two replicas goes to the third broker: unthrottled, then with a bound."""
    async with own_cluster(folder, brokers=3) as cluster, Admin(cluster.bootstrap) as admin:
        free, cpu = [], []
        await fill(cluster, admin, "copied", COPY_BYTES)
        for _ in range(rounds or COPY_ROUNDS):
            before_s = brokers_cpu_s(cluster)
            free.append(await copied_per_s(admin, "copied", throttle=-1) / 1e6)
            cpu.append(brokers_cpu_s(cluster) - before_s)
            say(f"unthrottled: {free[-1]:.0f} MB/s, {cpu[-1]:.1f} s of CPU")
        await fill(cluster, admin, "bound", BOUND_BYTES)
        bound = await copied_per_s(admin, "bound", throttle=THROTTLE_BYTES_PER_S) / 1e6
    return {
        f"unthrottled, {COPY_BYTES / 1e9:g} GB: MB/s": spread(free),
        "brokers' CPU for it s": spread(cpu, digits=1),
        f"bound to {THROTTLE_BYTES_PER_S / 1e6:g} MB/s: MB/s": f"{bound:.1f}",
    }


async def fill(cluster: DevCluster, admin: Admin, topic: str, size_bytes: int) -> None:
    """One partition on brokers 0 and 1."""
    await admin.create_topic(topic, partitions=1, replicas=2)
    await admin.reassign({(topic, 0): [0, 1]})
    await moved(admin)
    values = make_values(POOL_RECORDS, VALUE_BYTES)
    async with Producer(cluster.bootstrap) as producer:
        for _ in range(size_bytes // (POOL_RECORDS * VALUE_BYTES)):
            await producer.send_many(topic, values)


async def copied_per_s(admin: Admin, topic: str, *, throttle: int) -> float:
    """Moves the follower's replica to the broker that has none."""
    (partition,) = (await admin.describe_topic(topic)).partitions
    target = ({0, 1, 2} - set(partition.replicas)).pop()
    began = time.perf_counter()
    await admin.reassign({(topic, 0): [0, target]}, throttle=throttle)
    while target not in (await admin.describe_topic(topic)).partitions[0].isr:
        await asyncio.sleep(0.02)
    took_s = time.perf_counter() - began
    await moved(admin)
    await asyncio.sleep(1)
    return (partition.size_bytes or 0) / took_s


async def moved(admin: Admin) -> None:
    """Until nothing is being moved any more."""
    while (await admin.reassignments()).state != "none":
        await asyncio.sleep(0.05)


# --- all ------------------------------------------------------------------------------------------


def spread(values: list[float], *, digits: int = 0) -> str:
    """Median (smallest-largest)."""
    shown = [
        f"{each:,.{digits}f}" for each in (statistics.median(values), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]}-{shown[2]})"


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


PARTS = {"rate": rate, "kill": kill, "stop": stop, "copy": copy}
BESIDE = {"kafka": kafka}


async def main() -> None:
    """Measure what is asked for, show it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[*PARTS, *BESIDE])
    parser.add_argument("--rounds", type=int, default=0, help="else each part's own number")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found: dict[str, Figures] = {}
    for name, measure in {**PARTS, **BESIDE}.items():
        if options.only == name or (options.only is None and name in PARTS):
            with data_folder() as folder:
                rounds = options.rounds or (PAIRS if name == "rate" else 0)
                found[name] = await measure(folder, rounds)
    rows = [(name, key, value) for name, part in found.items() for key, value in part.items()]
    title = f"three brokers, {len(os.sched_getaffinity(0))} cores: median (smallest-largest)"
    print_tables(title, tables.table(("part", "figure", ">value"), rows))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
