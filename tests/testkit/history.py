"""Did a cluster keep its promises? Judges what clients were told against what is there at the end.

The words are those of Jepsen's Kafka workload (jepsen.tests.kafka):

    lost            acknowledged, and not in the log although the log goes on behind it
    unseen          acknowledged, and the final read ended before it came to it
    duplicate       one value at two offsets
    inconsistent    one offset with two values, told by acknowledgement, reader or final read
    reordered       a producer's values of one key stand in another order than they were sent
    nonmonotonic    a reader went back, or skipped an offset that is there
    phantom         read, but never sent, or sent and refused for certain

Values are unique. Pure: nothing here knows of brokers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "lost", "unseen", "duplicate", "inconsistent", "reordered", "nonmonotonic", "phantom"
]
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise."""

    kind: Kind
    detail: str


@dataclass(slots=True)
class Send:
    """One value on its way. `place` is set once it is acknowledged; `refused` if it certainly was
    not written; neither means that nobody knows."""

    producer: int
    key: bytes
    value: bytes
    place: Place | None = None
    refused: bool = False


@dataclass(slots=True)
class History:
    """All that clients were told. `reads` has for each reader, partition by partition, what it got
    in the order it came; `final` the whole log at the end, offset by offset."""

    sends: list[Send] = field(default_factory=list)
    reads: dict[str, dict[int, list[tuple[int, bytes]]]] = field(default_factory=dict)
    final: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)

    def send(self, producer: int, key: bytes, value: bytes) -> Send:
        """Notes a value that is being sent; its end is noted on the result."""
        self.sends.append(Send(producer, key, value))
        return self.sends[-1]

    def saw(self, reader: str, partition: int, offset: int, value: bytes) -> None:
        """Notes what a reader got."""
        self.reads.setdefault(reader, defaultdict(list))[partition].append((offset, value))

    @property
    def acknowledged(self) -> list[Send]:
        """The sends that were promised to last."""
        return [send for send in self.sends if send.place is not None]


def check(history: History) -> list[Anomaly]:
    """All broken promises; none for a clean history."""
    return [
        *_lost_and_unseen(history),
        *_duplicates(history),
        *_inconsistent(history),
        *_reordered(history),
        *_nonmonotonic(history),
        *_phantoms(history),
    ]


def assert_clean(history: History) -> None:
    """Fails with the first anomalies of each kind."""
    found = check(history)
    counts = Counter(each.kind for each in found)
    shown = [f"{each.kind}: {each.detail}" for each in found[:20]]
    assert not found, f"{dict(counts)}\n" + "\n".join(shown)
    assert history.acknowledged, "nothing was acknowledged, so nothing was tested"


def _lost_and_unseen(history: History) -> Iterator[Anomaly]:
    there = {partition: dict(records) for partition, records in history.final.items()}
    for send in history.acknowledged:
        assert send.place is not None
        partition, offset = send.place
        records = there.get(partition, {})
        if records.get(offset) == send.value:
            continue
        if offset > max(records, default=-1):
            yield Anomaly("unseen", f"{send.value!r} acknowledged at {send.place}")
        else:
            yield Anomaly("lost", f"{send.value!r} acknowledged at {send.place}")


def _duplicates(history: History) -> Iterator[Anomaly]:
    places: dict[bytes, list[Place]] = defaultdict(list)
    for partition, records in history.final.items():
        for offset, value in records:
            places[value].append((partition, offset))
    for value, found in places.items():
        if len(found) > 1:
            yield Anomaly("duplicate", f"{value!r} at {found}")


def _inconsistent(history: History) -> Iterator[Anomaly]:
    told: dict[Place, set[bytes]] = defaultdict(set)
    for send in history.acknowledged:
        assert send.place is not None
        told[send.place].add(send.value)
    for records in (history.final, *history.reads.values()):
        for partition, seen in records.items():
            for offset, value in seen:
                told[partition, offset].add(value)
    for place, values in told.items():
        if len(values) > 1:
            yield Anomaly("inconsistent", f"{place} is {sorted(values)}")


def _reordered(history: History) -> Iterator[Anomaly]:
    rank = {send.value: index for index, send in enumerate(history.sends)}
    by_value = {send.value: send for send in history.sends}
    for partition, records in history.final.items():
        last: dict[tuple[int, bytes], int] = {}
        for offset, value in records:
            send = by_value.get(value)
            if send is None:
                continue
            lane = (send.producer, send.key)
            if rank[value] < last.get(lane, -1):
                yield Anomaly("reordered", f"{value!r} at {(partition, offset)} came too late")
            last[lane] = max(rank[value], last.get(lane, -1))


def _nonmonotonic(history: History) -> Iterator[Anomaly]:
    for reader, partitions in history.reads.items():
        for partition, seen in partitions.items():
            there = {offset for offset, _ in history.final.get(partition, [])}
            offsets = [offset for offset, _ in seen]
            for before, after in zip(offsets, offsets[1:], strict=False):
                skipped = there.intersection(range(before + 1, after))
                if after <= before or skipped:
                    where = f"{reader} in partition {partition}: {before}, then {after}"
                    yield Anomaly("nonmonotonic", where)


def _phantoms(history: History) -> Iterator[Anomaly]:
    sent = {send.value for send in history.sends if not send.refused}
    everything = [*history.reads.items(), ("final", history.final)]
    for reader, partitions in everything:
        for partition, seen in partitions.items():
            for offset, value in seen:
                if value not in sent:
                    yield Anomaly("phantom", f"{reader} saw {value!r} at {(partition, offset)}")
