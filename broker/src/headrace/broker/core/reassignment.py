"""Which replicas should go where: plans over the whole cluster; pure and deterministic.

Goals
    Replicas, and then preferred leaders, within one of each other over the brokers; what a broker
    has of one topic about even too. As few copies as that takes: a replica moves only from a broker
    above its share to one below.
Constraints
    Replicas of a partition are distinct brokers, over as many racks as there are. New replicas go
    only to `eligible` brokers (live, not cordoned); those on others stay, unless they are drained.
Algorithm
    A broker's share is the total over the number of brokers; a rack whose brokers can't hold that
    much (no partition may be in it twice while another rack has none) is filled, and the others
    share the rest. Then: (1) what must leave does, (2) racks used too often are relieved, (3)
    brokers above their share give to those below, (4) brokers still below take from those that can
    spare one, (5) preferred leaders change places within a partition, which copies nothing.
    Searching is bounded by `SEARCH_MAX` looks: a huge cluster with odd racks ends less even.
Example
    Brokers 0 and 1 have the replicas of 6 partitions, one each; 2 is new. Shares are 2: brokers 0
    and 1 give one replica each, 4 stay. Two copies are the lower bound.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.broker.core.placement import Racks
from headrace.protocol.errors import (
    BrokerNotFound,
    InvalidRequest,
    PartitionNotFound,
    TopicNotFound,
)

Where = tuple[str, int]
"""Topic and partition."""

Assignment = Mapping[Where, tuple[int, ...]]
"""The replicas of each partition, the preferred leader first."""

SEARCH_MAX = 4_000_000
"""Looks at (replica, broker) pairs in one plan before it stays as good as it is."""

TRIES = 64
"""Replicas of one donor that are offered to one broker below its share."""

CHOICE = 8
"""Brokers compared for one replica before the best of them is taken."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One partition's replicas, now and as planned."""

    topic: str
    partition: int
    origin: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def copies(self) -> int:
        """Replicas that have to be copied."""
        return len(set(self.target) - set(self.origin))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to move. `refusals`: topics whose replication couldn't be kept, and why. `factors`:
    topics' new numbers of replicas."""

    moves: tuple[PlannedMove, ...]
    refusals: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, int] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        """Replicas that have to be copied."""
        return sum(move.copies for move in self.moves)


def even_out(assignment: Assignment, racks: Racks, eligible: Collection[int]) -> Plan:
    """Replicas and preferred leaders evenly over the eligible brokers, with minimal moves. `racks`
    has every registered broker."""
    state = _State(assignment, racks, eligible)
    if state.eligible:
        state.relieve_racks()
        state.give()
        state.take()
        state.even_leaders()
    return state.plan()


def even_leaders(assignment: Assignment, racks: Racks, eligible: Collection[int]) -> Plan:
    """Only preferred leaders change places; nothing is copied."""
    state = _State(assignment, racks, eligible)
    state.even_leaders()
    return state.plan()


def drain(
    assignment: Assignment,
    racks: Racks,
    eligible: Collection[int],
    *,
    leaving: Collection[int],
    ignore_racks: bool = False,
) -> Plan:
    """No replica stays on the `leaving` brokers; nothing else moves. A topic that can't keep its
    replicas, or (unless `ignore_racks`) the number of racks they are in, is refused and stays."""
    gone = frozenset(leaving)
    state = _State(assignment, racks, [b for b in eligible if b not in gone], leaving=gone)
    refusals: dict[str, str] = {}
    for where in sorted(w for w, now in assignment.items() if not gone.isdisjoint(now)):
        if where[0] in refusals:
            continue
        reason = state.move_off(where, gone, ignore_racks=ignore_racks)
        if reason is not None:
            refusals[where[0]] = reason
    return state.plan(refusals)


def change_factor(
    assignment: Assignment,
    racks: Racks,
    eligible: Collection[int],
    *,
    topic: str,
    replicas: int,
    in_sync: Mapping[Where, Collection[int]],
) -> Plan:
    """Each partition of the topic gets so many replicas: more where least is, or fewer, those not
    in sync first and the preferred leader last."""
    state = _State(assignment, racks, eligible)
    own = sorted(where for where in assignment if where[0] == topic)
    refusals: dict[str, str] = {}
    for where in own:
        while len(state.replicas[where]) > replicas:
            state.drop_one(where, in_sync.get(where, ()))
        while len(state.replicas[where]) < replicas and not refusals:
            if not state.add_one(where):
                refusals[topic] = _too_few(replicas, len(state.eligible))
    return replace(state.plan(refusals), factors={} if refusals else {topic: replicas})


def drain_with_fewer(
    assignment: Assignment,
    racks: Racks,
    eligible: Collection[int],
    *,
    leaving: Collection[int],
    topic: str,
) -> Plan:
    """`drain`ing of one topic that may have fewer replicas afterwards, in fewer racks: one that the
    cluster keeps for itself must not hold up its shrinking."""
    own = {where: now for where, now in assignment.items() if where[0] == topic}
    gone, staying = frozenset(leaving), frozenset(eligible) - frozenset(leaving)
    most = max((len(held) for held in own.values()), default=0)
    replicas = min(most, len(staying))
    if replicas == 0:
        return drain(own, racks, eligible, leaving=leaving, ignore_racks=True)
    kept = {where: [b for b in now if b not in gone] for where, now in own.items()}
    fewer = change_factor(own, racks, staying, topic=topic, replicas=replicas, in_sync=kept)
    between = {**own, **{(m.topic, m.partition): m.target for m in fewer.moves}}
    rest = drain(between, racks, eligible, leaving=leaving, ignore_racks=True)
    final = {**between, **{(m.topic, m.partition): m.target for m in rest.moves}}
    moves = [PlannedMove(*at, own[at], now) for at, now in final.items() if own[at] != now]
    factors = {topic: replicas} if replicas != most else {}
    return Plan(tuple(sorted(moves, key=lambda m: m.partition)), rest.refusals, factors)


def explicit(
    assignment: Assignment,
    racks: Racks,
    eligible: Collection[int],
    wanted: Mapping[Where, Sequence[int]],
) -> Plan:
    """What somebody wrote down, checked.

    Raises:
        TopicNotFound, PartitionNotFound, BrokerNotFound: it names what isn't there.
        InvalidRequest: a broker twice, or another number of replicas than the partition has.
    """
    topics, may_get = {topic for topic, _ in assignment}, frozenset(eligible)
    moves: list[PlannedMove] = []
    refusals: dict[str, str] = {}
    for where, brokers in sorted(wanted.items()):
        _check_wanted(where, brokers, assignment, racks, topics)
        origin, target = assignment[where], tuple(brokers)
        barred = [b for b in target if b not in origin and b not in may_get]
        if barred:
            refusals[where[0]] = (
                f"partition {where[1]}: broker {_listed(barred)} is not live, or cordoned, and"
                " gets no new replicas: start or uncordon it, or name another"
            )
        elif origin != target:
            moves.append(PlannedMove(*where, origin, target))
    return Plan(tuple(move for move in moves if move.topic not in refusals), refusals)


def copies_needed(assignment: Assignment, eligible: Collection[int]) -> int:
    """A lower bound: no plan evens out replicas over these brokers (racks aside) with fewer
    copies."""
    brokers = frozenset(eligible)
    counts = Counter(b for held in assignment.values() for b in held if b in brokers)
    low, rest = divmod(counts.total(), len(eligible))
    over = sum(max(0, counts[b] - (low + (rest > 0))) for b in eligible)
    under = sum(max(0, low - counts[b]) for b in eligible)
    return max(over, under)


def _check_wanted(
    where: Where,
    brokers: Sequence[int],
    assignment: Assignment,
    racks: Racks,
    topics: Collection[str],
) -> None:
    topic, partition = where
    if topic not in topics:
        raise TopicNotFound(f"there is no topic {topic!r}")
    if where not in assignment:
        raise PartitionNotFound(f"topic {topic!r} has no partition {partition}")
    unknown = [broker for broker in brokers if broker not in racks]
    if unknown:
        raise BrokerNotFound(f"{topic}/{partition}: no broker {_listed(unknown)} is registered")
    if len(set(brokers)) != len(brokers):
        raise InvalidRequest(f"{topic}/{partition}: a broker is named twice: {_listed(brokers)}")
    if len(brokers) != len(assignment[where]):
        raise InvalidRequest(
            f"{topic}/{partition}: {len(brokers)} broker(s) named, it has"
            f" {len(assignment[where])} replica(s); another number is set for the whole topic:"
            f" headrace topic alter {topic} --replicas {len(brokers)}"
        )


class _State:
    """An assignment being changed, with the counts that decide."""

    def __init__(
        self,
        assignment: Assignment,
        racks: Racks,
        eligible: Collection[int],
        *,
        leaving: Collection[int] = (),
    ) -> None:
        self._before = assignment
        # A broker that isn't registered any more is in no rack but its own.
        self._racks: dict[int, object] = {b: b for held in assignment.values() for b in held}
        self._racks.update(racks)
        self.eligible = sorted(set(eligible))
        self.replicas: dict[Where, tuple[int, ...]] = dict(assignment)
        self._counts: Counter[int] = Counter()
        self._of_topic: Counter[tuple[int, str]] = Counter()
        for (topic, _), now in assignment.items():
            self._counts.update(now)
            self._of_topic.update((broker, topic) for broker in now)
        self._rack_count = max(1, len({racks[b] for b in self.eligible}))
        self._low, self._high = self._shares({*self.eligible, *leaving})
        self._below: list[int] = []
        self._roomy: list[int] = []
        self._cursor = 0
        self._looks = SEARCH_MAX
        self._sort_receivers()

    def plan(self, refusals: Mapping[str, str] | None = None) -> Plan:
        """What has changed; nothing of a refused topic."""
        refused = refusals or {}
        moves = [
            PlannedMove(*where, before, self.replicas[where])
            for where, before in sorted(self._before.items())
            if self.replicas[where] != before and where[0] not in refused
        ]
        return Plan(tuple(moves), refused)

    # --- the steps of a plan ---

    def move_off(self, where: Where, leaving: Collection[int], *, ignore_racks: bool) -> str | None:
        """Replaces the partition's replicas on `leaving`; why it can't."""
        before = self.replicas[where]
        for broker in before:
            if broker in leaving:
                receiver = self._receiver(where, broker) or self._any_receiver(where, broker)
                if receiver is None:
                    return _too_few(len(before), len(self.eligible))
                self._move(where, broker, receiver[0])
        had, has = (len({self._racks[b] for b in held}) for held in (before, self.replicas[where]))
        if has < had and not ignore_racks:
            return (
                f"its replicas would be in {has} rack(s) instead of {had}: start a broker in"
                " another rack, or accept that (ignore_racks)"
            )
        return None

    def add_one(self, where: Where) -> bool:
        """One replica more, where least is; whether there is a broker for it."""
        receiver = self._any_receiver(where, None)
        if receiver is None:
            return False
        self._put(where, (*self.replicas[where], receiver[0]))
        return True

    def drop_one(self, where: Where, in_sync: Collection[int]) -> None:
        """One replica fewer."""
        now = self.replicas[where]
        used = Counter(self._racks[broker] for broker in now)

        def worth(place: int) -> tuple[bool, bool, int, int, int]:
            broker = now[place]
            rack = used[self._racks[broker]]
            return broker in in_sync, place == 0, -rack, -self._counts[broker], -place

        leaves = now[min(range(len(now)), key=worth)]
        self._put(where, tuple(broker for broker in now if broker != leaves))

    def relieve_racks(self) -> None:
        """A rack that a partition uses too often gives to one that has room for it."""
        if self._rack_count == 1:
            return
        for where in self.replicas:
            for donor in self._crowded(where):
                receiver = self._receiver(where, donor)
                if receiver is not None:
                    self._move(where, donor, receiver[0])
        self._sort_receivers()

    def give(self) -> None:
        """Brokers above their share give: first all they can to those below theirs, since such a
        copy mends two brokers; only then to those that merely have room."""
        over = [b for b in self.eligible if self._counts[b] > self._high[b]]
        over.sort(key=lambda b: self._high[b] - self._counts[b])
        held = self._held_by(over)
        for only_below in (True, False):
            for donor in over:
                self._give_from(donor, held[donor], only_below=only_below)

    def _give_from(self, donor: int, held: Sequence[Where], *, only_below: bool) -> None:
        for where in held:
            if self._counts[donor] <= self._high[donor] or self._looks < 0:
                return
            if donor not in self.replicas[where]:
                continue
            receiver = self._receiver(where, donor, only_below=only_below)
            if receiver is not None:
                self._move(where, donor, receiver[0])

    def take(self) -> None:
        """Brokers still below their share take from those that can spare one."""
        below = [b for b in self.eligible if self._counts[b] < self._low[b]]
        spare = [b for b in self.eligible if self._counts[b] > self._low[b]] if below else []
        held = self._held_by(spare)
        for receiver in below:
            rack = self._racks[receiver]
            for donor in sorted(spare, key=lambda b: (self._racks[b] != rack, -self._counts[b])):
                for where in held[donor][:TRIES]:
                    if not self._wants(receiver, donor) or self._looks < 0:
                        break
                    self._looks -= 1
                    if donor in self.replicas[where] and self._fits(where, donor, receiver):
                        self._move(where, donor, receiver)

    def even_leaders(self) -> None:
        """Preferred leaders within one of each other, by swaps inside partitions."""
        _Leaders(self.replicas, self.eligible).even_out()

    # --- who may get what ---

    def _receiver(self, where: Where, donor: int, *, only_below: bool = False) -> tuple[int] | None:
        """The best broker for the donor's replica among those below their share, else among those
        that have room: that with the fewest replicas of the topic."""
        choices = [(self._below, self._low), (self._roomy, self._high)]
        for receivers, limit in choices[:1] if only_below else choices:
            found: list[int] = []
            for step in range(len(receivers)):
                self._looks -= 1
                broker = receivers[(self._cursor + step) % len(receivers)]
                if self._counts[broker] < limit[broker] and self._fits(where, donor, broker):
                    found.append(broker)
                    if len(found) == CHOICE:
                        break
            if found:
                self._cursor += 1
                topic = where[0]
                return (min(found, key=lambda b: (self._of_topic[b, topic], self._counts[b])),)
        return None

    def _any_receiver(self, where: Where, donor: int | None) -> tuple[int] | None:
        """The least loaded broker of the rack least used, whatever its share."""
        now = [broker for broker in self.replicas[where] if broker != donor]
        used = Counter(self._racks[broker] for broker in now)
        free = [broker for broker in self.eligible if broker not in self.replicas[where]]
        if not free:
            return None
        return (
            min(
                free,
                key=lambda b: (
                    used[self._racks[b]],
                    self._of_topic[b, where[0]],
                    self._counts[b],
                    (b - where[1]) % (len(free) + 1),
                ),
            ),
        )

    def _fits(self, where: Where, donor: int, receiver: int) -> bool:
        """Whether the receiver may have the donor's replica: not there yet, no rack too often."""
        now = self.replicas[where]
        if receiver in now:
            return False
        if self._rack_count == 1:
            return True
        racks = self._racks
        rack = racks[receiver]
        if rack == racks[donor] and donor in self._low:
            return True
        used = 0
        for broker in now:
            if racks[broker] == rack and broker != donor:
                used += 1
        return used < -(-len(now) // self._rack_count)

    def _wants(self, receiver: int, donor: int) -> bool:
        return (
            self._counts[receiver] < self._low[receiver] and self._counts[donor] > self._low[donor]
        )

    def _crowded(self, where: Where) -> list[int]:
        """Replicas that a rack has too many of, the most loaded first."""
        now = self.replicas[where]
        limit = -(-len(now) // self._rack_count)
        by_rack: dict[object, list[int]] = defaultdict(list)
        for broker in now:
            by_rack[self._racks[broker]].append(broker)
        surplus: list[int] = []
        for brokers in by_rack.values():
            if len(brokers) > limit:
                movable = [b for b in brokers if b in self._low]
                movable.sort(key=lambda b: -self._counts[b])
                surplus.extend(movable[: len(brokers) - limit])
        return surplus

    # --- bookkeeping ---

    def _move(self, where: Where, donor: int, receiver: int) -> None:
        now = self.replicas[where]
        self._put(where, tuple(receiver if broker == donor else broker for broker in now))

    def _put(self, where: Where, target: tuple[int, ...]) -> None:
        now, topic = self.replicas[where], where[0]
        for broker in now:
            if broker not in target:
                self._counts[broker] -= 1
                self._of_topic[broker, topic] -= 1
        for broker in target:
            if broker not in now:
                self._counts[broker] += 1
                self._of_topic[broker, topic] += 1
                self._filled(broker)
        self.replicas[where] = target

    def _filled(self, broker: int) -> None:
        if self._counts[broker] == self._low.get(broker) and broker in self._below:
            self._below.remove(broker)
        if self._counts[broker] == self._high.get(broker) and broker in self._roomy:
            self._roomy.remove(broker)

    def _sort_receivers(self) -> None:
        self._below = [b for b in self.eligible if self._counts[b] < self._low[b]]
        self._roomy = [b for b in self.eligible if self._counts[b] < self._high[b]]

    def _held_by(self, brokers: Iterable[int]) -> dict[int, list[Where]]:
        """The partitions of these brokers; first those of topics that a broker has most of, beyond
        an even share."""
        held: dict[int, list[tuple[float, Where]]] = {broker: [] for broker in brokers}
        rank: Counter[tuple[int, str]] = Counter()
        fair: Counter[str] = Counter()
        for (topic, _), now in self.replicas.items():
            fair[topic] += len(now)
        even = {topic: count / max(1, len(self.eligible)) for topic, count in fair.items()}
        for where, now in self.replicas.items():
            for broker in now:
                if broker in held:
                    rank[broker, where[0]] += 1
                    held[broker].append((even[where[0]] - rank[broker, where[0]], where))
        return {broker: [where for _, where in sorted(found)] for broker, found in held.items()}

    def _shares(self, sources: Collection[int]) -> tuple[dict[int, int], dict[int, int]]:
        """How many replicas each eligible broker should have, at least and at most, if they share
        what the `sources` have."""
        by_rack: dict[object, list[int]] = defaultdict(list)
        for broker in self.eligible:
            by_rack[self._racks[broker]].append(broker)
        factors = Counter(len(held) for held in self._before.values())
        total = float(sum(self._counts[broker] for broker in sources))
        room = {
            rack: sum(n * min(-(-f // self._rack_count), len(own)) for f, n in factors.items())
            for rack, own in by_rack.items()
        }
        low: dict[int, int] = {}
        high: dict[int, int] = {}
        left = len(self.eligible)
        for rack in sorted(by_rack, key=lambda r: (room[r] / len(by_rack[r]), str(r))):
            own = by_rack[rack]
            share = min(total / left, room[rack] / len(own))
            total, left = total - share * len(own), left - len(own)
            for broker in own:
                low[broker] = math.floor(share + _EPSILON)
                high[broker] = math.ceil(share - _EPSILON)
        return low, high


_EPSILON = 1e-6


class _Leaders:
    """Swaps preferred leaders until they are even."""

    def __init__(self, replicas: dict[Where, tuple[int, ...]], eligible: Sequence[int]) -> None:
        self._replicas = replicas
        self._may_lead = set(eligible)
        self._led: dict[int, set[Where]] = {broker: set() for broker in eligible}
        for where, now in replicas.items():
            self._led.setdefault(now[0], set()).add(where)

    def even_out(self) -> None:
        """Each round moves leaderships from the brokers with the most along the shortest path of
        swaps to one with at least two fewer; a path over others leaves those as they are."""
        looks = SEARCH_MAX
        most = [(-len(led), broker) for broker, led in self._led.items()]
        heapq.heapify(most)
        while most and looks > 0:
            count, donor = heapq.heappop(most)
            if -count != len(self._led[donor]):
                continue
            path, looked = self._path_from(donor)
            looks -= looked
            for where, heir in path:
                self._lead(where, heir)
            for changed in {donor, path[0][1]} if path else ():
                heapq.heappush(most, (-len(self._led[changed]), changed))

    def _path_from(self, donor: int) -> tuple[list[tuple[Where, int]], int]:
        """Swaps that bring one leadership from `donor` to a broker with at least two fewer."""
        came: dict[int, tuple[int, Where] | None] = {donor: None}
        border, looked = [donor], 0
        enough = len(self._led[donor]) - 2
        while border:
            following: list[int] = []
            for broker in border:
                for where in self._led[broker]:
                    for heir in self._replicas[where][1:]:
                        looked += 1
                        if heir in came or heir not in self._may_lead:
                            continue
                        came[heir] = (broker, where)
                        if len(self._led[heir]) <= enough:
                            return _walk(came, heir), looked
                        following.append(heir)
            border = following
        return [], looked

    def _lead(self, where: Where, heir: int) -> None:
        now = self._replicas[where]
        self._led[now[0]].discard(where)
        self._led[heir].add(where)
        self._replicas[where] = tuple(
            heir if b == now[0] else now[0] if b == heir else b for b in now
        )


def _walk(came: Mapping[int, tuple[int, Where] | None], last: int) -> list[tuple[Where, int]]:
    """The swaps on the way to `last`."""
    path: list[tuple[Where, int]] = []
    at = came[last]
    while at is not None:
        path.append((at[1], last))
        last = at[0]
        at = came[last]
    return path


def _too_few(replicas: int, brokers: int) -> str:
    return (
        f"{replicas} replica(s) need as many live brokers that aren't cordoned, {brokers} would be"
        " left: start more brokers or lower the topic's replicas"
    )


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))
