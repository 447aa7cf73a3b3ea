"""One run of one world, by a seed or by a script: what it did, and what was wrong."""

from __future__ import annotations

import gc
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from zlib import crc32

from headrace.protocol.errors import HeadraceError
from testkit.simulation import faults
from testkit.simulation.groups import READ_TOPIC
from testkit.simulation.stage import Stage
from testkit.simulation.world import World

TRACE_LINES = 200
"""Lines of the trace that a failure shows."""


DISK_ERRORS_MAX = 300
"""Refusals of disks in one run that are taken for somebody who tries again without a pause."""


@dataclass(slots=True)
class Result:
    """What a run did, and what was wrong."""

    kind: str
    seed: int
    replay: str
    """The command that does it again."""
    steps: int = 0
    checks: int = 0
    commits: int = 0
    messages: int = 0
    is_void: bool = False
    failure: str = ""
    lines: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault came."""
    digest: int = 0
    """Of the whole trace: two runs of a seed have the same."""

    def report(self) -> str:
        """For a person."""
        return "\n".join(
            [*self.lines[-TRACE_LINES:], f"{self.kind} {self.seed}: {self.failure}", self.replay]
        )


class _Errors(logging.Handler):
    """What the broker logs as its own fault: an exception that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, (OSError, HeadraceError)):
            self.found.append(f"{record.getMessage()}: {error!r}")


@contextmanager
def _quiet(*, is_verbose: bool) -> Iterator[_Errors]:
    """Logs go nowhere but to what looks for faults; garbage waits."""
    logger, errors = logging.getLogger("headrace"), _Errors()
    before = logger.level, logger.propagate, sys.unraisablehook
    logger.setLevel(logging.INFO if is_verbose else logging.ERROR)
    logger.propagate = is_verbose
    logger.addHandler(errors)
    sys.unraisablehook = lambda unraisable: None
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield errors
    finally:
        logger.removeHandler(errors)
        logger.level, logger.propagate, sys.unraisablehook = before
        if was_enabled:
            gc.enable()


def run_seed(kind: str, seed: int, *, is_verbose: bool = False) -> Result:
    """Runs one seed of one kind of world."""
    fate = faults.make(kind, seed, World, is_verbose=is_verbose)
    replay = f"python -m testkit.simulation --seed {seed} --world {kind} -v"
    result = Result(kind, seed, replay)
    _run(result, fate.world, lambda: faults.live(fate), is_verbose=is_verbose)
    return result


def run_trace(
    trace: Callable[[Stage], None],
    *,
    min_isr: int = 1,
    seed: int = 1,
    topic: str = READ_TOPIC,
    is_verbose: bool = False,
) -> Result:
    """Runs one script."""
    stage = Stage(min_isr=min_isr, seed=seed, topic=topic, is_verbose=is_verbose)
    name = getattr(trace, "__name__", "")
    result = Result(name, seed, f"python -m testkit.simulation --trace {name} --seed {seed} -v")

    def play() -> None:
        stage.begin()
        trace(stage)

    _run(result, stage.world, play, is_verbose=is_verbose)
    return result


@contextmanager
def playing(world: World) -> Iterator[World]:
    """Around a script that looks at the world itself; fails if something went wrong that the
    script doesn't see."""
    with _quiet(is_verbose=world.is_verbose) as errors:
        try:
            yield world
        finally:
            unexpected = [*errors.found, *world.loop.errors]
            logging.disable(logging.CRITICAL)
            world.loop.close()
            logging.disable(logging.NOTSET)
    assert not unexpected, unexpected[0]


def _run(result: Result, world: World, play: Callable[[], None], *, is_verbose: bool) -> None:
    """Plays, and fills in what came of it."""
    with _quiet(is_verbose=is_verbose) as errors:
        try:
            play()
        except AssertionError as error:
            result.failure = f"{type(error).__name__}: {error}"
        finally:
            unexpected = [*errors.found, *world.loop.errors]
            logging.disable(logging.CRITICAL)
            world.loop.close()
            logging.disable(logging.NOTSET)
    if unexpected and not result.failure:
        result.failure = f"unexpected: {unexpected[0]}"
    refused = world.tally["disk error EIO"] + world.tally["disk error ENOSPC"]
    if refused > DISK_ERRORS_MAX and not result.failure:
        result.failure = f"a disk that refuses was tried {refused} times"
    result.steps, result.checks = world.loop.steps, world.checker.checks
    result.commits, result.messages = world.checker.commits, world.wire.sent
    result.is_void = world.is_void
    result.lines, result.tally = world.lines, world.tally
    result.digest = crc32("\n".join(world.lines).encode())
