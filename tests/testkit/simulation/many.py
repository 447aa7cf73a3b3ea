"""Many seeds on all cores, with a bar; what fails is told with how to do it again."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from multiprocessing import get_context

from testkit.simulation.runs import Result, run_seed

CHUNK = 20
"""Seeds given to a process at once."""

SHOWN = 5
"""Failures told in full."""


def _run(job: tuple[str, int]) -> Result:
    result = run_seed(*job)
    if not result.failure:
        result.lines = []
    if job[1] % CHUNK == 0:
        gc.collect()
    return result


def run_many(kinds: list[str], first: int, count: int, *, jobs: int) -> int:
    """Runs `count` seeds, the kinds of worlds in turn; 0 if nothing was found."""
    work = [(kinds[n % len(kinds)], first + n) for n in range(count)]
    began, done, events, voids = time.monotonic(), 0, 0, 0
    failures: list[Result] = []
    by_kind: Counter[str] = Counter()
    tally: Counter[str] = Counter()
    with get_context("fork").Pool(jobs) as pool:
        for result in pool.imap_unordered(_run, work, chunksize=CHUNK):
            done += 1
            events += result.steps
            voids += result.is_void
            tally.update(result.tally)
            if result.failure:
                by_kind[result.kind] += 1
                failures.append(result)
                if len(failures) <= SHOWN:
                    print(f"\n{result.report()}\n", flush=True)
            if done % CHUNK == 0 or done == count:
                _bar(done, count, events, len(failures), time.monotonic() - began)
    print(
        f"\n{done:,} seeds, {events:,} events, {len(failures)} failures {dict(by_kind)},"
        f" {voids} runs in which A1 was broken, {time.monotonic() - began:.0f} s"
    )
    print("; ".join(f"{name} {count:,}" for name, count in sorted(tally.items())))
    for failure in failures[:50]:
        print(f"{failure.replay}  # {failure.failure[:150]}")
    return 1 if failures else 0


def _bar(done: int, count: int, events: int, failures: int, seconds: float) -> None:
    if not sys.stderr.isatty() and done % 1000 and done != count:
        return
    width = 40 * done // count
    rate = events / max(seconds, 0.001)
    left = seconds / done * (count - done)
    print(
        f"\r[{'#' * width}{'.' * (40 - width)}] {done:,}/{count:,} seeds, {events:,} events"
        f" ({rate:,.0f}/s), {failures} failed, {left:.0f} s left ",
        end="", file=sys.stderr, flush=True,
    )  # fmt: skip
