"""Assignors: members and partitions in, who is to own what out (pure; KIP-848's two).

uniform   as equal as can be over all topics, moving as little as can be from what was; what must
          move goes to members of the partition's rack first, where racks are known
range     per topic, consecutive partitions to members in the order of their names: partitions of
          equal number of several topics meet at one member
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from headrace.broker.core.groups.model import NOTHING, Partitions, Subscription
from headrace.protocol.ids import TopicId, TopicIdPartition

UNIFORM = "uniform"
RANGE = "range"


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic that can be read. `racks[p]` are those with a replica of partition p; empty where
    racks aren't known."""

    topic_id: TopicId
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()


NO_RACKS: frozenset[str] = frozenset()
Topics = Mapping[str, TopicShape]
Members = Mapping[str, Subscription]
Targets = dict[str, Partitions]


def partitions_of(shape: TopicShape) -> list[TopicIdPartition]:
    """All partitions of a topic, in order."""
    return [TopicIdPartition(shape.topic_id, index) for index in range(shape.partition_count)]


def wanted_partitions(members: Members, topics: Topics) -> Partitions:
    """All partitions that some member subscribes to."""
    names = {name for each in members.values() for name in each.topics}
    return frozenset(
        where for name in names if name in topics for where in partitions_of(topics[name])
    )


def assign(members: Members, topics: Topics, before: Mapping[str, Partitions]) -> Targets:
    """The target of every member, by the assignor that most members name."""
    votes = Counter(each.assignor for each in members.values())
    if not votes:
        return {}
    chosen = min(votes, key=lambda name: (-votes[name], name))
    return ASSIGNORS[chosen](members, topics, before)


# --- range ---------------------------------------------------------------------------------------


def assign_range(members: Members, topics: Topics, before: Mapping[str, Partitions]) -> Targets:
    """See the module. Static members are ordered by their instance ids, so that a restart moves
    nothing."""
    found: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for name in sorted(topics):
        readers = sorted(
            (each for each in members if name in members[each].topics),
            key=lambda each: (members[each].instance_id or each, each),
        )
        partitions = partitions_of(topics[name])
        start = 0
        for index, member_id in enumerate(readers):
            share = len(partitions) // len(readers) + (index < len(partitions) % len(readers))
            found[member_id].update(partitions[start : start + share])
            start += share
    return {member_id: frozenset(owned) for member_id, owned in found.items()}


# --- uniform -------------------------------------------------------------------------------------


def assign_uniform(members: Members, topics: Topics, before: Mapping[str, Partitions]) -> Targets:
    """See the module."""
    plan = _Plan(members, topics)
    plan.keep(before)
    plan.share_out()
    plan.level()
    return {member_id: frozenset(owned) for member_id, owned in plan.owned.items()}


class _Plan:
    """The uniform assignment while it is made."""

    def __init__(self, members: Members, topics: Topics) -> None:
        self.owned: dict[str, set[TopicIdPartition]] = {each: set() for each in sorted(members)}
        self._racks = {each: members[each].rack for each in members}
        self._where: dict[TopicIdPartition, frozenset[str]] = {}
        self._readers: dict[TopicId, list[str]] = {}
        self._left: dict[TopicIdPartition, None] = {}
        for name in sorted(topics):
            shape = topics[name]
            readers = [each for each in self.owned if name in members[each].topics]
            if readers:
                self._readers[shape.topic_id] = readers
                partitions = partitions_of(shape)
                self._left.update(dict.fromkeys(partitions))
                self._where.update(zip(partitions, shape.racks, strict=False))
        self._is_alike = all(readers == list(self.owned) for readers in self._readers.values())
        self._total = len(self._left)

    def keep(self, before: Mapping[str, Partitions]) -> None:
        """Everybody keeps what it had, as far as it is still to be read by it and not above its
        equal share."""
        shares = self._shares(before)
        for member_id, owned in self.owned.items():
            kept = [
                where
                for where in sorted(before.get(member_id, NOTHING))
                if where in self._left and member_id in self._readers[where.topic_id]
            ]
            kept.sort(key=lambda where: not self._is_near(member_id, where))
            for where in kept[: shares.get(member_id, len(kept))]:
                owned.add(where)
                del self._left[where]

    def _shares(self, before: Mapping[str, Partitions]) -> dict[str, int]:
        """Equal shares where all read the same; the odd ones go to who has most, so that nothing
        moves for them."""
        if not self._is_alike or not self.owned:
            return {}
        least, odd = divmod(self._total, len(self.owned))
        ordered = sorted(self.owned, key=lambda each: (-len(before.get(each, NOTHING)), each))
        return {each: least + (index < odd) for index, each in enumerate(ordered)}

    def share_out(self) -> None:
        """What nobody keeps goes to the member with least of those who read it: first within the
        rack, up to the equal share, then anywhere."""
        share = -(-self._total // max(1, len(self.owned)))
        if any(self._where.values()):
            self._give(share, is_near=True)
        self._give(self._total, is_near=False)

    def _give(self, share: int, *, is_near: bool) -> None:
        """Gives all partitions that are left to who has least, in the rack or anywhere, below
        `share`. A heap for each kind of partition: shares only grow, so what a heap says of a
        member is put right when it comes up."""
        heaps: dict[tuple[TopicId, frozenset[str]], list[tuple[int, str]]] = {}
        for where in list(self._left):
            key = where.topic_id, self._where.get(where, NO_RACKS) if is_near else NO_RACKS
            heap = heaps.get(key)
            if heap is None:
                readers = self._readers[where.topic_id]
                chosen = [e for e in readers if not is_near or self._is_near(e, where)]
                heap = heaps[key] = [(len(self.owned[each]), each) for each in chosen]
                heapify(heap)
            while heap and heap[0][0] < len(self.owned[heap[0][1]]):
                heapreplace(heap, (len(self.owned[heap[0][1]]), heap[0][1]))
            if heap and heap[0][0] < share:
                self.owned[heap[0][1]].add(where)
                del self._left[where]

    def _least(self, candidates: Iterable[str]) -> str | None:
        return min(candidates, key=lambda each: (len(self.owned[each]), each), default=None)

    def _is_near(self, member_id: str, where: TopicIdPartition) -> bool:
        rack = self._racks[member_id]
        return rack is not None and rack in self._where.get(where, frozenset())

    def level(self) -> None:
        """Moves one partition after another to a reader that has at least two less, until there is
        no such pair. Each move makes the sum of squares smaller, so it ends."""
        moved = True
        while moved:
            moved = False
            lowest = min(map(len, self.owned.values()), default=0)
            for member_id in sorted(self.owned, key=lambda each: -len(self.owned[each])):
                if len(self.owned[member_id]) <= lowest + 1:
                    continue  # Nobody has two less.
                for where in sorted(
                    self.owned[member_id], key=lambda p: (self._is_near(member_id, p), p)
                ):
                    least = self._least(self._readers[where.topic_id])
                    if least is not None and (
                        len(self.owned[least]) + 1 < len(self.owned[member_id])
                    ):
                        self.owned[member_id].remove(where)
                        self.owned[least].add(where)
                        moved = True


ASSIGNORS: Mapping[str, Callable[[Members, Topics, Mapping[str, Partitions]], Targets]] = {
    UNIFORM: assign_uniform,
    RANGE: assign_range,
}
"""Name → assignor."""
