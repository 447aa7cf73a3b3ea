"""Which settings are *live*: kept in the cluster object and changed while brokers run, as opposed
to each broker's own, which are read once at its start. The broker has their types and meanings
(docs/configuration.md); this list is for those who must tell the two kinds apart without it.
"""

from __future__ import annotations

LIVE_KEYS: frozenset[str] = frozenset(
    {
        "cleanup.policy",
        "compression.type",
        "consumer.byte.rate",
        "default.replication.factor",
        "delete.retention.ms",
        "flush.ms",
        "flush.policy",
        "index.interval.bytes",
        "leader.rebalance.delay.ms",
        "leader.rebalance.enable",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "num.partitions",
        "overflow",
        "producer.byte.rate",
        "reassignment.max.concurrent.moves",
        "reassignment.throttle.bytes.per.second",
        "record.ttl.ms",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
