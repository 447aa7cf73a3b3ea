"""The next step of a reassignment, from a topic's `moves` and its partition records (pure).

What is wanted stands in the topic object, how far it is in the records' `adding` and `removing`:
whoever is controller finds there what is left, so nothing is lost with the one before. A move is
begun, waits for the leader to take the new replicas into the ISR, and is finished; it is done when
the record has the target's replicas. A record on its way without a wish for it goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headrace.broker.core import transitions
from headrace.broker.core.election import Brokers
from headrace.broker.core.model import (
    AnyRecord,
    ClusterObject,
    Move,
    PartitionRecord,
    Shard,
    TopicObject,
)
from headrace.broker.core.reassignment import PlannedMove
from headrace.broker.core.transitions import Refusal, Step, is_moving
from headrace.protocol.errors import Conflict

MoveState = Literal["waiting", "copying", "cancelling", "done"]


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """How far one partition is. `reason`: what it waits for."""

    topic: str
    partition: int
    origin: tuple[int, ...]
    target: tuple[int, ...]
    state: MoveState
    missing: tuple[int, ...] = ()
    reason: str = ""


def next_step(
    record: PartitionRecord, move: Move | None, brokers: Brokers, *, may_begin: bool
) -> Step:
    """The one step that brings the record nearer to where it is wanted."""
    if not is_moving(record):
        if move is None or record.replicas == move.target:
            return Refusal("nothing is to be moved")
        if not may_begin:
            return Refusal("it waits for its turn")
        return transitions.begin_reassignment(record, move.target)
    if move is None:
        return transitions.cancel_reassignment(record, brokers)
    if set(heading_for(record)) == set(move.target):
        return transitions.finish_reassignment(record, brokers)
    return _turned(record, move, brokers)


def _turned(record: PartitionRecord, move: Move, brokers: Brokers) -> Step:
    """On its way elsewhere than it is wanted now: back, if that is where it was; on to the new
    target, if nothing that was added is in the way; else back or, if those it came from are gone,
    to the end of the way first. So a broker that dies meanwhile stops nothing that can do without
    it."""
    former = set(record.replicas) - set(record.adding)
    if former == set(move.target):
        return transitions.cancel_reassignment(record, brokers, order=move.target)
    ways = (
        transitions.redirect_reassignment(record, move.target),
        transitions.cancel_reassignment(record, brokers, order=move.origin),
        transitions.finish_reassignment(record, brokers),
    )
    possible = [step for step in ways if isinstance(step, PartitionRecord)]
    return possible[0] if possible else ways[1]


def advance_shard(
    shard: Shard,
    topic: TopicObject,
    brokers: Brokers,
    *,
    may_begin: Collection[int],
    term: int,
    frozen: Collection[int] = (),
) -> Shard | None:
    """One step for each record that can take one; None if none can. `may_begin`: partitions whose
    turn it is."""
    records: list[AnyRecord] = []
    changed = False
    for record in shard.records:
        following: AnyRecord = record
        if isinstance(record, PartitionRecord) and record.partition not in frozen:
            move = topic.moves.get(record.partition)
            step = next_step(record, move, brokers, may_begin=record.partition in may_begin)
            if isinstance(step, PartitionRecord):
                following, changed = step, True
        records.append(following)
    if not changed:
        return None
    return replace(shard, records=tuple(records), term=max(term, shard.term))


def with_records(shard: Shard, changed: Mapping[int, PartitionRecord], *, term: int) -> Shard:
    """The shard with some records replaced, unless they aren't the next ones of those it has."""
    records = tuple(
        new
        if (new := changed.get(old.partition)) is not None
        and isinstance(old, PartitionRecord)
        and new.partition_epoch == old.partition_epoch + 1
        else old
        for old in shard.records
    )
    return replace(shard, records=records, term=max(term, shard.term))


def take_turns(
    topics: Iterable[tuple[TopicObject, Mapping[int, AnyRecord]]], *, moves_max: int
) -> dict[str, set[int]]:
    """The partitions whose move may begin now: so that no broker receives more than `moves_max`
    partitions at a time. Moves that copy nothing need no turn."""
    seen = list(topics)
    receiving: Counter[int] = Counter()
    for _, records in seen:
        for known in records.values():
            if isinstance(known, PartitionRecord):
                receiving.update(missing_replicas(known))
    turns: dict[str, set[int]] = {}
    for topic, records in seen:
        for partition, move in sorted(topic.moves.items()):
            record = records.get(partition)
            if not isinstance(record, PartitionRecord) or is_moving(record):
                continue
            new = [broker for broker in move.target if broker not in record.replicas]
            if all(receiving[broker] < moves_max for broker in new):
                receiving.update(new)
                turns.setdefault(topic.name, set()).add(partition)
    return turns


def status_of(
    topic: TopicObject, records: Mapping[int, AnyRecord], brokers: Brokers
) -> list[MoveStatus]:
    """How far each partition of the topic is that is to be moved, or is on its way."""
    moving = {at for at, r in records.items() if isinstance(r, PartitionRecord) and is_moving(r)}
    found = []
    for partition in sorted({*topic.moves, *moving}):
        known = records.get(partition)
        if isinstance(known, PartitionRecord):
            found.append(_status(topic, known, topic.moves.get(partition), brokers))
        elif known is not None:
            move = topic.moves[partition]
            reason = f"its record can't be read: {known.reason}"
            found.append(
                MoveStatus(topic.name, partition, move.origin, move.target, "waiting", (), reason)
            )
    return found


def wanted_replicas(record: AnyRecord | None, move: Move | None) -> tuple[int, ...]:
    """Where a partition's replicas are, or will be once all moves are done; () if unknown."""
    if not isinstance(record, PartitionRecord):
        return ()
    if move is not None:
        return move.target
    return tuple(broker for broker in record.replicas if broker not in record.adding)


def heading_for(record: PartitionRecord) -> tuple[int, ...]:
    """The replicas that the record has once its move is finished."""
    return tuple(broker for broker in record.replicas if broker not in record.removing)


def missing_replicas(record: PartitionRecord) -> tuple[int, ...]:
    """Replicas being added that aren't in sync yet."""
    return tuple(broker for broker in record.adding if record.in_isr(broker) is None)


# --- what people want, as changes of the topic object ---


def with_moves(
    topic: TopicObject,
    planned: Iterable[PlannedMove],
    records: Mapping[int, AnyRecord],
    *,
    replicas: int | None = None,
) -> TopicObject:
    """The topic with a plan taken up; `replicas`: its new number of copies.

    Raises:
        Conflict: it isn't what the plan was made from any more.
    """
    moves = dict(topic.moves)
    for each in planned:
        record, earlier = records.get(each.partition), moves.get(each.partition)
        if wanted_replicas(record, earlier) not in (each.origin, each.target):
            raise Conflict(
                f"{topic.name}/{each.partition} was to be moved otherwise meanwhile: plan again"
            )
        under_way = isinstance(record, PartitionRecord) and is_moving(record)
        origin = earlier.origin if earlier and under_way else each.origin
        moves[each.partition] = Move(each.target, origin)
    return _changed(topic, moves, topic.replicas if replicas is None else replicas)


def without_moves(topic: TopicObject, records: Mapping[int, AnyRecord]) -> TopicObject:
    """The topic with its reassignment called off: what is on its way goes back, what is done stays;
    a change of the number of replicas goes back as a whole."""
    moves: dict[int, Move] = {}
    replicas = topic.replicas
    for partition, move in topic.moves.items():
        record = records.get(partition)
        if not isinstance(record, PartitionRecord):
            continue
        former = {b for b in record.replicas if b not in record.adding}
        other_factor = len(move.target) != len(move.origin)
        if other_factor:
            replicas = len(move.origin)
        if is_moving(record) and former == set(move.origin):
            moves[partition] = Move(move.origin, move.origin)
        elif other_factor and record.replicas != move.origin and not is_moving(record):
            moves[partition] = Move(move.origin, record.replicas)
    return _changed(topic, moves, replicas)


def without_done(topic: TopicObject) -> TopicObject:
    """The topic once nothing is left to move."""
    return _changed(topic, {}, topic.replicas)


def is_called_off(topic: TopicObject) -> bool:
    """Whether all that is wanted is to have things as they were."""
    return all(move.target == move.origin for move in topic.moves.values())


def with_cordon(cluster: ClusterObject, broker: int, *, cordoned: bool) -> ClusterObject | None:
    """The cluster object with the broker cordoned or not; None if it is so already."""
    if (broker in cluster.cordoned) == cordoned:
        return None
    after = cluster.cordoned | {broker} if cordoned else cluster.cordoned - {broker}
    return replace(cluster, cordoned=after, version=cluster.version + 1)


def _changed(topic: TopicObject, moves: Mapping[int, Move], replicas: int) -> TopicObject:
    if (dict(topic.moves), topic.replicas) == (dict(moves), replicas):
        return topic
    return replace(topic, moves=dict(moves), replicas=replicas, version=topic.version + 1)


def _status(
    topic: TopicObject, record: PartitionRecord, move: Move | None, brokers: Brokers
) -> MoveStatus:
    former = tuple(broker for broker in record.replicas if broker not in record.adding)
    wanted = move or Move(former, former)
    state: MoveState = "waiting"
    missing: tuple[int, ...] = ()
    reason = "its turn"
    if not is_moving(record):
        if record.replicas == wanted.target:
            state, reason = "done", ""
    elif move is not None and set(heading_for(record)) == set(move.target):
        state, missing = "copying", missing_replicas(record)
        step = transitions.finish_reassignment(record, brokers)
        reason = _why(step, missing, brokers)
    else:
        state = "cancelling"
        step = transitions.cancel_reassignment(record, brokers, order=wanted.origin)
        reason = step.reason if isinstance(step, Refusal) else ""
    return MoveStatus(
        topic.name, record.partition, wanted.origin, wanted.target, state, missing, reason
    )


def _why(step: Step, missing: Iterable[int], brokers: Brokers) -> str:
    gone = [b for b in missing if b not in brokers or not brokers[b].live]
    if gone:
        return f"broker {', '.join(map(str, gone))} is not live: start it, or cancel"
    return step.reason if isinstance(step, Refusal) else ""
