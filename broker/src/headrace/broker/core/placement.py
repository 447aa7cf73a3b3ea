"""Which brokers get the replicas of new partitions; pure and deterministic.

Goals
    Leaders within one of each other over the topic; replicas as even as racks allow; a partition's
    replicas in as many racks as there are, none twice while another rack has none.
Constraints
    Replicas of a partition are distinct brokers. The first of them is the preferred leader. The
    same input gives the same answer; `start` rotates the order, so that topics of one partition
    don't all begin at the same broker. `load` (what brokers carry already) breaks ties.
Algorithm
    Brokers stand in a ring that alternates racks. For each partition: the leader is the broker with
    the fewest leaders of this topic, then the fewest replicas of it, then the least loaded, then
    the next in the ring. Each follower is, among the brokers of the racks least used by this
    partition, the one with the fewest replicas of this topic, and so on.
Example
    Brokers 0 and 1 in rack a, 2 in rack b, factor 2. The ring is 0 2 1. Partition 0: leader 0; rack
    b is unused, so 2 follows. Partition 1: leaders 2 and 1 have none, 1 has fewer replicas: 1, then
    2. Partition 2: leader 2; rack a is unused, 0 and 1 have one replica each, 0 is the earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

from headrace.protocol.errors import InvalidConfig

Racks = Mapping[int, str | None]
"""Broker id -> rack; None is a rack of its own, shared by all without one."""


def place(
    partition_count: int,
    replicas: int,
    racks: Racks,
    *,
    start: int = 0,
    load: Mapping[int, int] | None = None,
) -> list[tuple[int, ...]]:
    """The replicas of each partition, preferred leader first.

    Raises:
        InvalidConfig: more replicas than brokers.
    """
    if not 1 <= replicas <= len(racks):
        raise InvalidConfig(
            f"{replicas} replicas need as many live brokers, there are {len(racks)}: start more"
            " brokers or ask for fewer replicas"
        )
    ring = _ring(racks, start)
    placed: list[tuple[int, ...]] = []
    leaders: Counter[int] = Counter()
    copies: Counter[int] = Counter()
    for _ in range(partition_count):
        chosen = _place_one(replicas, racks, ring, leaders, copies, load or {})
        leaders[chosen[0]] += 1
        copies.update(chosen)
        placed.append(chosen)
    return placed


def _place_one(
    replicas: int,
    racks: Racks,
    ring: Sequence[int],
    leaders: Mapping[int, int],
    copies: Mapping[int, int],
    load: Mapping[int, int],
) -> tuple[int, ...]:
    place = {broker: index for index, broker in enumerate(ring)}

    def burden(broker: int) -> tuple[int, int, int]:
        return copies.get(broker, 0), load.get(broker, 0), place[broker]

    chosen = [min(ring, key=lambda broker: (leaders.get(broker, 0), *burden(broker)))]
    used = Counter([racks[chosen[0]]])
    while len(chosen) < replicas:
        free = [broker for broker in ring if broker not in chosen]
        follower = min(free, key=lambda broker: (used[racks[broker]], *burden(broker)))
        chosen.append(follower)
        used[racks[follower]] += 1
    return tuple(chosen)


def _ring(racks: Racks, start: int) -> list[int]:
    """All brokers, racks taking turns, rotated by `start`."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    turns = chain.from_iterable(zip_longest(*by_rack.values()))
    ring = [broker for broker in turns if broker is not None]
    at = start % len(ring)
    return ring[at:] + ring[:at]
