"""What is wrong with a data directory or a store is said clearly, costs no acknowledged record, and
only what is broken stands still."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from headrace.protocol import batch, routes
from headrace.protocol.models import TopicInfo
from testkit.brokers import BrokerProcess
from testkit.http import Http, one_batch
from testkit.volumes import Ballast, make_read_only, make_writable, small_volume

MIB = 1 << 20


def refusal(broker: BrokerProcess) -> str:
    """What a broker that can't start says at last; it must end by itself with code 1."""
    before = len(broker.log_text)
    broker.launch()
    assert broker.wait() == 1, broker.log_text
    said = broker.log_text[before:]
    assert "Traceback" not in said, said
    return next(line for line in said.splitlines() if "can't start" in line)


@asynccontextmanager
async def running(broker: BrokerProcess) -> AsyncIterator[Http]:
    """The broker started, a client, and a clean stop."""
    broker.start()
    try:
        async with Http(broker.url) as http:
            yield http
        assert broker.stop() == 0, broker.log_text[-3000:]
    finally:
        broker.stop()


async def values(http: Http, topic: TopicInfo, partition: int = 0) -> list[bytes | None]:
    """All values of a partition."""
    found: list[bytes | None] = []
    while True:
        result, batches = await http.fetch(topic.topic_id, partition, len(found))
        assert result.error is None, result
        if not batches:
            return found
        for header, data in batches:
            found += [record.value for record in batch.records("", 0, data, header)]


def directory(broker: BrokerProcess, topic: TopicInfo, partition: int = 0) -> Path:
    """Where a partition's log is."""
    return broker.data_dir / "partitions" / topic.topic_id / str(partition)


def flip(path: Path, position: int) -> None:
    """One bit of a file, as bad memory or a bad disk would; negative: from the end."""
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


# --- a directory that can't be used ---------------------------------------------------------------


async def test_a_second_broker_on_the_directory_is_refused_and_the_first_goes_on(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    async with running(own_broker) as http:
        topic = await http.topic()
        second = BrokerProcess(tmp_path / "second")
        second.data_dir = own_broker.data_dir
        assert "another broker is running on" in refusal(second)
        await http.write(topic, b"still here")


def test_a_file_in_the_directorys_place_is_named(own_broker: BrokerProcess) -> None:
    own_broker.folder.mkdir()
    own_broker.data_dir.write_bytes(b"not a directory")
    assert f"{own_broker.data_dir} can't be used" in refusal(own_broker)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_a_directory_that_cannot_be_made_is_named(own_broker: BrokerProcess) -> None:
    own_broker.data_dir = Path("/proc/headrace")
    assert "the data directory /proc/headrace can't be used" in refusal(own_broker)


async def test_a_read_only_directory_is_refused_and_nothing_in_it_is_lost(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", size_bytes=16 * MIB) as volume:
        broker = BrokerProcess(tmp_path / "own")
        broker.data_dir = volume / "data"
        async with running(broker) as http:
            topic = await http.topic()
            await http.write(topic, b"kept")
        make_read_only(volume)
        assert "Read-only file system" in refusal(broker)
        make_writable(volume)
        async with running(broker) as http:
            assert await values(http, topic) == [b"kept"]


async def test_a_newer_format_is_refused_untouched(own_broker: BrokerProcess) -> None:
    async with running(own_broker) as http:
        topic = await http.topic()
        await http.write(topic, b"kept")
    meta = own_broker.data_dir / "meta.json"
    original = meta.read_bytes()
    meta.write_bytes(json.dumps({**json.loads(original), "format": 99}).encode())
    assert "has format 99, this version knows 1" in refusal(own_broker)
    meta.write_bytes(original)
    async with running(own_broker) as http:
        assert await values(http, topic) == [b"kept"]


async def test_a_directory_of_another_cluster_or_broker_is_refused(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    async with running(own_broker) as http:
        topic = await http.topic()
        await http.write(topic, b"kept")
    other = BrokerProcess(tmp_path / "other").start()
    assert other.stop() == 0
    lost = BrokerProcess(tmp_path / "lost", HEADRACE_STORE=f"sqlite:{other.data_dir / 'store.db'}")
    lost.data_dir = own_broker.data_dir
    assert "cluster" in refusal(lost)
    renamed = BrokerProcess(tmp_path / "renamed", HEADRACE_BROKER_ID="5")
    renamed.data_dir = own_broker.data_dir
    assert "belongs to broker 0, this one is 5" in refusal(renamed)
    async with running(own_broker) as http:
        assert await values(http, topic) == [b"kept"]


async def test_a_damaged_meta_file_is_named(own_broker: BrokerProcess) -> None:
    assert own_broker.start().stop() == 0
    (own_broker.data_dir / "meta.json").write_bytes(b"\0" * 100)
    assert "meta.json is damaged" in refusal(own_broker)


def test_a_port_that_is_taken_is_named(own_broker: BrokerProcess, tmp_path: Path) -> None:
    own_broker.start()
    for attribute in ("port", "health_port"):
        second = BrokerProcess(tmp_path / attribute)
        setattr(second, attribute, getattr(own_broker, attribute))
        assert str(getattr(own_broker, attribute)) in refusal(second)


# --- damage ---------------------------------------------------------------------------------------


FORTY = [b"%03d" % n for n in range(40)]


async def killed(broker: BrokerProcess) -> TopicInfo:
    """A topic of two partitions with 40 records each in several segments, the broker killed."""
    broker.start()
    async with Http(broker.url) as http:
        topic = await http.topic(partitions=2, segment_bytes=2_000, index_interval_bytes=500)
        for partition in range(2):
            await http.write(topic, *FORTY, partition=partition)
    broker.kill()
    return topic


@asynccontextmanager
async def started_again(broker: BrokerProcess, topic: TopicInfo) -> AsyncIterator[Http]:
    """The broker after something was done to partition 0; partition 1 must not feel it."""
    async with running(broker) as http:
        assert await values(http, topic, 1) == FORTY
        yield http
        assert await values(http, topic, 1) == FORTY
        assert await http.write(topic, b"more", partition=1) == [40]


def segments(broker: BrokerProcess, topic: TopicInfo) -> list[Path]:
    """The segments of partition 0, the oldest first."""
    return sorted(directory(broker, topic).glob("*.log"))


async def is_offline(http: Http, topic: TopicInfo) -> bool:
    """Whether partition 0 refuses reading and writing with a code, and says so when described."""
    [result] = await http.produce((topic.topic_id, 0, one_batch(b"no")))
    fetched, _ = await http.fetch(topic.topic_id, 0, 0)
    described = await http.call("GET", routes.fill(routes.TOPIC, topic=topic.name))
    error = described.json["partitions"][0]["error"]
    told = {result.error, fetched.error, error and error["code"]}
    assert len(told) == 1, told
    return told == {"partition_offline"}


async def test_a_bad_byte_in_a_closed_segments_payload_is_found_by_its_reader(
    own_broker: BrokerProcess,
) -> None:
    topic = await killed(own_broker)
    flip(segments(own_broker, topic)[0], batch.HEADER_BYTES + 3)
    async with started_again(own_broker, topic) as http:
        path = routes.fill(routes.PARTITION_RECORDS, topic=topic.name, partition=0)
        reply = await http.call("GET", path + "?offset=0")
        assert (reply.status, reply.code) == (400, "corrupt_batch")
        rest = await http.call("GET", path + "?offset=1")
        assert [each["value"] for each in rest.json["records"]][:2] == ["001", "002"]
        assert await http.write(topic, b"goes on") == [40]


async def test_a_bad_header_in_a_closed_segment_takes_its_partition_offline(
    own_broker: BrokerProcess,
) -> None:
    topic = await killed(own_broker)
    first = segments(own_broker, topic)[0]
    length = batch.read_header(first.read_bytes()).length
    flip(first, length + 9)
    async with started_again(own_broker, topic) as http:
        fetched, _ = await http.fetch(topic.topic_id, 0, 1)
        assert fetched.error == "partition_offline"
        assert await is_offline(http, topic)


async def test_a_bad_last_batch_after_a_kill_takes_its_partition_offline(
    own_broker: BrokerProcess,
) -> None:
    topic = await killed(own_broker)
    flip(segments(own_broker, topic)[-1], -1)
    async with started_again(own_broker, topic) as http:
        assert await is_offline(http, topic)
        async with Http(own_broker.health_url) as health:
            metrics = await health.call("GET", routes.METRICS)
        assert b"headrace_offline_partitions 1.0" in metrics.body


async def test_a_torn_last_batch_is_cut_and_all_before_it_kept(own_broker: BrokerProcess) -> None:
    """A torn write is all that a killed process can leave; it was never acknowledged."""
    topic = await killed(own_broker)
    with segments(own_broker, topic)[-1].open("ab") as file:
        file.write(one_batch(b"half of this")[:70])
    async with started_again(own_broker, topic) as http:
        assert await values(http, topic) == FORTY
        assert await http.write(topic, b"next") == [40]


async def test_a_partition_whose_folder_is_gone_is_offline_and_the_rest_serves(
    own_broker: BrokerProcess,
) -> None:
    topic = await killed(own_broker)
    shutil.rmtree(directory(own_broker, topic))
    async with started_again(own_broker, topic) as http:
        [result] = await http.produce((topic.topic_id, 0, one_batch(b"no")))
        assert result.error == "partition_offline"
        assert "restore it" in (result.message or "")


# --- no room --------------------------------------------------------------------------------------


async def commit(http: Http, topic: TopicInfo, offset: int) -> None:
    """Commits an offset; it must be taken."""
    part = {"topic": topic.name, "partition": 0, "offset": offset}
    reply = await http.call("POST", "/v1/groups/readers/offsets", json={"offsets": [part]})
    assert (reply.status, reply.json["offsets"][0]["error"]) == (200, None), reply.body


async def delete_before(http: Http, topic: TopicInfo, offset: int) -> None:
    """Removes a partition's oldest records; it must be done, if need be on a second try."""
    part = {"topic": topic.name, "partition": 0, "before_offset": offset}
    for _ in range(5):
        reply = await http.call("POST", routes.DELETE_RECORDS, json={"partitions": [part]})
        if reply.status == 200 or not reply.json["retriable"]:
            break
        await asyncio.sleep(0.5)
    assert reply.status == 200, reply.body
    assert reply.json["partitions"][0]["log_start_offset"] == offset, reply.body


async def fill(http: Http, topic: TopicInfo) -> tuple[str, list[bytes]]:
    """Writes until that is refused; the code, and what was taken."""
    taken: list[bytes] = []
    while len(taken) < 1_000:
        value = b"%06d" % len(taken) + b"x" * 60_000
        [result] = await http.produce((topic.topic_id, 0, one_batch(value)))
        if result.error is not None:
            return result.error, taken
        taken.append(value)
    raise AssertionError("the volume never filled up")


async def test_at_the_reserve_writes_are_refused_and_everything_else_goes_on(
    tmp_path: Path,
) -> None:
    with small_volume(tmp_path / "volume", size_bytes=16 * MIB) as volume:
        broker = BrokerProcess(tmp_path / "own", HEADRACE_DISK_RESERVE_BYTES=str(4 * MIB))
        broker.data_dir = volume / "data"
        async with running(broker) as http:
            topic = await http.topic(segment_bytes=1_000_000)
            code, taken = await fill(http, topic)
            assert code == "storage_full"
            free = os.statvfs(volume)
            assert 2 * MIB < free.f_bavail * free.f_frsize < 4 * MIB
            records = routes.fill(routes.RECORDS, topic=topic.name)
            reply = await http.call("POST", records, json={"records": [{"value": "x"}]})
            assert (reply.status, reply.code) == (507, "storage_full")
            assert int(reply.headers["Retry-After"]) >= 1
            detail = await http.call("GET", routes.fill(routes.BROKER, broker_id=0))
            assert detail.json["storage_full"] is True
            assert await values(http, topic) == taken
            await commit(http, topic, 7)
            await delete_before(http, topic, len(taken) - 10)
            await until_taken(http, topic)


async def until_taken(http: Http, topic: TopicInfo) -> None:
    """Writes are taken again within a few seconds."""
    for _ in range(100):
        [result] = await http.produce((topic.topic_id, 0, one_batch(b"room again")))
        if result.error is None:
            return
        assert result.error == "storage_full", result
        await asyncio.sleep(0.1)
    raise AssertionError("there is room, and writes are still refused")


async def test_a_volume_filled_by_others_to_the_last_byte_loses_nothing(tmp_path: Path) -> None:
    """Below the reserve nobody is safe from ENOSPC: whatever was acknowledged stays, what is
    refused has a code, and once there is room the broker or a new start goes on."""
    with small_volume(tmp_path / "volume", size_bytes=16 * MIB) as volume:
        broker = BrokerProcess(tmp_path / "own", HEADRACE_DISK_RESERVE_BYTES="1")
        broker.data_dir = volume / "data"
        ballast = Ballast(volume)
        async with running(broker) as http:
            topic = await http.topic()
            taken = [b"%d" % n for n in range(20)]
            await http.write(topic, *taken)
            ballast.fill()
            code, more = await fill(http, topic)
            assert code == "storage_full"
            assert await values(http, topic) == taken + more
            ballast.drop()
            await until_taken(http, topic)
            ballast.fill()
        ballast.drop()
        async with running(broker) as http:
            assert await values(http, topic) == [*taken, *more, b"room again"]


async def test_a_full_volume_at_the_start_is_told_and_loses_nothing(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", size_bytes=16 * MIB) as volume:
        broker = BrokerProcess(tmp_path / "own")
        broker.data_dir = volume / "data"
        ballast = Ballast(volume)
        async with running(broker) as http:
            topic = await http.topic()
            await http.write(topic, b"kept")
        ballast.fill()
        assert "No space left" in refusal(broker)
        ballast.drop()
        async with running(broker) as http:
            assert await values(http, topic) == [b"kept"]


# --- the store ------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process stopped in the middle of a write."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


async def changes_are_refused(http: Http, topic: TopicInfo, *, takes: list[bytes]) -> None:
    """Without its store the broker reads, writes and commits, and refuses what needs the store."""
    reply = await http.call("POST", routes.TOPICS, json={"name": "not-now", "partitions": 1})
    assert (reply.status, reply.code) == (503, "store_unavailable"), reply.body
    assert reply.json["retriable"] is True
    await http.write(topic, *takes)
    await commit(http, topic, 1)
    assert (await values(http, topic))[-len(takes) :] == takes


async def test_a_store_locked_by_a_stuck_process_stops_changes_and_starts_and_nothing_else(
    own_broker: BrokerProcess,
) -> None:
    own_broker.start()
    async with Http(own_broker.url) as http:
        topic = await http.topic()
        with locked(own_broker.data_dir / "store.db"):
            await changes_are_refused(http, topic, takes=[b"meanwhile"])
            assert own_broker.stop() == 0, own_broker.log_text[-3000:]
            assert (own_broker.data_dir / "clean").exists()
            assert "another process holds it" in refusal(own_broker)
    async with running(own_broker) as http:
        assert await values(http, topic) == [b"meanwhile"]
        reply = await http.call("POST", routes.TOPICS, json={"name": "now", "partitions": 1})
        assert reply.status == 201, reply.body


async def test_a_store_that_is_replaced_stops_changes_until_it_is_put_back(
    own_broker: BrokerProcess,
) -> None:
    store = own_broker.data_dir / "store.db"
    async with running(own_broker) as http:
        topic = await http.topic()
        aside = store.rename(store.with_name("aside.db"))
        await changes_are_refused(http, topic, takes=[b"without a store"])
        store.write_bytes(aside.read_bytes())
        await changes_are_refused(http, topic, takes=[b"with another"])
        aside.rename(store)
        reply = await http.call("POST", routes.TOPICS, json={"name": "now", "partitions": 1})
        assert reply.status == 201, reply.body
        assert await values(http, topic) == [b"without a store", b"with another"]


async def test_a_store_of_garbage_is_refused_and_left_as_it_is(own_broker: BrokerProcess) -> None:
    async with running(own_broker) as http:
        topic = await http.topic()
        await http.write(topic, b"kept")
    store = own_broker.data_dir / "store.db"
    original = store.read_bytes()
    for garbage in (b"not a database" * 1_000, original[:5_000] + b"\xff" * 20_000):
        store.write_bytes(garbage)
        assert str(store) in refusal(own_broker)
        assert store.read_bytes() == garbage
    store.write_bytes(original)
    async with running(own_broker) as http:
        assert await values(http, topic) == [b"kept"]


async def test_an_empty_store_beside_data_is_refused_and_the_data_kept(
    own_broker: BrokerProcess,
) -> None:
    """Absence never deletes: a lost store is told, and putting it back is all that is needed."""
    async with running(own_broker) as http:
        topic = await http.topic()
        await http.write(topic, b"kept")
    store = own_broker.data_dir / "store.db"
    aside = store.rename(store.with_name("aside.db"))
    assert "cluster" in refusal(own_broker)
    aside.rename(store)
    async with running(own_broker) as http:
        assert await values(http, topic) == [b"kept"]


async def test_a_store_on_a_full_volume_stops_changes_until_there_is_room(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", size_bytes=MIB) as volume:
        broker = BrokerProcess(tmp_path / "own", HEADRACE_STORE=f"sqlite:{volume / 'store.db'}")
        ballast = Ballast(volume)
        async with running(broker) as http:
            topic = await http.topic()
            ballast.fill()
            await changes_are_refused(http, topic, takes=[b"meanwhile"])
            ballast.drop()
            reply = await http.call("POST", routes.TOPICS, json={"name": "now", "partitions": 1})
            assert reply.status == 201, reply.body
