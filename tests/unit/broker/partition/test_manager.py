"""The partition manager: one bad partition, or a bad moment, stops nothing else."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.broker.api.offsets import Offsets
from headrace.broker.clock import SystemClock
from headrace.broker.controller.coordination import Coordination
from headrace.broker.controller.membership import Identity
from headrace.broker.core import encoding
from headrace.broker.core.model import (
    Generation,
    Leader,
    Member,
    PartitionRecord,
    Shard,
    TopicObject,
)
from headrace.broker.lifecycle import Lifecycle
from headrace.broker.log.files import Disk, Entry
from headrace.broker.log.logs import Logs
from headrace.broker.log.volume import Volume
from headrace.broker.partition import manager as manager_module
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.quotas import Quotas
from headrace.broker.store import keys
from headrace.broker.store.base import Item, Put
from headrace.broker.store.memory import MemoryCluster, MemoryStore
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import StorageFull
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.models import DeleteRecordsPart
from headrace.protocol.names import OFFSETS_TOPIC
from headrace.protocol.requests import ACKS_LEADER
from testkit.logs import sealed
from testkit.peer_net import PeerNet


class ChangingDisk(Disk):
    """The real disk; `fault` is what making directories and renaming files raise."""

    fault: Exception | None = None

    def make_directory(self, path: str) -> None:
        if self.fault is not None:
            raise self.fault
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        if self.fault is not None and source.endswith(".log"):
            raise self.fault
        super().rename(source, target)


class Machine:
    """Logs, coordination and the manager of one broker, without its API."""

    def __init__(self, path: Path, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster or MemoryCluster()
        self.disk = ChangingDisk()
        volume = Volume.open(str(path), broker_id=0, disk=self.disk)
        self.logs = Logs(volume, files_max=64, io_threads=2, flush_threads=1)
        self.coordination = Coordination(
            MemoryStore(self.cluster),
            Identity(broker_id=0, url="http://127.0.0.1:9420"),
            local=self.logs.local_state,
            prepare=self.logs.prepare,
            on_overtaken=lambda why: None,
            peers=PeerNet().peers_of(0),
        )
        clock = SystemClock()
        self.manager = PartitionManager(
            self.logs, self.coordination.view, broker_id=0, partitions_max=100,
            quotas=Quotas(clock, client_produce=-1, client_fetch=-1), clock=clock,
        )  # fmt: skip
        self.worker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        standing = await self.coordination.start()
        await self.manager.recover(Lifecycle())
        await self.logs.begin()
        self.manager.serve_as(standing.session)
        self.coordination.view.listen(self.manager.on_event)
        self.worker = asyncio.create_task(self.manager.run())
        await self.coordination.activate()

    async def stop(self) -> None:
        assert self.worker is not None
        self.worker.cancel()
        await asyncio.gather(self.worker, return_exceptions=True)
        await self.logs.close(clean=False)
        await self.coordination.stop()

    async def topic(self, name: str, partitions: int = 1, **config: int) -> list[TopicIdPartition]:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        made = await self.coordination.create_topic(name, partitions=partitions, config=settings)
        async with asyncio.timeout(5):
            await self.manager.settled()
        return [TopicIdPartition(made.topic_id, index) for index in range(partitions)]


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    monkeypatch.setattr(manager_module, "RETRY_S", 0.1, raising=False)
    found = Machine(tmp_path)
    await found.start()
    yield found
    await found.stop()


def append(partition: Partition) -> None:
    partition.append(memoryview(sealed([b"x" * 100])), acks=ACKS_LEADER, now_ms=1)


async def usable(machine: Machine, where: TopicIdPartition) -> Partition:
    async with asyncio.timeout(5):
        while True:
            found = machine.manager.get(where)
            if found is not None and found.offline is None:
                return found
            await asyncio.sleep(0.02)


async def test_partitions_that_had_no_room_are_made_once_there_is_some(machine: Machine) -> None:
    machine.disk.fault = OSError(errno.ENOSPC, "No space left on device")
    [where] = await machine.topic("full")
    with pytest.raises(StorageFull):
        machine.manager.find(where)
    machine.disk.fault = None
    append(await usable(machine, where))


async def test_an_unforeseen_fault_doesnt_end_the_worker(machine: Machine) -> None:
    machine.disk.fault = RuntimeError("can't start new thread")
    [where] = await machine.topic("unlucky")
    machine.disk.fault = None
    [other] = await machine.topic("lucky")
    append(await usable(machine, other))
    append(await usable(machine, where))


async def test_retention_goes_on_behind_a_partition_whose_disk_refuses(machine: Machine) -> None:
    settings = {"segment.bytes": 1_048_576, "retention.ms": 1}
    made = await machine.coordination.create_topic("old", partitions=3, config=settings)
    await machine.manager.settled()
    parts = [machine.manager.find(TopicIdPartition(made.topic_id, index)) for index in range(3)]
    for partition in parts:
        append(partition)
        partition.log.roll()
    await machine.logs.flusher.flush_all([partition.log for partition in parts])
    for partition in parts:
        partition.advance_high_watermark()

    class Refuses(ChangingDisk):
        def rename(self, source: str, target: str) -> None:
            if source.startswith(parts[0].log.directory):
                raise OSError(errno.EPERM, "Operation not permitted", source)
            super().rename(source, target)

    machine.disk.__class__ = Refuses
    await machine.manager.apply_retention()
    assert [partition.log.start_offset for partition in parts[1:]] == [1, 1]


class SlowFirst(ChangingDisk):
    """The first thread that lists a directory takes its time."""

    listings = 0

    def list_directory(self, path: str) -> list[Entry]:
        self.listings += 1
        if self.listings == 1:
            time.sleep(0.3)
        return super().list_directory(path)


async def test_first_batches_after_a_start_are_appended_in_the_order_in_which_they_came(
    machine: Machine,
) -> None:
    [where] = await machine.topic("orders")
    partition = machine.manager.find(where)
    append(partition)
    partition.log.producers = None  # as after a start

    async def produce(sequence: int) -> int:
        await partition.learn_producers()
        data = sealed([b"x"], producer_id=7, producer_epoch=0, base_sequence=sequence)
        return partition.append(memoryview(data), acks=ACKS_LEADER, now_ms=1)[0].base_offset

    machine.disk.__class__ = SlowFirst
    gone = asyncio.create_task(partition.learn_producers())
    arrived = [asyncio.create_task(produce(sequence)) for sequence in range(3)]
    await asyncio.sleep(0.05)
    gone.cancel()  # its client hung up
    assert await asyncio.gather(*arrived) == [1, 2, 3]
    assert isinstance(machine.disk, SlowFirst)
    assert machine.disk.listings == 1


class NoRoomForFiles(ChangingDisk):
    """The volume has no room for one more file."""

    def open(self, path: str, *, create: bool = False) -> int:
        if create and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open(path, create=create)


async def test_retention_makes_room_when_there_is_none_for_a_new_segment(machine: Machine) -> None:
    made = await machine.coordination.create_topic(
        "old", partitions=1, config={"retention.ms": 1, "flush.policy": "none"}
    )
    await machine.manager.settled()
    partition = machine.manager.find(TopicIdPartition(made.topic_id, 0))
    append(partition)
    partition.log.roll()
    append(partition)
    machine.disk.__class__ = NoRoomForFiles
    await machine.manager.apply_retention()
    assert partition.log.start_offset == 1


async def test_deleting_records_goes_to_its_end_when_the_client_hangs_up(
    machine: Machine, tmp_path: Path
) -> None:
    [where] = await machine.topic("short")
    partition = machine.manager.find(where)
    data = sealed([b"x"], producer_id=7, producer_epoch=0, base_sequence=0)
    partition.append(memoryview(data), acks=ACKS_LEADER, now_ms=1)
    partition.log.producers = None  # as after a start: they are told from what is about to go
    partition.log.roll()
    append(partition)
    await machine.logs.flusher.flush_all([partition.log])
    machine.disk.__class__ = SlowFirst
    parts = [DeleteRecordsPart("short", 0, 1)]
    asked = asyncio.create_task(Offsets(machine.manager).delete_records(parts))
    await asyncio.sleep(0.05)
    assert not asked.done()
    asked.cancel()
    async with asyncio.timeout(5):
        while len(list(tmp_path.glob("partitions/*/0/*.log"))) > 1:
            await asyncio.sleep(0.02)


async def test_what_was_cut_after_a_power_cut_goes_once_another_replica_is_in_sync(
    tmp_path: Path,
) -> None:
    first = Machine(tmp_path)
    await first.start()
    [where] = await first.topic("kept")
    append(first.manager.find(where))
    await first.stop()
    directory = tmp_path / "partitions" / where.topic_id.hex() / "0"
    cut = directory / f"{0:020d}.cut-0"
    cut.write_bytes(b"half a batch")
    again = Machine(tmp_path, first.cluster)
    await again.start()
    await again.manager.settled()
    await again.manager.apply_retention()
    assert cut.exists()
    partition = again.manager.find(where)
    assert partition.record is not None
    isr = (*partition.record.isr, Member(1, Generation(0, 0)))
    partition.record = replace(partition.record, replicas=(0, 1), isr=isr)
    await again.manager.apply_retention()
    assert not cut.exists()
    await again.stop()


async def test_a_role_that_couldnt_be_taken_at_once_is_taken_later(machine: Machine) -> None:
    view = machine.coordination.view
    await asyncio.sleep(0.5)  # a change of the cluster object makes everything looked at as well
    await machine.manager.settled()
    key = keys.shard(OFFSETS_TOPIC, 0)
    item = view.item(key)
    assert item is not None
    shard = encoding.decode_shard(item.value)
    assert isinstance(shard, Shard)
    records = [r for r in shard.records if isinstance(r, PartitionRecord)]
    faults = [RuntimeError("can't start new thread")]
    led: list[int] = []

    def lead(partition: Partition, topic: TopicObject) -> None:
        if faults:
            raise faults.pop()
        led.append(partition.leader_epoch)

    machine.manager.on_lead = lead
    again = replace(records[0], partition_epoch=1, leader_epoch=1)
    value = encoding.encode_shard(replace(shard, records=(again, *records[1:])))
    view.apply([Put(Item(key, value, "elected again"))])
    async with asyncio.timeout(5):
        while 1 not in led:
            await asyncio.sleep(0.02)


class Poor(ChangingDisk):
    """No file can be opened to be read: there are too many open ones."""

    def open_to_read(self, path: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files", path)


async def test_a_log_that_cant_be_opened_now_lets_others_lead_and_keeps_its_files(
    tmp_path: Path,
) -> None:
    first = Machine(tmp_path)
    await first.start()
    [where] = await first.topic("kept")
    append(first.manager.find(where))
    await first.stop()
    again = Machine(tmp_path, first.cluster)
    again.disk.__class__ = Poor
    left: list[int] = []

    async def leave(topic_id: TopicId, partition: int) -> None:
        left.append(partition)

    again.manager.mark_failed = leave
    await again.start()
    await again.manager.settled()
    record = again.coordination.view.record(*where)
    assert isinstance(record, PartitionRecord)
    assert not left  # nobody else has anything
    isr = (*record.isr, Member(1, Generation(0, 0)))
    change_record(again, where, replace(record, replicas=(0, 1), isr=isr))
    async with asyncio.timeout(5):
        while not left:
            await asyncio.sleep(0.02)
    change_record(again, where, replace(record, replicas=(0, 1), isr=isr[1:], leader=Leader(1, 1)))
    await asyncio.sleep(0.3)
    assert again.manager.replaced == 0
    await again.stop()


def change_record(machine: Machine, where: TopicIdPartition, record: PartitionRecord) -> None:
    """The store says so of the only partition of a topic."""
    name = machine.manager.topic_name(where.topic_id)
    assert name is not None
    known = machine.coordination.view.record(*where)
    assert isinstance(known, PartitionRecord)
    following = replace(
        record, partition_epoch=known.partition_epoch + 1, leader_epoch=known.leader_epoch + 1
    )
    key = keys.shard(name, 0)
    value = encoding.encode_shard(Shard(where.topic_id, 0, (following,)))
    machine.coordination.view.apply([Put(Item(key, value, f"of {following.partition_epoch}"))])


class Refusing(ChangingDisk):
    """Nothing can be appended to the volume's own journals."""

    refused = 0

    def append_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        self.refused += 1
        raise OSError(errno.EIO, "Input/output error", path)


async def test_a_broken_replica_whose_disk_refuses_is_mended_after_pauses(machine: Machine) -> None:
    [where] = await machine.topic("broken")
    record = machine.coordination.view.record(*where)
    assert isinstance(record, PartitionRecord)
    isr = (Member(1, Generation(1, 0)),)
    moved = replace(record, replicas=(0, 1), isr=isr, leader=Leader(1, 1))

    async def has_left(topic_id: TopicId, partition: int) -> None:
        pass

    machine.manager.mark_failed = has_left
    machine.disk.__class__ = Refusing
    machine.manager.find(where).log.fail("the disk says so")
    change_record(machine, where, moved)
    await asyncio.sleep(0.35)
    refusing = machine.disk
    assert isinstance(refusing, Refusing)
    assert 1 <= refusing.refused <= 5
    machine.disk.__class__ = ChangingDisk
    async with asyncio.timeout(5):
        while not machine.manager.replaced:
            await asyncio.sleep(0.02)


async def test_a_log_that_could_not_be_opened_is_opened_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "REOPEN_S", 0.1)
    first = Machine(tmp_path)
    await first.start()
    [where] = await first.topic("kept")
    append(first.manager.find(where))
    await first.stop()
    again = Machine(tmp_path, first.cluster)
    again.disk.__class__ = Poor
    await again.start()
    await again.manager.settled()
    found = again.manager.get(where)
    assert found is not None
    assert found.offline is not None
    again.disk.__class__ = ChangingDisk
    assert (await usable(again, where)).log.end_offset == 1
    assert not again.logs.is_curable(where)
    await again.stop()
