"""The leader's answers to followers: what they say of a log was compared with the leader's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.broker.clock import SystemClock
from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord, TopicObject
from headrace.broker.lifecycle import Lifecycle
from headrace.broker.log.files import Disk
from headrace.broker.log.logs import Logs
from headrace.broker.log.volume import Volume
from headrace.broker.partition.manager import PartitionManager
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.quotas import Quotas
from headrace.broker.replication import serving
from headrace.broker.replication.serving import ReplicaServer
from headrace.broker.replication.stats import ReplicationStats
from headrace.protocol import framing
from headrace.protocol.errors import Conflict
from headrace.protocol.ids import TopicId
from headrace.protocol.replication import (
    ReplicaPart,
    ReplicaRequest,
    ReplicaResponse,
    ReplicaResult,
)
from headrace.protocol.requests import ACKS_LEADER
from testkit.logs import sealed

TOPIC = TopicId(b"t" * 16)
EPOCH = 7
LEADER, BEHIND, IN_SYNC = 0, 1, 2
_responses = msgspec.msgpack.Decoder(ReplicaResponse)


def record_of(partition: int, epoch: int = EPOCH) -> PartitionRecord:
    members = tuple(Member(broker, Generation(0, 0)) for broker in (LEADER, IN_SYNC))
    replicas = (LEADER, BEHIND, IN_SYNC)
    return PartitionRecord(TOPIC, partition, epoch, epoch, Leader(LEADER, 1), members, (), replicas)


Answers = dict[int, ReplicaResult]


class Led:
    """A broker that leads two partitions and answers their followers."""

    def __init__(self, path: Path) -> None:
        clock = SystemClock()
        view = ClusterView()
        topic = TopicObject("t", TOPIC, partition_count=2, replicas=3)
        view.preload(None, [topic], [record_of(0), record_of(1)])
        self.disk = Disk()
        volume = Volume.open(str(path), broker_id=LEADER, disk=self.disk)
        self.logs = Logs(volume, files_max=16, io_threads=1, flush_threads=1)
        self.manager = PartitionManager(
            self.logs, view, broker_id=LEADER, partitions_max=10,
            quotas=Quotas(clock, client_produce=-1, client_fetch=-1), clock=clock,
        )  # fmt: skip
        self.server = ReplicaServer(
            self.manager, clock=clock, consider=lambda partition: None, stats=ReplicationStats()
        )
        self._sequences: dict[int, int] = {}

    async def fetch(self, follower: int, *parts: ReplicaPart, max_bytes: int = 1 << 20) -> Answers:
        sequence = self._sequences.get(follower, 0)
        self._sequences[follower] = sequence + 1
        request = ReplicaRequest(follower, 1, 0, 0, 5, sequence, 0, max_bytes, list(parts), [])
        body = b"".join(await self.server.fetch(memoryview(framing.head(request))))
        response, _ = framing.split(body, _responses)
        return {result.partition: result for result in response.parts}

    def partition(self, index: int) -> Partition:
        return next(each for each in self.manager if each.id.partition == index)


def part(index: int, offset: int, last_epoch: int) -> ReplicaPart:
    return ReplicaPart(TOPIC, index, EPOCH, offset, last_epoch, 1 << 20)


@pytest.fixture
async def led(tmp_path: Path) -> AsyncIterator[Led]:
    found = Led(tmp_path)
    await found.manager.recover(Lifecycle())
    for index in (0, 1):
        found.partition(index).become_leader(record_of(index, 5))
    yield found
    await found.logs.close(clean=False)


def append(partition: Partition, payload: bytes) -> None:
    partition.append(memoryview(sealed([payload])), acks=ACKS_LEADER, now_ms=1)


async def test_how_far_is_committed_is_told_only_of_logs_that_were_compared(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "BREATH_BYTES", 1)
    full, other = led.partition(0), led.partition(1)
    append(other, b"of epoch 5")
    for index in (0, 1):
        led.partition(index).become_leader(record_of(index))
    append(full, b"x" * 4096)
    append(other, b"of epoch 7")
    # A follower that led in epochs 4 and 6 is told to cut; after that it still has another history.
    found = await led.fetch(BEHIND, part(1, 3, 6))
    assert found[1].diverging_end == 1
    # It lists again behind a partition that fills the answer; meanwhile the second record of
    # epoch 7 is committed by others.
    behind = asyncio.create_task(led.fetch(BEHIND, part(0, 0, -1), part(1, 2, 6), max_bytes=1))
    in_sync = asyncio.create_task(led.fetch(IN_SYNC, part(1, 2, EPOCH)))
    await in_sync
    found = await behind
    assert other.high_watermark == 2
    assert found[0].length > 0
    assert 1 not in found or found[1].diverging_end == 1


async def test_a_new_replica_that_fetches_before_the_leader_has_heard_of_it_is_counted_then(
    led: Led,
) -> None:
    partition = led.partition(0)
    known = replace(record_of(0), replicas=(LEADER, IN_SYNC))
    partition.become_leader(known)
    assert partition.replicas is not None
    assert not await led.fetch(BEHIND, part(0, 0, -1))
    assert BEHIND not in partition.replicas.followers
    partition.become_leader(replace(record_of(0), partition_epoch=EPOCH + 1))
    await led.fetch(BEHIND)
    assert partition.replicas.followers[BEHIND].offset == 0


class Unlucky(Disk):
    """Reads of one size fail in a way that nobody foresaw."""

    unlucky_bytes = -1

    def pread_nowait(self, fd: int, size_bytes: int, position: int) -> bytearray | None:
        if size_bytes == self.unlucky_bytes:
            raise RuntimeError("can't start new thread")
        return super().pread_nowait(fd, size_bytes, position)


async def test_a_partition_with_an_unforeseen_fault_keeps_no_other_from_being_copied(
    led: Led,
) -> None:
    for index in (0, 1):
        led.partition(index).become_leader(record_of(index))
    append(led.partition(0), b"x" * 100)
    append(led.partition(1), b"y" * 200)
    Unlucky.unlucky_bytes = led.partition(0).log.size_bytes
    led.disk.__class__ = Unlucky
    found = await led.fetch(BEHIND, part(0, 0, -1), part(1, 0, -1))
    assert found[0].error == "internal"
    assert found[1].length > 0
    led.disk.__class__ = Disk
    found = await led.fetch(BEHIND, part(0, 0, -1))
    assert found[0].length > 0


async def test_records_are_deleted_once_every_in_sync_follower_has_heard_of_it(led: Led) -> None:
    partition = led.partition(0)
    partition.become_leader(record_of(0))
    append(partition, b"to be deleted")
    await led.fetch(IN_SYNC, part(0, 0, -1))
    await led.fetch(IN_SYNC, part(0, 1, EPOCH))
    await led.fetch(BEHIND, part(0, 0, -1))
    assert partition.high_watermark == 1
    await partition.delete_before(1)
    assert partition.replicas_before(1) == [IN_SYNC]
    found = await led.fetch(IN_SYNC)
    assert found[0].log_start_offset == 1
    assert partition.replicas_before(1) == [IN_SYNC], "it was told, but may have died since"
    await led.fetch(IN_SYNC)
    assert partition.replicas_before(1) == []
    assert partition.replicas_before(2) == [IN_SYNC]


async def test_a_request_that_arrives_twice_begins_its_session_once(led: Led) -> None:
    led.partition(0).become_leader(record_of(0))
    append(led.partition(0), b"one")
    first = await led.fetch(BEHIND, part(0, 0, -1))
    assert first[0].length > 0
    led._sequences[BEHIND] = 0
    with pytest.raises(Conflict, match="begun already"):
        await led.fetch(BEHIND, part(0, 0, -1))
    led._sequences[BEHIND] = 1
    append(led.partition(0), b"two")
    following = await led.fetch(BEHIND, part(0, 1, EPOCH))
    assert following[0].first_offset == 1
