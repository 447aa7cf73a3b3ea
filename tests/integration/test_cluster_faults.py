"""Faults of a cluster, with real brokers: hand edits of the store, ids used twice, brokers away."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.protocol.errors import BrokerNotFound
from headrace.sdk import Admin, Consumer, Producer
from testkit.brokers import BrokerProcess
from testkit.clusters import ClusterProcesses
from testkit.command_line import headrace


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    made = ClusterProcesses(tmp_path, HEADRACE_REPLICA_LAG_TIME_MAX_MS="2000").start()
    try:
        yield made
    finally:
        made.kill()


async def until(holds: Callable[[], Awaitable[bool]], *, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < deadline, "it didn't come to pass"
        await asyncio.sleep(0.05)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with Consumer(bootstrap, topic, offset_reset="earliest") as consumer:
        deadline = time.monotonic() + 20
        while len(found) < count and time.monotonic() < deadline:
            found.extend(r.value or b"" for r in await consumer.fetch(timeout=0.5))
    return sorted(found)


def write_store(path: Path, key: str, change: Callable[[bytes], bytes]) -> None:
    """An edit by hand: as somebody with a shell would make it."""
    with sqlite3.connect(path, timeout=10) as connection:
        (value,) = connection.execute("SELECT value FROM objects WHERE key = ?", (key,)).fetchone()
        (revision,) = connection.execute("SELECT max(value) + 1 FROM counters").fetchone()
        connection.execute(
            "UPDATE objects SET value = ?, revision = ? WHERE key = ?",
            (change(bytes(value)), revision, key),
        )
        connection.execute("UPDATE counters SET value = ? WHERE name = 'revision'", (revision,))
    connection.close()


def folders(broker: BrokerProcess, topic_id: str) -> list[Path]:
    """The topic's partition folders on a broker's disk, set-aside ones too."""
    return [path for path in broker.data_dir.rglob(f"*{topic_id}*/*") if path.is_dir()]


async def test_a_topic_deleted_with_a_broker_down_goes_there_too_when_it_returns(
    cluster: ClusterProcesses,
) -> None:
    address, away = cluster.brokers[0].url, cluster.brokers[2]
    async with Admin(address) as admin:
        old = await admin.create_topic("orders", partitions=3, replicas=3)
        async with Producer(address) as producer:
            await producer.send_many("orders", [b"old"] * 100)
        assert len(folders(away, old.topic_id)) == 3
        away.kill()
        await admin.delete_topic("orders")
        new = await admin.create_topic("orders", partitions=2, replicas=2)
        async with Producer(address) as producer:
            await producer.send_many("orders", [b"new"] * 10)
        assert folders(away, old.topic_id), "nobody is there to remove them"
        away.start()

        async def is_gone() -> bool:
            return not folders(away, old.topic_id)

        await until(is_gone)
        assert new.topic_id != old.topic_id
        assert await read(away.url, "orders", 10) == [b"new"] * 10


async def test_an_unreadable_record_stops_its_partition_and_nothing_else(
    cluster: ClusterProcesses,
) -> None:
    address = cluster.brokers[0].url
    async with Admin(address) as admin:
        made = await admin.create_topic("edited", partitions=2, replicas=3)
        await admin.create_topic("other", partitions=1, replicas=3)
        async with Producer(address, delivery_timeout=10) as producer:
            for partition in (0, 1):
                await producer.send("edited", b"kept", partition=partition)
        before = [len(folders(broker, made.topic_id)) for broker in cluster.brokers]

        def break_first(value: bytes) -> bytes:
            shard = json.loads(value)
            shard["records"][0] = "by hand"
            return json.dumps(shard).encode()

        write_store(cluster.store_path, "partitions/edited/0", break_first)

        async def is_told() -> bool:
            found = await admin.cluster_health(problem="unreadable")
            return [(each.topic, each.partition) for each in found.troubled] == [("edited", 0)]

        await until(is_told)
        async with Producer(address, delivery_timeout=10) as producer:
            await producer.send("edited", b"more", partition=1)
            await producer.send("other", b"fine")
        shown = headrace("cluster", "describe", bootstrap=address)
        assert "1 frozen: their records in the store can't be read" in shown.text
        assert [len(folders(broker, made.topic_id)) for broker in cluster.brokers] == before
        repaired = headrace("cluster", "recover", "--from-disks", "--execute", bootstrap=address)
        assert repaired.code == 0, repaired.err

        async def is_right() -> bool:
            health = await admin.cluster_health()
            return not (health.unreadable or health.offline)

        await until(is_right)
        async with Producer(address, delivery_timeout=20) as producer:
            await producer.send("edited", b"again", partition=0)
    assert await read(address, "edited", 4) == [b"again", b"kept", b"kept", b"more"]


async def test_an_id_in_use_and_an_unknown_broker_are_refused_and_readers_find_the_next_leader(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    address = cluster.brokers[0].url
    twin = BrokerProcess(
        tmp_path / "twin",
        HEADRACE_BROKER_ID="1",
        HEADRACE_STORE=f"sqlite:{cluster.store_path}",
        HEADRACE_CLUSTER_SECRET_FILE=str(cluster.folder / "cluster.secret"),
    )
    twin.launch()
    assert await asyncio.to_thread(twin.wait) != 0
    assert "in use by a live process" in twin.log_text
    async with Admin(address) as admin:
        await admin.create_topic("orders", partitions=1, replicas=3)
        with pytest.raises(BrokerNotFound):
            await admin.reassign({("orders", 0): [0, 9]})
        assert (await admin.reassignments()).state == "none"
        plan = tmp_path / "plan.json"
        plan.write_text('{"orders/0": [0, 9]}')
        refused = headrace(
            "cluster", "reassign", "--plan", str(plan), "--execute", bootstrap=address
        )
        assert (refused.code, "no broker 9" in refused.err) == (1, True)
        with pytest.raises(BrokerNotFound):
            await admin.cordon(9)
        found = (await admin.describe_topic("orders")).partitions[0]
        leader = next(b for i, b in enumerate(cluster.brokers) if i == found.leader)
        leader.kill()
        others = [broker.url for broker in cluster.brokers if broker is not leader]

    async with Admin(others[0]) as admin:

        async def is_led_anew() -> bool:
            now = (await admin.describe_topic("orders")).partitions[0]
            return now.leader_epoch > found.leader_epoch and now.leader != found.leader

        await until(is_led_anew)
        async with Producer(",".join(others), delivery_timeout=20) as producer:
            await producer.send("orders", b"in the new epoch")
        assert await read(",".join(others), "orders", 1) == [b"in the new epoch"]
