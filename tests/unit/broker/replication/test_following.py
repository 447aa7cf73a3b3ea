"""What a follower makes of a leader that contradicts what was committed here (R15)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.broker.core.model import Generation, Leader, Member, PartitionRecord, Recovery
from headrace.broker.core.quota import Rates
from headrace.broker.core.topic_config import resolve
from headrace.broker.log.config import LogConfig
from headrace.broker.log.flusher import Flusher
from headrace.broker.partition.partition import Partition
from headrace.broker.replication.following import Followed, take
from headrace.broker.replication.stats import ReplicationStats
from headrace.protocol.replication import ReplicaResult
from headrace.protocol.requests import ACKS_LEADER
from testkit.logs import PARTITION, Bench, InlineWorkers, sealed

HERE, THERE = Member(0, Generation(0, 0)), Member(1, Generation(0, 0))
LED = PartitionRecord(PARTITION.topic_id, 0, 1, 1, Leader(0, 1), (HERE,), (), (0, 1))
ELSEWHERE = replace(LED, partition_epoch=3, leader_epoch=3, leader=Leader(1, 1), isr=(THERE,))


@pytest.mark.parametrize(
    ("recovery", "unclean", "is_cut"),
    [("none", False, False), ("unclean", False, True), ("possible_loss", False, True),
     ("none", True, True)],
)  # fmt: skip
async def test_committed_records_are_given_up_only_where_the_cluster_has_lost_them(
    tmp_path: Path, recovery: Recovery, unclean: bool, is_cut: bool
) -> None:
    bench = Bench(str(tmp_path), LogConfig(), workers=InlineWorkers())
    log, _ = bench.open()
    partition = Partition(
        "t", log, config=resolve({}, {}, replicas=2),
        flusher=Flusher(bench.disk, bench.workers), rates=Rates.unlimited(), now_ms=lambda: 0,
    )  # fmt: skip
    partition.become_leader(LED)
    partition.append(memoryview(sealed([b"once"])), acks=ACKS_LEADER, now_ms=1)
    assert partition.high_watermark == 1
    record = replace(ELSEWHERE, recovery=recovery, unclean=unclean)
    partition.follow(record)
    followed = Followed(partition, Leader(1, 1), 3)
    followed.listed_end, followed.listed_epoch = log.end_offset, log.last_epoch
    answer = ReplicaResult(PARTITION.topic_id, 0, 3, 0, 0, diverging_epoch=-1, diverging_end=0)
    take(followed, answer, None, ReplicationStats())
    assert (log.end_offset == 0, log.failure is None) == (is_cut, is_cut)
