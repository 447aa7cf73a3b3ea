"""Each alert fires when what it watches for is done to real processes, and not before.

The operator's: test_operator_alerts_fire.py. test_definitions.py says that none is forgotten.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.protocol import routes
from headrace.sdk import sync
from observability.alerts import ALERTS
from testkit.alerts import Scrape, fires, scrape
from testkit.brokers import BrokerProcess
from testkit.clusters import ClusterProcesses
from testkit.http import Http, one_batch

BY_NAME = {alert.name: alert for alert in ALERTS}
WITHIN_S = 60.0


def look(brokers: list[BrokerProcess]) -> Scrape:
    return scrape({f"main-{at}": broker.health_url for at, broker in enumerate(brokers)})


def holds(name: str, *scrapes: Scrape) -> bool:
    return bool(fires(BY_NAME[name], scrapes))


def until_it_fires(
    name: str, brokers: list[BrokerProcess], *before: Scrape, poke: Callable[[], object] = int
) -> None:
    """Scrapes until the alert's expression holds."""
    deadline = time.monotonic() + WITHIN_S
    scrapes = list(before)
    while True:
        poke()
        scrapes.append(look(brokers))
        if holds(name, *scrapes):
            return
        assert time.monotonic() < deadline, f"{name} doesn't fire"
        time.sleep(0.2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    made = ClusterProcesses(tmp_path / "cluster")
    try:
        yield made.start()
    finally:
        for broker in made.brokers:
            if broker.is_launched:
                broker.resume()
                broker.kill()


def test_a_healthy_cluster_is_quiet(cluster: ClusterProcesses) -> None:
    with sync.Admin(cluster.bootstrap) as admin, sync.Producer(cluster.bootstrap) as producer:
        admin.create_topic("orders", partitions=3, replicas=3)
        producer.send_many("orders", [b"x"] * 100)
        before = look(cluster.brokers)
        producer.send_many("orders", [b"x"] * 100)
    deadline = time.monotonic() + WITHIN_S
    while loud := [
        alert.name for alert in ALERTS if holds(alert.name, before, look(cluster.brokers))
    ]:
        # New partitions need a moment; anything else stays.
        assert time.monotonic() < deadline, loud
        time.sleep(0.2)


def test_brokers_that_die_show_by_what_their_partitions_lack(cluster: ClusterProcesses) -> None:
    with sync.Admin(cluster.bootstrap) as admin:
        admin.create_topic("orders", partitions=3, replicas=3)
        admin.create_topic("alone", partitions=3, replicas=1)
    cluster.brokers[1].kill()
    rest = [cluster.brokers[0], cluster.brokers[2]]
    until_it_fires("HeadraceLeaderlessPartitions", rest)
    until_it_fires("HeadraceUnderReplicated", rest)
    assert not holds("HeadraceUnderMinIsr", look(rest))
    rest[1].kill()
    until_it_fires("HeadraceUnderMinIsr", rest[:1])


def test_a_controller_that_dies_is_missed(cluster: ClusterProcesses) -> None:
    until_quiet("HeadraceController", cluster.brokers)
    found = look(cluster.brokers).of("headrace_is_controller", {})
    (pod,) = (dict(labels)["pod"] for labels, value in found.items() if value)
    cluster.brokers[int(pod.removeprefix("main-"))].kill()
    until_it_fires("HeadraceController", cluster.brokers)


def test_who_is_alone_takes_nothing(cluster: ClusterProcesses) -> None:
    with sync.Admin(cluster.bootstrap) as admin:
        admin.create_topic("orders", partitions=3, replicas=3)
    held = sqlite3.connect(cluster.store_path, isolation_level=None, timeout=5)
    try:
        held.execute("BEGIN EXCLUSIVE")
        for broker in cluster.brokers[1:]:
            broker.signal(signal.SIGSTOP)
        until_it_fires("HeadraceIsolated", cluster.brokers[:1])
    finally:
        held.execute("ROLLBACK")
        held.close()


def until_quiet(name: str, brokers: list[BrokerProcess]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while holds(name, look(brokers)):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_store_that_was_put_back_shows(cluster: ClusterProcesses) -> None:
    with sync.Admin(cluster.bootstrap) as admin:
        admin.create_topic("orders", partitions=3, replicas=3)
        cluster.stop()
        backup = {path.name: path.read_bytes() for path in cluster.folder.glob("cluster.sqlite*")}
        cluster.start()
        admin.create_topic("later", partitions=3, replicas=3)
    for broker in cluster.brokers:
        until_copied(broker, b"later")
    cluster.kill()
    for path in cluster.folder.glob("cluster.sqlite*"):
        path.unlink()
    for name, text in backup.items():
        (cluster.folder / name).write_bytes(text)
    for broker in cluster.brokers:
        broker.launch()
    until_it_fires("HeadraceStoreWentBack", cluster.brokers)
    until_it_fires("HeadraceSuspectPartitions", cluster.brokers)


def until_copied(broker: BrokerProcess, word: bytes) -> None:
    """Waits until the broker's disk has copies of what the store says about it."""
    deadline = time.monotonic() + WITHIN_S
    while word not in (broker.data_dir / "states").read_bytes():
        assert time.monotonic() < deadline, "no copy is written"
        time.sleep(0.1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One broker, not started yet."""
    made = BrokerProcess(tmp_path / "broker")
    yield made
    if made.is_launched:
        made.resume()
        made.kill()


def test_a_disk_that_fills_up_is_told_before_it_is_full(broker: BrokerProcess) -> None:
    broker.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(broker.folder).free
    broker.set(HEADRACE_DISK_RESERVE_BYTES=str(free * 2 // 3))
    broker.start()
    found = look([broker])
    assert holds("HeadraceDiskFillsUp", found)
    assert not holds("HeadraceStorageFull", found)
    broker.kill()
    broker.set(HEADRACE_DISK_RESERVE_BYTES=str(free * 2))
    broker.start()
    assert holds("HeadraceStorageFull", look([broker]))


def test_a_broker_that_starts_again_and_again(broker: BrokerProcess) -> None:
    scrapes = []
    for _ in range(4):
        broker.start()
        scrapes.append(look([broker]))
        broker.kill()
        # The start is told in hundredths of a second.
        time.sleep(0.02)
    assert not holds("HeadraceBrokerRestarts", *scrapes[:2])
    assert holds("HeadraceBrokerRestarts", *scrapes)


def test_a_broker_that_stands_still(broker: BrokerProcess) -> None:
    broker.start()
    assert not holds("HeadraceLoopStalls", look([broker]))
    broker.signal(signal.SIGSTOP)
    time.sleep(1.6)
    broker.resume()
    until_it_fires("HeadraceLoopStalls", [broker])


def test_more_connections_than_there_may_be(broker: BrokerProcess) -> None:
    broker.set(HEADRACE_CONNECTIONS_MAX="2")
    broker.start()
    before = look([broker])

    async def crowd() -> None:
        writers = []
        for _ in range(6):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writers.append(writer)
        await asyncio.sleep(0.2)
        for writer in writers:
            writer.close()

    until_it_fires(
        "HeadraceConnectionsRefused", [broker], before, poke=lambda: asyncio.run(crowd())
    )


def test_a_group_that_is_far_behind(broker: BrokerProcess) -> None:
    broker.start()
    with sync.Admin(broker.url) as admin, sync.Producer(broker.url) as producer:
        admin.create_topic("orders", partitions=1)
        with sync.Consumer(broker.url, "orders", group="late", offset_reset="earliest") as consumer:
            producer.send_many("orders", [b"x"])
            consumer.fetch(max_records=1, timeout=5)
            consumer.commit()
        until_quiet("HeadraceGroupLag", [broker])
        producer.send_many("orders", [b"x"] * 100_100)
    until_it_fires("HeadraceGroupLag", [broker])


def test_errors_of_the_brokers_own(broker: BrokerProcess) -> None:
    """A broker whose store can't be written answers 503 to those who want a topic."""
    broker.start()
    before = look([broker])
    held = sqlite3.connect(next(broker.data_dir.glob("store*.db")), isolation_level=None, timeout=5)

    async def ask() -> None:
        async with Http(broker.url) as http:
            body = {"name": "t", "partitions": 1}
            calls = [
                http.call("POST", routes.TOPICS, json={**body, "name": f"t{at}"}, timeout_s=60)
                for at in range(30)
            ]
            replies = await asyncio.gather(*calls)
            assert {reply.status // 100 for reply in replies} == {5}

    try:
        held.execute("BEGIN EXCLUSIVE")
        until_it_fires("HeadraceServerErrors", [broker], before, poke=lambda: asyncio.run(ask()))
    finally:
        held.execute("ROLLBACK")
        held.close()


def test_work_in_the_background_that_keeps_failing(broker: BrokerProcess) -> None:
    broker.set(HEADRACE_CHECKPOINT_INTERVAL_MS="50")
    broker.start()
    before = look([broker])
    (checkpoint,) = broker.data_dir.glob("*checkpoint*")
    checkpoint.unlink()
    checkpoint.mkdir()
    (checkpoint / "in the way").touch()

    async def write() -> None:
        async with Http(broker.url) as http:
            topic = await http.topic()
            await http.produce((topic.topic_id, 0, one_batch(b"x")))

    until_it_fires(
        "HeadraceBackgroundFailures", [broker], before, poke=lambda: asyncio.run(write())
    )


def _damage(log: Path) -> None:
    """Turns a bit round in the first of many batches."""
    (segment, *_) = sorted(log.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)


def test_logs_that_break(cluster: ClusterProcesses) -> None:
    with sync.Admin(cluster.bootstrap) as admin, sync.Producer(cluster.bootstrap) as producer:
        topics = {
            name: admin.create_topic(name, partitions=1, replicas=replicas)
            for name, replicas in (("copied", 3), ("alone", 1))
        }
        for name in topics:
            for _ in range(10):
                producer.send(name, b"x" * 100)
        (alone,) = admin.describe_topic("alone").partitions
        (copied,) = admin.describe_topic("copied").partitions
    follower = next(at for at in copied.replicas if at != copied.leader)
    assert alone.leader is not None
    for at, topic in ((follower, topics["copied"]), (alone.leader, topics["alone"])):
        broker = cluster.brokers[at]
        broker.kill()
        _damage(broker.data_dir / "partitions" / topic.topic_id / "0")
        broker.start()
    until_it_fires("HeadraceOfflineReplicas", cluster.brokers)
    # The counter is at one already, or soon; a broker that hasn't had any trouble is at zero.
    before = scrape_at_zero("headrace_replicas_replaced_total", cluster.brokers)
    until_it_fires("HeadraceReplicasReplaced", cluster.brokers, before)


def scrape_at_zero(metric: str, brokers: list[BrokerProcess]) -> Scrape:
    """As it was when the brokers began, which is before the first scrape could be had."""
    now = look(brokers)
    zeroed = {key: 0.0 if key[0] == metric else value for key, value in now.samples.items()}
    return Scrape(now.at_s - 60, zeroed)


def test_compaction_without_room(broker: BrokerProcess) -> None:
    config: dict[str, str | int | float | bool] = {
        "cleanup.policy": "compact",
        "segment.bytes": 20_000,
        "segment.ms": 1_000,
    }
    broker.set(HEADRACE_COMPACTION_INTERVAL_MS="3600000")
    broker.start()
    with sync.Admin(broker.url) as admin, sync.Producer(broker.url) as producer:
        admin.create_topic("orders", partitions=4, config=config)
        values = [bytes(1_000)] * 15
        for partition in list(range(4)) * 4:
            producer.send_many("orders", values, keys=[b"k"] * 15, partition=partition)
    broker.stop()
    free = shutil.disk_usage(broker.folder).free
    broker.set(HEADRACE_COMPACTION_INTERVAL_MS="1000", HEADRACE_DISK_RESERVE_BYTES=str(free * 2))
    broker.start()
    before = scrape_at_zero("headrace_compaction_failures_total", [broker])
    until_it_fires("HeadraceCompactionFails", [broker], before)
