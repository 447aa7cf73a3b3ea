"""A partition's ways in: retries are recognised, whatever the clock does."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord
from headrace.broker.core.quota import Rates
from headrace.broker.core.topic_config import resolve
from headrace.broker.log.config import LogConfig
from headrace.broker.log.flusher import Flusher
from headrace.broker.partition.partition import Partition
from headrace.protocol import batch
from headrace.protocol.errors import NotLeader
from headrace.protocol.requests import ACKS_LEADER
from testkit.logs import PARTITION, Bench, InlineWorkers

DAY_MS = 86_400_000


async def led_partition(tmp_path: Path) -> Partition:
    bench = Bench(str(tmp_path), LogConfig(), workers=InlineWorkers())
    log, _ = bench.open()
    partition = Partition(
        "t", log, config=resolve({}, {}, replicas=1),
        flusher=Flusher(bench.disk, bench.workers), rates=Rates.unlimited(), now_ms=lambda: 0,
    )  # fmt: skip
    me = Member(0, Generation(0, 0))
    partition.become_leader(
        PartitionRecord(PARTITION.topic_id, 0, 1, 1, Leader(0, 1), (me,), (), (0,))
    )
    await partition.learn_producers()
    return partition


async def test_a_retry_after_a_machine_slept_for_days_is_still_recognised(tmp_path: Path) -> None:
    partition = await led_partition(tmp_path)
    sent = memoryview(
        batch.encode_records(
            [(None, b"once", 1, None)], producer_id=7, producer_epoch=0, base_sequence=0
        )
    )
    first, was_there = partition.append(sent, acks=ACKS_LEADER, now_ms=1_000)
    assert not was_there
    again, was_there = partition.append(sent, acks=ACKS_LEADER, now_ms=1_000 + 30 * DAY_MS)
    assert was_there
    assert again == first
    assert partition.log.end_offset == 1


async def test_a_batch_of_an_idempotent_producer_is_never_taken_unchecked(tmp_path: Path) -> None:
    partition = await led_partition(tmp_path)
    sent = [
        memoryview(
            batch.encode_records(
                [(None, b"once", 1, None)], producer_id=7, producer_epoch=0, base_sequence=number
            )
        )
        for number in (0, 1)
    ]
    partition.append(sent[0], acks=ACKS_LEADER, now_ms=1_000)
    partition.append(sent[1], acks=ACKS_LEADER, now_ms=1_000)
    partition.log.truncate_to(1)
    with pytest.raises(NotLeader):
        partition.append(sent[0], acks=ACKS_LEADER, now_ms=1_000)
    await partition.learn_producers()
    _, was_there = partition.append(sent[0], acks=ACKS_LEADER, now_ms=1_000)
    assert was_there
