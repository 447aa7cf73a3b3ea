"""Failures that a test asks the in-memory cluster for."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.protocol.errors import HeadraceError


@dataclass(slots=True)
class Fault:
    """One planned failure. With `partition` it is that part's error within an answer, else the
    whole request's. `applied`: the request has its effect first, and only its answer is lost."""

    error: HeadraceError
    method: str
    path: str
    times: int
    applied: bool
    partition: tuple[str, int] | None


class Faults:
    """The failures still to come, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._planned: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Plans a failure."""
        self._planned.append(fault)

    def take(
        self, method: str, path: str, partition: tuple[str, int] | None = None
    ) -> Fault | None:
        """The failure for this request (or for this part of it), counted down."""
        for fault in self._planned:
            if (fault.method, fault.path, fault.partition) == (method, path, partition):
                fault.times -= 1
                if not fault.times:
                    self._planned.remove(fault)
                return fault
        return None

    def clear(self) -> None:
        """Forgets what has not happened yet."""
        self._planned.clear()
