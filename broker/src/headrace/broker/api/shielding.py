"""Work that must not stop half-way because the client hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_running: set[asyncio.Task[Any]] = set()
"""Keeps the tasks alive whose callers went away; each removes itself at its end."""


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which goes on to its end even when the caller is cancelled."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_ended)
    return await asyncio.shield(task)


async def end_all(timeout_s: float) -> None:
    """At a stop: waits for what still runs, and ends what runs longer. Afterwards nothing touches a
    log any more."""
    if _running:
        await asyncio.wait(_running, timeout=timeout_s)
    for task in (left := list(_running)):
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # looked at: a caller that went away doesn't make it a loop error
