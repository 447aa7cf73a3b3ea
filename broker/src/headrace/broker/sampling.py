"""The broker's numbers of this moment, for whoever scrapes them."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.api.inflight import Inflight
from headrace.broker.core.model import PartitionRecord
from headrace.broker.metrics import BrokerSample, TopicSample
from headrace.broker.node import Node
from headrace.broker.partition.manager import PartitionManager


def broker_sample(node: Node, inflight: Inflight) -> BrokerSample:
    """The broker as a whole."""
    space, cleaning = node.disk_guard.space, node.cleaner.stats
    return BrokerSample(
        state=node.lifecycle.state,
        led_partitions=node.partitions.led_count,
        offline_partitions=node.partitions.offline_count,
        open_files=node.logs.open_files,
        inflight_bytes=inflight.used_bytes,
        throttled=inflight.refused + node.quotas.throttled,
        disk_free_bytes=space.free_bytes,
        disk_reserve_bytes=space.reserve_bytes,
        storage_full=space.is_full,
        syncs=node.logs.flusher.syncs,
        recovering_remaining=node.lifecycle.recovering_remaining,
        compactions=cleaning.passes,
        compaction_failures=cleaning.failures,
        compaction_bytes_read=cleaning.bytes_read,
        compaction_bytes_written=cleaning.bytes_written,
        compaction_records_removed=cleaning.records_removed,
        compaction_seconds=cleaning.seconds,
        dirty_ratio_max=cleaning.dirty_ratio_max,
        is_controller=node.coordination.is_controller,
        live_brokers=sum(each.live for each in node.coordination.broker_statuses().values()),
        leaderless_partitions=_leaderless(node) if node.coordination.is_controller else 0,
        suspect_partitions=len(node.coordination.suspects),
        unreadable_records=len(node.coordination.view.unreadable()),
        moving_partitions=_moving(node) if node.coordination.is_controller else 0,
        cordoned_brokers=len(cluster.cordoned)
        if (cluster := node.coordination.view.cluster)
        else 0,
        store_went_back=node.coordination.store_went_back,
        task_failures=dict(node.tasks.failures),
    )


def _leaderless(node: Node) -> int:
    """Partitions that nobody who lives leads."""
    view = node.coordination.view
    live = {id for id, status in node.coordination.broker_statuses().items() if status.live}
    return sum(
        not (isinstance(record, PartitionRecord) and record.leader)
        or record.leader.broker_id not in live
        for topic in view.topics.values()
        for record in view.records(topic.topic_id).values()
    )


def _moving(node: Node) -> int:
    """Partitions that aren't yet where they shall be."""
    progress = node.coordination.reassignments.progress()
    return progress.total - progress.done


def topic_samples(manager: PartitionManager) -> Iterator[TopicSample]:
    """Each topic's sums over its partitions here."""
    sums: dict[str, TopicSample] = {}
    for partition in manager:
        found = sums.setdefault(partition.topic, TopicSample(partition.topic))
        stats = partition.stats
        found.partitions += 1
        found.offline += partition.log.failure is not None
        found.size_bytes += partition.log.size_bytes
        found.bytes_in += stats.bytes_in
        found.records_in += stats.records_in
        found.batches_in += stats.batches_in
        found.duplicates += stats.duplicates
        found.bytes_out += stats.bytes_out
    yield from sums.values()
