"""`python -m testkit.simulation`: one seed to look at, or many on all cores."""

from __future__ import annotations

import argparse
import os
import sys

from testkit.simulation.faults import PLANS
from testkit.simulation.many import run_many
from testkit.simulation.runs import run_seed


def main() -> int:
    """0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m testkit.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--world", choices=sorted(PLANS), help="kind of world; default: all")
    parser.add_argument("--seeds", type=int, default=20_000, help="how many seeds, without --seed")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every step")
    options = parser.parse_args()
    if options.seed is None:
        kinds = [options.world] if options.world else list(PLANS)
        return run_many(kinds, options.first, options.seeds, jobs=options.jobs or 1)
    failed = 0
    for kind in [options.world] if options.world else list(PLANS):
        result = run_seed(kind, options.seed, is_verbose=options.verbose)
        print(result.report() if result.failure and not options.verbose else summary(result))
        failed += bool(result.failure)
    return min(failed, 1)


def summary(result: object) -> str:
    """A line about a run."""
    from testkit.simulation.runs import Result

    assert isinstance(result, Result)
    end = result.failure or ("ok, but A1 was broken" if result.is_void else "ok")
    return (
        f"{result.kind} seed {result.seed}: {end}; {result.steps:,} events,"
        f" {result.messages:,} messages, {result.checks:,} checks, {result.commits} committed"
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # order of sets of strings
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "testkit.simulation", *sys.argv[1:]])
    sys.exit(main())
