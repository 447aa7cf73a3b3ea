"""`python -m testkit.simulation`: one seed to look at, or many on all cores."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext

from testkit.simulation.faults import PLANS
from testkit.simulation.many import run_many
from testkit.simulation.mutants import MUTANTS
from testkit.simulation.runs import Result, run_seed, run_trace

_TRACES = {each.trace.__name__: each for each in MUTANTS.values()}


def main() -> int:
    """0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m testkit.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--world", choices=sorted(PLANS), help="kind of world; default: all")
    parser.add_argument("--seeds", type=int, default=20_000, help="how many seeds, without --seed")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every step")
    parser.add_argument("--trace", choices=sorted(_TRACES), help="play this script")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="without this rule")
    options = parser.parse_args()
    with MUTANTS[options.mutant].at_work() if options.mutant else nullcontext():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    if options.trace or (options.mutant and not options.world):
        mutant = _TRACES[options.trace] if options.trace else MUTANTS[options.mutant]
        return _tell(
            run_trace(
                mutant.trace,
                min_isr=mutant.min_isr,
                topic=mutant.topic,
                seed=options.seed or 1,
                is_verbose=options.verbose,
            ),
            options,  # fmt: skip
        )
    if options.seed is None:
        kinds = [options.world] if options.world else list(PLANS)
        return run_many(kinds, options.first, options.seeds, jobs=options.jobs or 1)
    return max(
        _tell(run_seed(kind, options.seed, is_verbose=options.verbose), options)
        for kind in ([options.world] if options.world else list(PLANS))
    )


def _tell(result: Result, options: argparse.Namespace) -> int:
    """Prints what came of a run; 1 if something was wrong."""
    if result.failure and not options.verbose:
        print(result.report())
    end = result.failure or ("ok, but A1 was broken" if result.is_void else "ok")
    print(
        f"{result.kind} {result.seed}: {end}; {result.steps:,} events,"
        f" {result.messages:,} messages, {result.checks:,} checks, {result.commits} committed"
    )
    return int(bool(result.failure))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # order of sets of strings
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "testkit.simulation", *sys.argv[1:]])
    sys.exit(main())
