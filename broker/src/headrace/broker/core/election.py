"""Who should lead a partition (replication.md R18, R24), and why; pure.

Goals: somebody with standing leads whenever there is one; leadership stays where it is as long as
that process lives; otherwise it goes to the earliest replica of the assignment.
Constraints: standing is an entry in ISR, or else in ELR, whose generation is the registered one.
Algorithm, the first that gives somebody:
  1. the leader's session is the registered one and live: it stays (a draining one stays too, if
     nobody else can lead);
  2. ISR entries with standing, in the order of `replicas`; draining, leaving and cordoned last (and
     a draining one leaves the ISR with this step, if the minimum is there without it);
  3. ELR entries with standing, the same way; it leads alone;
  4. every member of ISR and ELR is back and none has standing: the greatest (last epoch, log end),
     marked `possible_loss` (R24); a sole member needs no comparing;
  5. unclean elections are allowed: the live replica with the greatest log;
  6. nobody, with the reason.
Example: replicas (1, 2, 3), ISR {1@g0, 2@g0}, broker 1 dead, 2 registered with g0: 2 leads with
ISR {2}. If 2 had come back with g1 (lost its tail): it has no standing, and the partition waits
for 1. If 1 then comes back with g1 too, the longer of both logs leads, with possible loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.broker.core import transitions
from headrace.broker.core.model import BrokerStatus, Leader, Member, PartitionRecord
from headrace.broker.core.transitions import Refusal, Step


class LogEnd(NamedTuple):
    """How far a replica's log goes; compared as a pair."""

    last_epoch: int
    offset: int


NO_LOG = LogEnd(-2, -2)
"""The end of a log that can't be used: broken, lost, or not to be opened at present."""


@dataclass(frozen=True, slots=True)
class Elected:
    """The record with its new leader, and why this one."""

    record: PartitionRecord
    reason: str


@dataclass(frozen=True, slots=True)
class Stays:
    """The leader is as good as anybody."""


@dataclass(frozen=True, slots=True)
class Offline:
    """Nobody can lead, and why. `ask`: whose log ends would allow a decision (R24)."""

    reason: str
    ask: tuple[int, ...] = ()


Decision = Elected | Stays | Offline

Brokers = Mapping[int, BrokerStatus]


def decide(
    record: PartitionRecord,
    brokers: Brokers,
    log_ends: Mapping[int, LogEnd] | None = None,
) -> Decision:
    """Who leads. `log_ends`: those known of replicas of this partition, for the last resorts."""
    ends = log_ends or {}
    if _leads_well(record, brokers):
        return Stays()
    by_isr = _candidates(record, record.isr, brokers)
    if by_isr and by_isr[0].broker_id == _live_leader(record, brokers):
        return Stays()
    if by_isr:
        return _elected_from_isr(record, by_isr, brokers)
    by_elr = _candidates(record, record.elr, brokers)
    if by_elr:
        return _elected(record, by_elr[:1], brokers, "first of the ELR, alone")
    return _last_resort(record, brokers, ends)


def prefer(record: PartitionRecord, brokers: Brokers) -> Step:
    """Leadership goes back to the first replica, if it is as good as the present leader; the ISR
    stays as it is."""
    first = record.replicas[0]
    entry, status = record.in_isr(first), brokers.get(first)
    led = record.leader
    if led is None or led.broker_id == first:
        return Refusal("nobody leads, or the first replica does")
    if transitions.is_moving(record):
        return Refusal("its replicas are being moved")
    if entry is None or status is None or not has_standing(entry, brokers):
        return Refusal("the first replica isn't in sync")
    if status.state != "running" or status.cordoned:
        return Refusal("the first replica's broker is draining or cordoned")
    return transitions.elect(record, leader=Leader(first, status.session), isr=record.isr)


def by_command(record: PartitionRecord, brokers: Brokers, broker_id: int) -> Elected | Offline:
    """A person's choice of a leader that may lack records. Refused (`Offline` with the reason)
    while somebody leads, or could with all of them."""
    if record.leader is not None and _live_leader(record, brokers) is not None:
        return Offline(f"broker {record.leader.broker_id} leads it: nothing needs to be lost")
    standing = [e.broker_id for e in (*record.isr, *record.elr) if has_standing(e, brokers)]
    if standing:
        return Offline(f"broker {standing[0]} has all records and can lead: wait a moment")
    status = brokers.get(broker_id)
    if status is None or not _electable(status):
        return Offline(f"broker {broker_id} is not running")
    leader = Leader(broker_id, status.session)
    step = transitions.elect_by_command(record, leader=leader, generation=status.generation)
    decided = _decided(step, "elected by command: records are lost")
    assert not isinstance(decided, Stays)
    return decided


def leaving(record: PartitionRecord, brokers: Brokers) -> set[int]:
    """In-sync followers whose brokers are about to stop: out of the ISR before they do, so that no
    record waits until somebody has noticed that they have. Empty where fewer than the minimum would
    be left, and where the leader itself is about to stop."""
    led = _live_leader(record, brokers)
    if led is None or brokers[led].state == "draining":
        return set()
    return {entry.broker_id for entry in _draining(record, record.isr, brokers)}


def _draining(
    record: PartitionRecord, isr: Iterable[Member], brokers: Brokers
) -> tuple[Member, ...]:
    """Those of an ISR that may leave it because their brokers are about to stop."""
    entries = tuple(isr)
    found = tuple(e for e in entries if _state(e, brokers) == "draining")
    return found if len(entries) - len(found) >= record.min_effective else ()


def _state(entry: Member, brokers: Brokers) -> str | None:
    status = brokers.get(entry.broker_id)
    return None if status is None else status.state


def has_standing(entry: Member, brokers: Brokers) -> bool:
    """Whether the entry is of a broker that is there with the log it had then."""
    status = brokers.get(entry.broker_id)
    return _electable(status) and status is not None and status.generation == entry.generation


def _electable(status: BrokerStatus | None) -> bool:
    return status is not None and status.live and status.state != "starting"


def _live_leader(record: PartitionRecord, brokers: Brokers) -> int | None:
    """The leader's id if its process and its log are still the ones that were elected."""
    if record.leader is None:
        return None
    status = brokers.get(record.leader.broker_id)
    entry = record.in_isr(record.leader.broker_id)
    alive = status is not None and status.live and status.session == record.leader.session
    return record.leader.broker_id if alive and entry and has_standing(entry, brokers) else None


def _leads_well(record: PartitionRecord, brokers: Brokers) -> bool:
    leader = _live_leader(record, brokers)
    return leader is not None and brokers[leader].state == "running"


def _candidates(
    record: PartitionRecord, entries: Iterable[Member], brokers: Brokers
) -> list[Member]:
    """Those with standing, best first."""
    place = {broker: index for index, broker in enumerate(record.replicas)}
    standing = [entry for entry in entries if has_standing(entry, brokers)]
    return sorted(
        standing,
        key=lambda e: (
            brokers[e.broker_id].state == "draining",
            e.broker_id in record.removing,
            brokers[e.broker_id].cordoned,
            e.broker_id != _live_leader(record, brokers),
            place[e.broker_id],
        ),
    )


def _elected_from_isr(
    record: PartitionRecord, standing: list[Member], brokers: Brokers
) -> Decision:
    kept = set(standing)
    if brokers[standing[0].broker_id].state != "draining":
        kept.difference_update(_draining(record, standing, brokers))
    isr = [standing[0], *(entry for entry in record.isr if entry in kept and entry != standing[0])]
    return _elected(record, isr, brokers, "first of the ISR that is live")


def _elected(record: PartitionRecord, isr: list[Member], brokers: Brokers, reason: str) -> Decision:
    chosen = isr[0].broker_id
    leader = Leader(chosen, brokers[chosen].session)
    return _decided(transitions.elect(record, leader=leader, isr=isr), reason)


def _last_resort(record: PartitionRecord, brokers: Brokers, ends: Mapping[int, LogEnd]) -> Decision:
    members = sorted({entry.broker_id for entry in (*record.isr, *record.elr)})
    back = [broker for broker in members if _electable(brokers.get(broker))]
    if members and back == members:
        return _longest_of_members(record, members, brokers, ends)
    if record.unclean:
        return _unclean(record, brokers, ends)
    if not members:
        return Offline(
            "no replica is left that is known to have all records: if none of them can be brought"
            " back, choose one that leads with what it has (headrace topic elect-leader)"
        )
    missing = [broker for broker in members if broker not in back]
    return Offline(f"waiting for broker {', '.join(map(str, missing))} to come back")


def _longest_of_members(
    record: PartitionRecord, members: list[int], brokers: Brokers, ends: Mapping[int, LogEnd]
) -> Decision:
    unknown = tuple(broker for broker in members if ends.get(broker, NO_LOG) == NO_LOG)
    if unknown and len(members) > 1:
        return Offline("all members lost log contents; their log ends decide", ask=unknown)
    best = members[0] if len(members) == 1 else _longest(record, members, ends)
    status = brokers[best]
    step = transitions.elect_last_resort(
        record, leader=Leader(best, status.session), generation=status.generation
    )
    return _decided(step, "no member kept its log contents: the longest log; possible loss")


def _unclean(record: PartitionRecord, brokers: Brokers, ends: Mapping[int, LogEnd]) -> Decision:
    live = [broker for broker in record.replicas if _electable(brokers.get(broker))]
    if not live:
        return Offline("no replica is live")
    unknown = tuple(broker for broker in live if broker not in ends)
    if unknown:  # also a sole one: its log may be the one that broke
        return Offline("an unclean election: the log ends of the live replicas decide", ask=unknown)
    live = [broker for broker in live if ends[broker] != NO_LOG]
    if not live:
        return Offline("the log of no live replica can be used")
    best = _longest(record, live, ends)
    status = brokers[best]
    step = transitions.elect_unclean(
        record, leader=Leader(best, status.session), generation=status.generation
    )
    return _decided(step, "unclean election: records are lost")


def _longest(record: PartitionRecord, among: list[int], ends: Mapping[int, LogEnd]) -> int:
    return max(
        among,
        key=lambda broker: (ends.get(broker, LogEnd(-1, -1)), -record.replicas.index(broker)),
    )


def _decided(step: transitions.Step, reason: str) -> Decision:
    return Offline(step.reason) if isinstance(step, Refusal) else Elected(step, reason)
