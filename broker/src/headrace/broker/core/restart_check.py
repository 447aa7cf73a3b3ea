"""May this broker be stopped now, and is it back for good after its start? Pure, and fails closed.

Before a stop: every partition that the broker has a replica of must keep its minimum of in-sync
replicas, and a leader, without it. After the start: every replica of it must be in the ISR again
with the log contents it has now. Whatever can't be judged (a record that can't be read, one that is
newer elsewhere, a broker that isn't known) speaks against it.

A partition with too few replicas to do without any one of them is `unavoidable`: waiting doesn't
help, only more replicas or a word from a person do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.broker.core import election
from headrace.broker.core.model import AnyRecord, BrokerStatus, PartitionRecord

Brokers = Mapping[int, BrokerStatus]
Phase = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Blocker:
    """A partition that speaks against the stop, or isn't whole after the start. `partition` -1: the
    topic, or (without a topic) the cluster as a whole."""

    topic: str
    partition: int
    reason: str
    unavoidable: bool = False


def blockers_before(
    records: Iterable[tuple[str, AnyRecord]], broker_id: int, brokers: Brokers
) -> list[Blocker]:
    """What would suffer if the broker stopped now. `records`: all of the cluster, with the topic's
    name; `brokers`: those that answered just now are live."""
    found = []
    for topic, record in records:
        if not isinstance(record, PartitionRecord):
            found.append(Blocker(topic, record.partition, f"can't be read: {record.reason}"))
        elif broker_id in record.replicas:
            blocker = _before(topic, record, broker_id, brokers)
            found.extend([blocker] if blocker else [])
    return found


def blockers_after(
    records: Iterable[tuple[str, AnyRecord]], broker_id: int, brokers: Brokers
) -> list[Blocker]:
    """What isn't whole yet after the broker's start."""
    status = brokers.get(broker_id)
    if status is None:
        return [Blocker("", -1, f"broker {broker_id} is not registered")]
    if not status.live or status.state != "running":
        state = status.state if status.live else "not live"
        return [Blocker("", -1, f"broker {broker_id} is {state}")]
    found = []
    for topic, record in records:
        if not isinstance(record, PartitionRecord):
            found.append(Blocker(topic, record.partition, f"can't be read: {record.reason}"))
        elif broker_id in record.replicas:
            reason = _missing_after(record, broker_id, status)
            found.extend([Blocker(topic, record.partition, reason)] if reason else [])
    return found


def _before(
    topic: str, record: PartitionRecord, broker_id: int, brokers: Brokers
) -> Blocker | None:
    left = [
        entry
        for entry in record.isr
        if entry.broker_id != broker_id and _carries(entry.broker_id, brokers)
        if election.has_standing(entry, brokers)
    ]
    minimum = record.min_effective
    if len(left) >= max(minimum, 1):
        return None
    reason = (
        f"without broker {broker_id} {len(left)} of the {minimum} in-sync replicas that it needs"
        " would be left"
    )
    unavoidable = len(record.replicas) - 1 < max(minimum, 1)
    if unavoidable:
        reason += f"; it has {len(record.replicas)} replica(s), so waiting doesn't help"
    return Blocker(topic, record.partition, reason, unavoidable)


def _carries(broker_id: int, brokers: Brokers) -> bool:
    """Whether the broker stays: one that is draining is about to leave, too."""
    status = brokers.get(broker_id)
    return status is not None and status.state == "running"


def _missing_after(record: PartitionRecord, broker_id: int, status: BrokerStatus) -> str | None:
    entry = record.in_isr(broker_id)
    if entry is None:
        return f"broker {broker_id} isn't in sync yet"
    if entry.generation != status.generation:
        return f"broker {broker_id} is in the ISR with an earlier log"
    return "it has no leader" if record.leader is None else None
