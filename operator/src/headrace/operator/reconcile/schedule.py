"""Which resources of a batch are due: those with news, and those that wanted to be looked at again.

Failures come again after a pause that doubles, with jitter.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.operator.process.desk import Name

FAILED_S = (1.0, 15.0)
"""Pause after the first failure, and the longest: brokers that are just starting are soon there."""


@dataclass(slots=True)
class Schedule:
    """One batch's times, on the loop's clock."""

    _at: dict[Name, float] = field(default_factory=dict)
    _failures: dict[Name, int] = field(default_factory=dict)

    def due(self, now_s: float) -> set[Name]:
        """Those whose time has come; they have none afterwards."""
        found = {name for name, at in self._at.items() if at <= now_s}
        for name in found:
            del self._at[name]
        return found

    def settled(self, name: Name) -> None:
        """Nothing is left to do."""
        self._at.pop(name, None)
        self._failures.pop(name, None)

    def again(self, name: Name, at_s: float) -> None:
        """Something is under way."""
        self._failures.pop(name, None)
        self._at[name] = at_s

    def failed(self, name: Name, now_s: float) -> None:
        """It is tried again later."""
        count = self._failures.get(name, 0)
        self._failures[name] = count + 1
        low, high = FAILED_S
        self._at[name] = now_s + random.uniform(0.5, 1.0) * min(high, low * 2.0 ** min(count, 16))

    def keep_only(self, names: Iterable[Name]) -> None:
        """Forgets the others."""
        kept = set(names)
        for found in (self._at, self._failures):
            for name in [name for name in found if name not in kept]:
                del found[name]

    def next_s(self, now_s: float) -> float | None:
        """Seconds until the next is due."""
        return max(0.0, min(self._at.values()) - now_s) if self._at else None
