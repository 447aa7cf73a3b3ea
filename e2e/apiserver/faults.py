"""What can be made to go wrong, call by call: which request a fault fits and what it does.

A fault is spent after `times` requests. `applied` is the interesting half: the request is carried
out and only its answer is lost or replaced, so that the client can't know (replication.md R7).
Pure; `server` carries faults out.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import Literal

from apiserver.answers import ApiError

Action = Literal["answer", "drop", "hang", "pass"]

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class Fault:
    """One fault.

    It fits requests by `verb` (get, list, watch, create, update, patch, delete, or *), `resource`
    (plural), `name` and `user` (patterns), passes over the first `skip` of them and works on the
    next `times`.

    `action`: `answer` with `code` (and Retry-After); `drop` the connection without an answer;
    `hang` until the client goes away; `pass`: only the delay. `applied`: the request is carried out
    first. `delay_s` passes before anything, `delay_answer_s` between doing and answering.
    """

    verb: str = "*"
    resource: str = "*"
    name: str = "*"
    user: str = "*"
    skip: int = 0
    times: int = 1
    action: Action = "answer"
    code: int = 500
    retry_after_s: float | None = None
    applied: bool = False
    delay_s: float = 0.0
    delay_answer_s: float = 0.0
    met: int = field(default=0, init=False)

    def fits(self, verb: str, resource: str, name: str, user: str) -> bool:
        """Whether it is about this request; counts it."""
        is_meant = all(
            fnmatch.fnmatchcase(got, pattern)
            for got, pattern in (
                (verb, self.verb),
                (resource, self.resource),
                (name, self.name),
                (user, self.user),
            )
        )
        if not is_meant:
            return False
        self.met += 1
        return self.skip < self.met <= self.skip + self.times

    @property
    def error(self) -> ApiError:
        """The answer of action `answer`."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = f"{self.retry_after_s:g}"
        reason = _REASONS.get(self.code, "InternalError")
        return ApiError(self.code, reason, f"injected fault {self.code}", headers=headers)


@dataclass(slots=True)
class Faults:
    """The faults that are on."""

    active: list[Fault] = field(default_factory=list)

    def add(self, fault: Fault) -> Fault:
        """Switches a fault on; its `met` tells how many requests fitted."""
        self.active.append(fault)
        return fault

    def clear(self) -> None:
        """All off."""
        self.active.clear()

    def meet(self, verb: str, resource: str, name: str, user: str) -> Fault | None:
        """The first fault that works on this request."""
        for fault in self.active:
            if fault.fits(verb, resource, name, user):
                return fault
        return None
