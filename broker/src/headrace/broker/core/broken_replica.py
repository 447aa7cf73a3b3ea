"""What a broker does about a replica whose log broke: lost, damaged, or a disk that refuses (pure).

replication.md R23: first out of ISR and ELR with a new leader epoch, then a new log from another
replica. Two things must never happen: a broken log that still counts, and an empty log in the place
of the last copy that anybody has.
"""

from __future__ import annotations

from enum import Enum

from headrace.broker.core.model import PartitionRecord


class Mending(Enum):
    """The next step."""

    WAIT = "nobody else can bring the records back: the files stay as they are"
    LEAVE = "out of ISR and ELR, so that it counts no more"
    REPLACE = "set the broken files aside and copy the leader"


def next_step(record: PartitionRecord, broker_id: int) -> Mending:
    """What the broker does next about its broken replica, as the record is now."""
    members = {entry.broker_id for entry in (*record.isr, *record.elr)}
    if broker_id in members:
        return Mending.LEAVE if members != {broker_id} else Mending.WAIT
    leader = record.leader
    if leader is None or leader.broker_id == broker_id or broker_id not in record.replicas:
        return Mending.WAIT
    return Mending.REPLACE
