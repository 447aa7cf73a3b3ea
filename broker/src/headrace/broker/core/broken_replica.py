"""What a broker does about a replica whose log broke: lost, damaged, or a disk that refuses (pure).

replication.md R23: first out of ISR and ELR with a new leader epoch, then a new log from another
replica. Three things must never happen: a broken log that still counts, an empty log in the place
of the last copy that anybody has, and an empty log that counts by what was said of the one before.
So the new leader epoch is needed of whoever is in neither ISR nor ELR as well: the leader may be
about to take it in, by a fetch of the log that broke.
"""

from __future__ import annotations

from enum import Enum

from headrace.broker.core.model import PartitionRecord


class Mending(Enum):
    """The next step."""

    WAIT = "nobody else can bring the records back: the files stay as they are"
    LEAVE = "out of ISR and ELR, with a new leader epoch, so that nothing it said counts any more"
    REPLACE = "set the broken files aside and copy the leader"


def next_step(record: PartitionRecord, broker_id: int, *, has_left: bool) -> Mending:
    """What the broker does next about its broken replica, as the record is now. `has_left`: it has
    left since its log broke."""
    members = {entry.broker_id for entry in (*record.isr, *record.elr)}
    if members == {broker_id} and not (record.unclean and len(record.replicas) > 1):
        return Mending.WAIT
    if broker_id in members:
        return Mending.LEAVE
    leader = record.leader
    if leader is None or leader.broker_id == broker_id or broker_id not in record.replicas:
        return Mending.WAIT
    return Mending.REPLACE if has_left else Mending.LEAVE
