"""Loading committed offsets: a bad moment passes, and nothing is answered before."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from headrace.broker.clock import SystemClock
from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord
from headrace.broker.core.quota import Rates
from headrace.broker.core.topic_config import resolve
from headrace.broker.groups import group_partition
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.group_partition import GroupPartition, run_load
from headrace.broker.groups.records import encode_key, encode_value
from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import Disk
from headrace.broker.log.flusher import Flusher
from headrace.broker.partition.partition import Partition
from headrace.protocol import batch
from headrace.protocol.errors import PartitionOffline
from testkit.logs import PARTITION, Bench, InlineWorkers, append

KEY = encode_key("billing", PARTITION.topic_id, 3)
VALUE = encode_value(42, leader_epoch=0, metadata="", commit_time_ms=1)


class FewDescriptors(Disk):
    """Files can't be opened while `is_out`."""

    is_out = False

    def open(self, path: str, *, create: bool = False) -> int:
        if self.is_out:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, create=create)


def leading(bench: Bench) -> Partition:
    log, _ = bench.open()
    append(log, batch.encode_records([(KEY, VALUE, 1, None)]))
    bench.kill(log)
    partition = Partition(
        "__offsets", log, config=resolve({}, {}, replicas=1),
        flusher=Flusher(bench.disk, bench.workers), rates=Rates.unlimited(), now_ms=lambda: 0,
    )  # fmt: skip
    me = Member(0, Generation(0, 0))
    partition.become_leader(
        PartitionRecord(PARTITION.topic_id, 0, 1, 1, Leader(0, 1), (me,), (), (0,))
    )
    return partition


async def test_a_load_that_failed_for_want_of_descriptors_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_partition, "LOAD_RETRY_S", 0.02, raising=False)
    disk = FewDescriptors()
    bench = Bench(str(tmp_path), LogConfig(), disk=disk, workers=InlineWorkers())
    part = GroupPartition(leading(bench))
    disk.is_out = True
    loading = asyncio.create_task(run_load(part))
    await asyncio.sleep(0.05)
    with pytest.raises(PartitionOffline):
        part.require_ready()
    disk.is_out = False
    await asyncio.wait_for(loading, 5)
    part.require_ready()
    assert [value.offset for value in part.state.of("billing").values()] == [42]


async def test_offsets_of_a_topic_that_died_while_the_broker_was_down_are_forgotten_at_the_load(
    tmp_path: Path,
) -> None:
    bench = Bench(str(tmp_path), LogConfig(), workers=InlineWorkers())
    partition = leading(bench)
    running: list[asyncio.Future[None]] = []
    groups = GroupCoordinator(
        SystemClock(),
        spawn=lambda name, work: running.append(asyncio.ensure_future(work)),
        is_dead=lambda topic_id: topic_id == PARTITION.topic_id,
        topics=dict,
    )
    groups.lead(partition, 1)
    await asyncio.wait_for(running[0], 5)
    assert await groups.offsets("billing") == {}
    again = GroupPartition(partition)
    await again.load()
    assert again.state.groups == {}
