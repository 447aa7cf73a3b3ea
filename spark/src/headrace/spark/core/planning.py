"""What a batch reads: limits shared out, losses found, ranges made and split. Pure.

A range [start, until) of a partition becomes one Spark task, or several. Invariants, tested as
properties: the ranges of a plan cover what lies between two positions exactly once, in order within
each partition; no split is above its limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.spark.core.offsets import Partition, Position, Positions


class Span(NamedTuple):
    """Offsets `[start, until)` of a partition of the topic with that id."""

    topic: str
    topic_id: str
    partition: int
    start: int
    until: int

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.until - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """What to read, and (for people) what can't be read any more."""

    spans: list[Span] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)


def share_out(
    begins: Mapping[Partition, int], ends: Mapping[Partition, int], limit: int
) -> dict[Partition, int]:
    """Ends so that about `limit` offsets lie between: each partition gets in proportion to what it
    has, but at least one, so that a small one doesn't starve beside a large one. The sum is never
    above `limit` unless more partitions than that have something."""
    sizes = {where: max(end - begins[where], 0) for where, end in ends.items()}
    waiting = {where: size for where, size in sizes.items() if size}
    total = sum(waiting.values())
    if total <= limit:
        return dict(ends)
    rest = max(limit - len(waiting), 0)
    spare = total - len(waiting)
    shares = {where: 1 + rest * (size - 1) // max(spare, 1) for where, size in waiting.items()}
    left = max(limit, len(waiting)) - sum(shares.values())
    for where in sorted(waiting, key=lambda each: rest * (1 - waiting[each]) % max(spare, 1)):
        if left <= 0:
            break
        if shares[where] < waiting[where]:
            shares[where] += 1
            left -= 1
    return {
        where: begins[where] + shares[where] if where in shares else end
        for where, end in ends.items()
    }


def bytes_shares(
    begins: Mapping[Partition, int], ends: Mapping[Partition, int], limit_bytes: int
) -> dict[Partition, int]:
    """How many of `limit_bytes` each partition may read: in proportion to its offsets, as if all
    records were of one size; at least one byte, which is always at least one stored batch."""
    sizes = {where: end - begins[where] for where, end in ends.items() if end > begins[where]}
    total = sum(sizes.values())
    return {where: max(limit_bytes * size // total, 1) for where, size in sizes.items()}


def is_due(
    *,
    waiting: int,
    smallest: int | None,
    now_ms: float,
    last_ms: float | None,
    delay_ms: int,
) -> bool:
    """Whether a trigger may run under `minOffsetsPerTrigger`: enough is there, or the last one that
    ran is long ago (None: none ran yet, so that a query shows life at once, as Kafka's)."""
    if smallest is None or last_ms is None:
        return True
    return waiting >= smallest or now_ms - last_ms >= delay_ms


def plan_spans(start: Positions, end: Positions, earliest: Positions) -> Plan:
    """The spans from `start` to `end`. `earliest` is what the cluster has now: each topic's id and
    where its logs start. A partition that `start` doesn't know begins at the log's start.

    What is lost: topics or partitions that are gone, a topic that is another one now, records that
    retention removed. Lost offsets are in no span.
    """
    plan = Plan()
    for topic in sorted(start.keys() - end.keys()):
        plan.losses.append(f"topic {topic!r} is gone")
    for topic in sorted(end):
        _plan_topic(topic, start.get(topic), end[topic], earliest.get(topic), plan)
    return plan


def find_losses(before: Positions, heads: Positions) -> Plan:
    """What can be told lost without knowing where logs start: a plan without spans. Topics that
    are gone or made again, partitions that are gone, logs that end before what was read."""
    plan = Plan()
    for topic, position in sorted(before.items()):
        head = heads.get(topic)
        if head is None:
            plan.losses.append(f"topic {topic!r} is gone")
        elif head.topic_id != position.topic_id:
            plan.losses.append(_recreated(topic, position.topic_id, head.topic_id))
        else:
            for number, offset in sorted(position.offsets.items()):
                end = head.offsets.get(number)
                if end is None:
                    plan.losses.append(f"{topic}/{number} is gone")
                elif end < offset:
                    plan.losses.append(
                        f"{topic}/{number} ends at {end}, it was read up to {offset}"
                    )
    return plan


def keep_up(before: Positions, heads: Positions) -> dict[str, Position]:
    """The heads, but nowhere before what was read already."""
    kept: dict[str, Position] = {}
    for topic, head in heads.items():
        position = before.get(topic)
        if position is None or position.topic_id != head.topic_id:
            kept[topic] = head
            continue
        offsets = {
            number: max(offset, position.offsets.get(number, offset))
            for number, offset in head.offsets.items()
        }
        kept[topic] = Position(head.topic_id, offsets)
    return kept


def _plan_topic(
    topic: str, start: Position | None, end: Position, earliest: Position | None, plan: Plan
) -> None:
    if earliest is None:
        plan.losses.append(f"topic {topic!r} is gone")
        return
    if earliest.topic_id != end.topic_id:
        plan.losses.append(_recreated(topic, end.topic_id, earliest.topic_id))
        return
    begins: Mapping[int, int] = {}
    if start is not None:
        if start.topic_id == end.topic_id:
            begins = start.offsets
        else:
            plan.losses.append(_recreated(topic, start.topic_id, end.topic_id))
    for number in sorted(end.offsets.keys() | begins.keys()):
        until, first = end.offsets.get(number), earliest.offsets.get(number)
        if until is None or first is None:
            plan.losses.append(f"{topic}/{number} is gone")
            continue
        begin = begins.get(number, 0)
        if until < begin:
            plan.losses.append(f"{topic}/{number} ends at {until}, it was read up to {begin}")
        elif begin < first and (begin < until or number not in begins):
            plan.losses.append(
                f"{topic}/{number}: offsets {begin} to {first - 1} are gone; its log starts at"
                f" {first}"
            )
        begin = max(begin, first)
        if begin < until:
            plan.spans.append(Span(topic, end.topic_id, number, begin, until))


def _recreated(topic: str, before: str, now: str) -> str:
    return (
        f"topic {topic!r} was deleted and created again: the query read id {before}, now it has"
        f" {now}, and offsets mean other records"
    )


def split(
    spans: Sequence[Span], *, min_partitions: int | None, max_records: int | None
) -> list[Span]:
    """The spans cut into more where asked for: none above `max_records`, then (if there are fewer)
    about `min_partitions` of like size. Offsets are cut, not records: what compaction left is not
    known before it is read."""
    cut = [span for span in spans if span.size > 0]
    if max_records is not None:
        cut = [piece for span in cut for piece in _pieces(span, -(-span.size // max_records))]
    if min_partitions is None or len(cut) >= min_partitions or not cut:
        return cut
    counts = _piece_counts([span.size for span in cut], min_partitions)
    return [
        piece for span, count in zip(cut, counts, strict=True) for piece in _pieces(span, count)
    ]


def _piece_counts(sizes: Sequence[int], wanted: int) -> list[int]:
    """How many pieces each span is cut into: the one with the largest pieces is cut further until
    there are enough, or every piece is one offset."""
    counts = [max(1, wanted * size // sum(sizes)) for size in sizes]
    counts = [min(count, size) for count, size in zip(counts, sizes, strict=True)]
    while sum(counts) < wanted:
        index = max(range(len(sizes)), key=lambda each: sizes[each] / counts[each])
        if counts[index] >= sizes[index]:
            break
        counts[index] += 1
    return counts


def _pieces(span: Span, count: int) -> list[Span]:
    """The span in `count` parts whose sizes differ by one at most."""
    edges = [span.start + span.size * index // count for index in range(count + 1)]
    return [
        span._replace(start=start, until=until)
        for start, until in zip(edges, edges[1:], strict=False)
    ]
