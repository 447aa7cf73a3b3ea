"""What is wrong with a partition, judged from its record and from who lives. Pure.

    offline            nobody who lives leads it: it can't be read or written
    under_min_isr      fewer in-sync replicas than acks=all asks for: it can't be written so
    under_replicated   fewer in-sync replicas than it shall have: one more loss matters
    unreadable         its record in the store can't be read; the partition is frozen

Kafka's words; a partition may have several problems, and the list is worst first.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.broker.core.model import AnyRecord, PartitionRecord

OFFLINE = "offline"
UNDER_MIN_ISR = "under_min_isr"
UNDER_REPLICATED = "under_replicated"
UNREADABLE = "unreadable"


def problems_of(record: AnyRecord | None, *, live: Collection[int]) -> tuple[str, ...]:
    """Its problems, worst first; none for a healthy one. A partition without a record has not been
    made yet, so nobody leads it. A record may name a dead leader: its last in-sync replica stays
    the leader until it comes back."""
    if record is None:
        return (OFFLINE,)
    if not isinstance(record, PartitionRecord):
        return (UNREADABLE, OFFLINE)
    found = []
    if record.leader is None or record.leader.broker_id not in live:
        found.append(OFFLINE)
    if len(record.isr) < record.min_effective:
        found.append(UNDER_MIN_ISR)
    in_sync = {member.broker_id for member in record.isr}
    if not in_sync >= set(record.replicas) - set(record.adding):
        found.append(UNDER_REPLICATED)
    return tuple(found)
