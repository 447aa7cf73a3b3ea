"""How late the event loop was: the one number that tells whether something slow runs on it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

PERIOD_S = 0.1
"""Pause between two measurements; shorter stalls than this may be missed, longer ones can't be."""

KEPT = 600
"""Measurements kept: the last minute."""


class StallMeter:
    """Sleeps a known time again and again and notes how much longer it took."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._late_s: deque[float] = deque(maxlen=KEPT)

    @property
    def max_s(self) -> float:
        """The longest delay of the last minute."""
        return max(self._late_s, default=0.0)

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            before = self._monotonic()
            await asyncio.sleep(PERIOD_S)
            self._late_s.append(max(0.0, self._monotonic() - before - PERIOD_S))
