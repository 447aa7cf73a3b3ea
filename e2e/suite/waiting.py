"""Waiting for something to come about, with words for when it doesn't."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import urllib3

from suite.kube import Refused

T = TypeVar("T")
PAUSE_S = 0.15
TIMEOUT_S = 120.0
"""For what takes seconds on a machine that has nothing else to do."""


def until(what: str, look: Callable[[], T | None], *, timeout_s: float = TIMEOUT_S) -> T:
    """What `look` answers, once it is true; it may be refused or unanswered on the way.

    Raises:
        AssertionError: time is up; with what was seen last.
    """
    deadline = time.monotonic() + timeout_s
    seen: object = None
    while time.monotonic() < deadline:
        try:
            found = look()
        except (Refused, urllib3.exceptions.HTTPError, ValueError, KeyError) as error:
            seen = repr(error)
        else:
            if found:
                return found
            seen = found
        time.sleep(PAUSE_S)
    raise AssertionError(f"not within {timeout_s:g} s: {what} (last seen: {seen!r})")


def stays(what: str, look: Callable[[], object], *, seconds: float) -> None:
    """Fails if `look` ever answers false within the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert look(), f"no longer so: {what}"
        time.sleep(PAUSE_S)
