"""What the broker is doing: starting → recovering → running → draining → stopped."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.protocol.models import Recovering

STARTING, RECOVERING, RUNNING, DRAINING, STOPPED = (
    "starting", "recovering", "running", "draining", "stopped",
)  # fmt: skip
STATES = (STARTING, RECOVERING, RUNNING, DRAINING, STOPPED)


@dataclass(slots=True)
class Lifecycle:
    """The state, and while recovering how many partitions are left to check, of how many.
    `leaving`: a stop was asked for, and clients are served until others lead."""

    state: str = STARTING
    leaving: bool = False
    recovering_remaining: int = 0
    recovering_total: int = 0

    @property
    def serving(self) -> bool:
        """Whether client requests are taken."""
        return self.state == RUNNING

    @property
    def ready(self) -> bool:
        """Whether clients should be sent here."""
        return self.serving and not self.leaving

    @property
    def recovering(self) -> Recovering | None:
        """What is left of the recovery, for those who ask."""
        if self.state != RECOVERING:
            return None
        return Recovering(self.recovering_remaining, self.recovering_total)
