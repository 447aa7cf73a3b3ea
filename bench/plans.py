"""How long plans of reassignment take, and how many copies they need beyond the lower bound.

    python bench/plans.py [--brokers 1000] [--partitions 100000]

Replicas lie at random on nine tenths of the brokers; the rest are new (scale-out), then a tenth is
drained. Printed as a line of JSON for each plan. The bound knows nothing of racks: where they stand
in the way of evenness, a plan may copy less.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from headrace.broker.core import reassignment
from headrace.broker.core.placement import Racks
from headrace.broker.core.reassignment import Assignment, Plan, Where

REPLICAS = 3
PARTITIONS_PER_TOPIC = 100


def cluster(
    brokers: int, partitions: int, racks: int
) -> tuple[dict[Where, tuple[int, ...]], Racks]:
    """Random replicas over the first nine tenths of the brokers, each in another rack."""
    chance = random.Random(1)
    old = range(brokers * 9 // 10)
    of_rack = [old[at::racks] for at in range(racks)]
    assignment: dict[Where, tuple[int, ...]] = {}
    for number in range(partitions):
        if racks < REPLICAS:
            replicas = tuple(chance.sample(old, REPLICAS))
        else:
            replicas = tuple(chance.choice(of_rack[at]) for at in chance.sample(range(racks), 3))
        topic, partition = divmod(number, PARTITIONS_PER_TOPIC)
        assignment[f"topic-{topic}", partition] = replicas
    return assignment, {broker: f"rack-{broker % racks}" for broker in range(brokers)}


def after(assignment: Assignment, plan: Plan) -> dict[Where, tuple[int, ...]]:
    """The assignment once the plan is carried out."""
    moved = {(move.topic, move.partition): move.target for move in plan.moves}
    return {**assignment, **moved}


def measure(name: str, racks: int, bound: int, make: Callable[[], Plan]) -> Plan:
    """Makes a plan and prints what it took."""
    begun_s = time.perf_counter()
    plan = make()
    seconds = round(time.perf_counter() - begun_s, 2)
    line = {"plan": name, "racks": racks, "seconds": seconds, "copies": plan.copies, "bound": bound}
    print(json.dumps(line), flush=True)
    return plan


def main() -> None:
    """Measures scale-out and drain without racks, with three and with ten."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=100_000)
    given = parser.parse_args()
    for racks in (1, 3, 10):
        _measure_both(given.brokers, given.partitions, racks)


def _measure_both(brokers: int, partitions: int, racks: int) -> None:
    before, of = cluster(brokers, partitions, racks)
    everybody, leaving = list(of), list(of)[: brokers // 10]
    bound = reassignment.copies_needed(before, everybody)
    even_out = partial(reassignment.even_out, before, of, everybody)
    even = after(before, measure("scale-out", racks, bound, even_out))
    held = Counter(broker for replicas in even.values() for broker in replicas)
    drain = partial(reassignment.drain, even, of, everybody, leaving=leaving)
    measure("drain", racks, sum(held[broker] for broker in leaving), drain)


if __name__ == "__main__":
    main()
