"""What replication counts, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicationStats:
    """Since the process started."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    isr_failures: int = 0
    """Changes of an ISR that couldn't be made up, by a fault of this broker."""
    unknown_outcomes: int = 0
    """Changes of the ISR of which the store didn't say whether they were applied (R7)."""
    fetches: int = 0
    """Requests of followers answered here."""
    bytes_out: int = 0
    bytes_in: int = 0
    fetch_failures: int = 0
    """Requests to leaders that failed, and answers that couldn't be taken."""
    serve_failures: int = 0
    """Partitions that followers couldn't be answered for, by a fault of this broker."""
    truncations: int = 0
    truncations_refused: int = 0
    """Leaders that would have had committed records taken away (R15): look at each of them."""
