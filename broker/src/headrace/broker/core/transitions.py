"""How a partition record may change: the only legal steps (replication.md R3), pure.

Each takes the record just read and gives the next one with partition_epoch + 1, or a `Refusal`
that says why not. Whoever writes does it by compare-and-swap from the revision that it read.
The leader shrinks and expands its own ISR (R4); the controller elects, removes and sets the
minimum and moves replicas; a replica may always remove itself.

A move of replicas (R26) is two steps with the followers' catching up between them. `begin` makes
`replicas` the target's brokers in their order followed by the ones that leave, so that the record
alone says where it is going; `finish` or `cancel` takes one side out, with a new leader epoch, so
that a late fetch of a deleted log can't count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.broker.core.model import (
    BrokerStatus,
    Generation,
    Leader,
    Member,
    PartitionRecord,
    Recovery,
)
from headrace.protocol.errors import InternalError
from headrace.protocol.ids import TopicId


@dataclass(frozen=True, slots=True)
class Refusal:
    """The step isn't legal from this record."""

    reason: str


Step = PartitionRecord | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A follower's last fetch that the leader validated (R14)."""

    leader_epoch: int
    generation: Generation
    offset: int


def create(
    topic_id: TopicId,
    partition: int,
    replicas: Sequence[int],
    *,
    brokers: Mapping[int, BrokerStatus],
    min_isr: int,
    unclean: bool,
) -> Step:
    """A new partition's record (R25): all assigned brokers that live are in the ISR, the first of
    them leads."""
    live = [broker for broker in replicas if broker in brokers and brokers[broker].live]
    if not live:
        return Refusal("none of the assigned brokers is live")
    first = live[0]
    return PartitionRecord(
        topic_id=topic_id,
        partition=partition,
        partition_epoch=0,
        leader_epoch=0,
        leader=Leader(first, brokers[first].session),
        isr=tuple(Member(broker, brokers[broker].generation) for broker in live),
        elr=(),
        replicas=tuple(replicas),
        min_isr=min_isr,
        unclean=unclean,
    )


def elect(record: PartitionRecord, *, leader: Leader, isr: Sequence[Member]) -> Step:
    """A leader with standing (R18): from the ISR, with a subset of it; or, from the ELR, alone."""
    entry = next((member for member in isr if member.broker_id == leader.broker_id), None)
    if entry is None:
        return Refusal("the new leader isn't in the new ISR")
    if entry in record.isr:
        if not set(isr) <= set(record.isr):
            return Refusal("an election may not add to the ISR")
    elif entry not in record.elr or tuple(isr) != (entry,):
        return Refusal("the new leader has no standing: neither in ISR nor, alone, from ELR")
    return _led(record, leader=leader, isr=tuple(isr), elr=_next_elr(record, isr))


def elect_last_resort(record: PartitionRecord, *, leader: Leader, generation: Generation) -> Step:
    """The best of the last ISR and ELR once none of them has standing (R24): the last records may
    be lost, and the record says so."""
    if leader.broker_id not in {entry.broker_id for entry in (*record.isr, *record.elr)}:
        return Refusal("only a member of the last ISR or ELR may lead as a last resort")
    isr = (Member(leader.broker_id, generation),)
    return _led(record, leader=leader, isr=isr, elr=(), recovery="possible_loss")


def elect_unclean(record: PartitionRecord, *, leader: Leader, generation: Generation) -> Step:
    """Any replica, because the topic prefers losing records to waiting."""
    if not record.unclean:
        return Refusal("unclean.leader.election.enable is off")
    if leader.broker_id not in record.replicas:
        return Refusal("only a replica may lead")
    isr = (Member(leader.broker_id, generation),)
    return _led(record, leader=leader, isr=isr, elr=(), recovery="unclean")


def elect_by_command(record: PartitionRecord, *, leader: Leader, generation: Generation) -> Step:
    """A replica that a person chose, because those with the records are gone for good: what it
    lacks is lost, and the record says so."""
    if leader.broker_id not in record.replicas:
        return Refusal(f"broker {leader.broker_id} has no replica of it")
    isr = (Member(leader.broker_id, generation),)
    return _led(record, leader=leader, isr=isr, elr=(), recovery="unclean")


def remove_broken(record: PartitionRecord, broker_id: int) -> Step:
    """A replica that lost this partition's log takes itself out of ISR and ELR (R23), with a new
    leader epoch: an old request of its must not be counted, nor a change of the ISR be made of one,
    also if it is in neither yet. Legal also if nobody is left."""
    if broker_id not in record.replicas:
        return Refusal("the broker has no replica of it")
    isr = tuple(entry for entry in record.isr if entry.broker_id != broker_id)
    elr = tuple(entry for entry in record.elr if entry.broker_id != broker_id)
    led = record.leader if record.leader and record.leader.broker_id != broker_id else None
    shrunk = replace(record, isr=isr, elr=elr)
    if isr != record.isr:
        kept = _next_elr(replace(record, elr=elr), isr)
        shrunk = replace(shrunk, elr=tuple(e for e in kept if e.broker_id != broker_id))
    return _next(shrunk, leader=led, leader_epoch=record.leader_epoch + 1)


def remove_dead(record: PartitionRecord, dead: Collection[int]) -> Step:
    """The controller takes dead followers, and those that are about to stop, out of the ISR; the
    leader stays."""
    if record.leader and record.leader.broker_id in dead:
        return Refusal("the leader can't be removed without an election")
    return _without(record, dead)


def shrink(record: PartitionRecord, *, leader: Leader, remove: Collection[int]) -> Step:
    """The leader takes followers that lag out of its ISR (R10)."""
    if record.leader != leader:
        return Refusal("only the leader shrinks its ISR")
    if leader.broker_id in remove:
        return Refusal("the leader can't remove itself")
    return _without(record, remove)


def expand(
    record: PartitionRecord,
    *,
    leader: Leader,
    follower: int,
    progress: Progress,
    status: BrokerStatus,
    high_watermark: int,
    epoch_start_offset: int,
) -> Step:
    """The leader takes a follower that has caught up into its ISR (R9)."""
    refusal = _expand_refusal(record, leader, follower, progress, status)
    if refusal is not None:
        return Refusal(refusal)
    if progress.offset < max(high_watermark, epoch_start_offset):
        return Refusal("the follower hasn't reached the high watermark and the epoch's start")
    isr = (*record.isr, Member(follower, status.generation))
    return _next(record, isr=isr, elr=_next_elr(record, isr))


def _expand_refusal(
    record: PartitionRecord,
    leader: Leader,
    follower: int,
    progress: Progress,
    status: BrokerStatus,
) -> str | None:
    conditions = (
        (record.leader == leader, "only the leader expands its ISR"),
        (follower in record.replicas, "the broker is no replica"),
        (follower not in record.removing, "the replica is being removed"),
        (record.in_isr(follower) is None, "an entry of it is in the ISR; remove that first"),
        (status.live and status.state != "draining", "the broker isn't live, or is draining"),
        (progress.leader_epoch == record.leader_epoch, "its last fetch was of another epoch"),
        (progress.generation == status.generation, "its last fetch was of another generation"),
    )
    return next((reason for holds, reason in conditions if not holds), None)


def set_min(record: PartitionRecord, min_isr: int) -> Step:
    """The effective min.insync.replicas (R17): lowering it empties the ELR in the same step, since
    what was committed under the lower minimum needn't be on its members."""
    if min_isr == record.min_isr:
        return Refusal("the minimum is that already")
    if min_isr < 1:
        return Refusal("the minimum is at least 1")
    elr = record.elr if min_isr > record.min_isr else ()
    return _next(record, min_isr=min_isr, elr=elr)


def set_unclean(record: PartitionRecord, unclean: bool) -> Step:
    """Whether an unclean election is allowed."""
    if unclean == record.unclean:
        return Refusal("it is so already")
    return _next(record, unclean=unclean)


def begin_reassignment(record: PartitionRecord, target: Sequence[int]) -> Step:
    """The partition is to have exactly these replicas, the first of them preferred. Nobody leaves
    yet: the new ones are added and catch up, the others are marked. Another order of the same
    brokers is done with this step."""
    wanted = tuple(target)
    if not wanted or len(set(wanted)) != len(wanted):
        return Refusal("the target has no broker, or one twice")
    if is_moving(record):
        return Refusal("its replicas are being moved already: finish or cancel that first")
    if wanted == record.replicas:
        return Refusal("these are its replicas already")
    removing = tuple(broker for broker in record.replicas if broker not in wanted)
    adding = tuple(broker for broker in wanted if broker not in record.replicas)
    moved = replace(record, replicas=(*wanted, *removing), adding=adding, removing=removing)
    return _next(moved, elr=_next_elr(moved, moved.isr))


def redirect_reassignment(record: PartitionRecord, target: Sequence[int]) -> Step:
    """The move under way goes elsewhere, without going back first: nobody leaves yet. Refused where
    a replica that is being added is no longer wanted; that one has to go first."""
    wanted = tuple(target)
    if not wanted or len(set(wanted)) != len(wanted):
        return Refusal("the target has no broker, or one twice")
    if not is_moving(record):
        return Refusal("its replicas aren't being moved")
    unwanted = [broker for broker in record.adding if broker not in wanted]
    if unwanted:
        return Refusal(f"broker {_listed(unwanted)} is being added and isn't wanted any more")
    removing = tuple(broker for broker in record.replicas if broker not in wanted)
    new = {*wanted} - {*record.replicas} | {*record.adding}
    adding = tuple(broker for broker in wanted if broker in new)
    moved = replace(record, replicas=(*wanted, *removing), adding=adding, removing=removing)
    if not is_moving(moved):
        return Refusal("these were its replicas: call the move off instead")
    return _next(moved, elr=_next_elr(moved, moved.isr))


def finish_reassignment(record: PartitionRecord, brokers: Mapping[int, BrokerStatus]) -> Step:
    """The replicas that are to leave do, once every other one is in the ISR with its present
    generation; if the leader is among them, the first replica that can leads."""
    if not is_moving(record):
        return Refusal("its replicas aren't being moved")
    target = tuple(broker for broker in record.replicas if broker not in record.removing)
    behind = [broker for broker in target if not _is_in_sync(record, broker, brokers)]
    if behind:
        return Refusal(f"waiting for broker {_listed(behind)} to be in sync")
    if not record.removing:
        return _next(record, adding=(), removing=())
    return _narrowed(record, target, brokers)


def cancel_reassignment(
    record: PartitionRecord,
    brokers: Mapping[int, BrokerStatus],
    *,
    order: Sequence[int] = (),
) -> Step:
    """Back to the replicas of before, in this order if it names exactly those. Refused while that
    would take copies away that the minimum needs."""
    if not is_moving(record):
        return Refusal("its replicas aren't being moved")
    kept = tuple(broker for broker in record.replicas if broker not in record.adding)
    former = tuple(order) if sorted(order) == sorted(kept) else kept
    if not record.adding:
        return _next(record, replicas=former, removing=())
    holders = {entry.broker_id for entry in (*record.isr, *record.elr)}
    in_sync = sum(_is_in_sync(record, broker, brokers) for broker in former)
    minimum = min(record.min_isr, len(former))
    if holders & set(record.adding) and in_sync < minimum:
        return Refusal(
            f"only {in_sync} of the former replicas {_listed(former)} is in sync, {minimum} must"
            " be: without the new ones records could be lost"
        )
    return _narrowed(record, former, brokers)


def is_moving(record: PartitionRecord) -> bool:
    """Whether the partition's replicas are on their way elsewhere."""
    return bool(record.adding or record.removing)


def _narrowed(
    record: PartitionRecord, replicas: tuple[int, ...], brokers: Mapping[int, BrokerStatus]
) -> Step:
    """Only these replicas stay; a leader that leaves hands over."""
    isr = tuple(entry for entry in record.isr if entry.broker_id in replicas)
    elr = tuple(entry for entry in record.elr if entry.broker_id in replicas)
    rest = replace(record, replicas=replicas, adding=(), removing=(), isr=isr, elr=elr)
    epoch, elr = record.leader_epoch + 1, _next_elr(rest, isr)
    if record.leader is None or record.leader.broker_id in replicas:
        return _next(rest, elr=elr, leader_epoch=epoch)
    heirs = [broker for broker in replicas if _is_in_sync(record, broker, brokers)]
    heirs.sort(key=lambda broker: brokers[broker].state != "running" or brokers[broker].cordoned)
    if not heirs or brokers[heirs[0]].state == "starting":
        return Refusal("the leader is to leave, and no other replica can lead now")
    leader = Leader(heirs[0], brokers[heirs[0]].session)
    return _next(rest, elr=elr, leader_epoch=epoch, leader=leader, recovery="none")


def _is_in_sync(record: PartitionRecord, broker: int, brokers: Mapping[int, BrokerStatus]) -> bool:
    """Whether the broker is there with the log that the ISR names."""
    entry, status = record.in_isr(broker), brokers.get(broker)
    if entry is None or status is None:
        return False
    return status.live and entry.generation == status.generation


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def touch(record: PartitionRecord) -> PartitionRecord:
    """Nothing but the next epoch: writing it settles a compare-and-swap of unknown outcome
    (R7c)."""
    return _next(record)


def violations(record: PartitionRecord) -> list[str]:
    """What is wrong with the record in itself; empty for every record made here."""
    isr = [entry.broker_id for entry in record.isr]
    elr = [entry.broker_id for entry in record.elr]
    replicas, members = set(record.replicas), {*isr, *elr}
    rules = (
        (len(record.replicas) > 0, "there are no replicas"),
        (len(replicas) == len(record.replicas), "a replica is named twice"),
        (len(members) == len(isr) + len(elr), "a broker is twice in ISR and ELR"),
        (members <= replicas, "ISR or ELR has a broker that is no replica"),
        (
            record.leader is None or record.leader.broker_id in isr,
            "the leader isn't in the ISR",
        ),
        ({*record.adding, *record.removing} <= replicas, "adding or removing isn't in replicas"),
        (not {*record.adding} & {*record.removing}, "a replica is added and removed"),
        (record.min_isr >= 1, "min_isr is below 1"),
        (
            not elr or len(isr) < record.min_effective,
            "the ELR isn't empty though the ISR has the minimum",
        ),
        (0 <= record.leader_epoch <= record.partition_epoch, "the epochs can't be right"),
    )
    return [fault for holds, fault in rules if not holds]


def check_invariants(record: PartitionRecord) -> None:
    """Raises InternalError if the record breaks an invariant."""
    faults = violations(record)
    if faults:
        raise InternalError(f"partition record {record} is impossible: {'; '.join(faults)}")


def check_step(before: PartitionRecord, after: PartitionRecord) -> None:
    """Raises InternalError if `after` can't follow `before` in one step."""
    check_invariants(after)
    rules: Iterable[tuple[bool, str]] = (
        (after.partition_epoch == before.partition_epoch + 1, "partition epoch isn't +1"),
        (0 <= after.leader_epoch - before.leader_epoch <= 1, "leader epoch isn't +0 or +1"),
        (
            after.leader == before.leader or after.leader_epoch > before.leader_epoch,
            "another leader in the same epoch",
        ),
        (
            set(before.replicas) <= set(after.replicas) or after.leader_epoch > before.leader_epoch,
            "a replica was taken out in the same epoch",
        ),
    )
    for holds, fault in rules:
        if not holds:
            raise InternalError(f"{fault}: {before} -> {after}")


def _without(record: PartitionRecord, brokers: Collection[int]) -> Step:
    isr = tuple(entry for entry in record.isr if entry.broker_id not in brokers)
    if isr == record.isr:
        return Refusal("none of them is in the ISR")
    return _next(record, isr=isr, elr=_next_elr(record, isr))


def _next_elr(record: PartitionRecord, isr: Iterable[Member]) -> tuple[Member, ...]:
    """R10, KIP-966: nobody while the ISR has the minimum; else all who were in ISR or ELR and
    aren't in the ISR any more, with the generation they had."""
    present = {entry.broker_id for entry in isr}
    if len(present) >= record.min_effective:
        return ()
    return tuple(e for e in (*record.isr, *record.elr) if e.broker_id not in present)


def _led(
    record: PartitionRecord,
    *,
    leader: Leader,
    isr: tuple[Member, ...],
    elr: tuple[Member, ...],
    recovery: Recovery = "none",
) -> PartitionRecord:
    return _next(
        record,
        leader=leader,
        leader_epoch=record.leader_epoch + 1,
        isr=isr,
        elr=elr,
        recovery=recovery,
    )


def _next(record: PartitionRecord, **changes: object) -> PartitionRecord:
    following = replace(record, partition_epoch=record.partition_epoch + 1, **changes)  # type: ignore[arg-type]
    check_step(record, following)
    return following
