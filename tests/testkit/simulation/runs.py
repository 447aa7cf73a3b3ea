"""One seed, one run: build the world, let it suffer, heal it, see that it recovers."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.protocol.errors import HeadraceError
from testkit.simulation import faults
from testkit.simulation.loop import Stuck
from testkit.simulation.world import World

TRACE_LINES = 200
"""Lines of the trace that a failure shows."""


@dataclass(slots=True)
class Result:
    """What a run did, and what was wrong."""

    kind: str
    seed: int
    steps: int = 0
    checks: int = 0
    commits: int = 0
    messages: int = 0
    is_void: bool = False
    failure: str = ""
    lines: list[str] = field(default_factory=list)
    digest: int = 0
    """Of the whole trace: two runs of a seed have the same."""

    @property
    def replay(self) -> str:
        """The command that does it again."""
        return f"python -m testkit.simulation --seed {self.seed} --world {self.kind} -v"

    def report(self) -> str:
        """For a person."""
        return "\n".join(
            [*self.lines[-TRACE_LINES:], f"seed {self.seed}: {self.failure}", self.replay]
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
    result = Result(kind, seed)
    with _quiet(is_verbose=is_verbose) as errors:
        fate = faults.make(kind, seed, World, is_verbose=is_verbose)
        world = fate.world
        try:
            faults.live(fate)
        except (AssertionError, Stuck) as error:
            result.failure = f"{type(error).__name__}: {error}"
        finally:
            unexpected = [*errors.found, *world.loop.errors]
            logging.disable(logging.CRITICAL)
            world.loop.close()
            logging.disable(logging.NOTSET)
        if unexpected and not result.failure:
            result.failure = f"unexpected: {unexpected[0]}"
    result.steps, result.checks = world.loop.steps, world.checker.checks
    result.commits, result.messages = world.checker.commits, world.wire.sent
    result.is_void = any(h.is_void for h in world.checker.histories.values())
    result.lines = world.lines
    result.digest = hash("\n".join(world.lines))
    return result
