"""The follower's side of an answer, for one partition: append, cut, start over (R15).

Nothing here awaits: what is checked holds until it is done.
"""

from __future__ import annotations

import logging
from enum import Enum

from headrace.broker.core.fetch_rules import Diverging, cut_at
from headrace.broker.core.model import Leader
from headrace.broker.log.state import DIVERGED
from headrace.broker.partition.partition import Partition
from headrace.broker.replication.stats import ReplicationStats
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import OffsetOutOfRange
from headrace.protocol.replication import ReplicaResult

log = logging.getLogger(__name__)


class Next(Enum):
    """What is to be done about the partition now."""

    LIST = "tell the leader where the log ends now"
    LATER = "the same after a pause"
    NOTHING = "it is still listed"


class Followed:
    """One partition that is copied from `leader` under `epoch`. `listed_end`: its log's end as the
    leader was told, -1 if it wasn't; `listed_epoch`: that of its last batch then."""

    __slots__ = ("epoch", "failures", "leader", "listed_end", "listed_epoch", "partition")

    def __init__(self, partition: Partition, leader: Leader, epoch: int) -> None:
        self.partition = partition
        self.leader = leader
        self.epoch = epoch
        self.listed_end = -1
        self.listed_epoch = -1
        self.failures = 0

    @property
    def is_as_listed(self) -> bool:
        """Whether the log ends as the leader was told. Its end alone doesn't say so: after a cut it
        may have grown to the same offset, and a late word to cut it would take what is committed
        (found by tests/properties/test_replica_set.py)."""
        log_ = self.partition.log
        return (self.listed_end, self.listed_epoch) == (log_.end_offset, log_.last_epoch)

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows this leader under this epoch; to be asked after each
        await (R15, R16)."""
        partition = self.partition
        return (
            partition.following == self.leader
            and partition.leader_epoch == self.epoch
            and not partition.leading
            and partition.log.failure is None
        )


def take(
    followed: Followed, result: ReplicaResult, data: Buffer | None, stats: ReplicationStats
) -> Next:
    """Does what the leader's answer says.

    Raises:
        CorruptBatch, StorageFull, PartitionOffline: nothing was appended.
    """
    partition, log_ = followed.partition, followed.partition.log
    if result.error is not None:
        return _refused(followed, result)
    partition.hear_epoch(result.leader_epoch)
    if result.leader_epoch != followed.epoch or not followed.is_as_listed:
        return Next.LIST
    if result.diverging_end >= 0:
        return _cut(followed, Diverging(result.diverging_epoch, result.diverging_end), stats)
    if data is not None:
        log_.append_replicated(
            data, may_have_holes=result.has_holes, epoch_max=followed.epoch, epochs=result.epochs
        )
        followed.failures = 0
        partition.stats.replicated_bytes += len(data)
        stats.bytes_in += len(data)
        partition.replica_appended()
    partition.learn_high_watermark(result.high_watermark)
    return Next.NOTHING if data is None else Next.LIST


def _refused(followed: Followed, result: ReplicaResult) -> Next:
    partition = followed.partition
    if result.error == OffsetOutOfRange.code and result.leader_epoch == followed.epoch:
        if not followed.is_as_listed:
            return Next.LIST
        log.warning(
            "%s: the leader's log starts at %d, this one ends at %d: it starts over there",
            partition.name, result.log_start_offset, partition.log.end_offset,
        )  # fmt: skip
        partition.log.truncate_fully_and_start_at(result.log_start_offset)
        return Next.LIST
    log.debug("%s: the leader refuses: %s", partition.name, result.message)
    return Next.LATER


def _cut(followed: Followed, diverging: Diverging, stats: ReplicationStats) -> Next:
    partition, log_ = followed.partition, followed.partition.log
    target = cut_at(diverging, end_offset=log_.end_offset, epoch_end=log_.end_offset_for_epoch)
    target = max(target, 0)
    if target < log_.high_watermark and not partition.loss_is_known:
        stats.truncations_refused += 1
        log_.fail(
            f"the leader (broker {followed.leader.broker_id}, epoch {followed.epoch}) has"
            f" {DIVERGED} from offset {target} on, but all below {log_.high_watermark} was"
            " committed here. Only an unclean election or a store restored from a backup does that."
            " To keep what is here, look at the store first; to take the leader's version, stop"
            f" this broker, move {log_.directory} away and start it again"
        )
        return Next.LATER
    stats.truncations += 1
    log.info(
        "%s: cut from %d to %d to follow broker %d (epoch %d)", partition.name, log_.end_offset,
        target, followed.leader.broker_id, followed.epoch,
    )  # fmt: skip
    log_.truncate_to(target)
    return Next.LIST
