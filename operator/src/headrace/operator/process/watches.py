"""kopf in a thread with a loop of its own. When kopf ends it cancels all tasks of its loop, and an
error that it doesn't know how to live with ends it: here that costs nothing but the watches, which
are begun anew. What it hears is handed to the operator's loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

import kopf

from headrace.operator import handlers
from headrace.operator.spec import JsonObject

log = logging.getLogger("headrace.operator.watches")

BACKOFF_S = (0.5, 30.0)
"""Pause before watches are begun anew, the first and the longest."""

CALM_S = 120.0
"""Watches that lasted so long are begun anew after the first pause again."""


class Watches:
    """The thread. `heard` is called in the loop that calls `start`."""

    def __init__(
        self, namespaces: Sequence[str], heard: handlers.Heard, failed: Callable[[], None]
    ) -> None:
        self._namespaces = tuple(namespaces)
        self._heard = heard
        self._failed = failed
        self._ended = threading.Event()
        self._again = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, in whatever state the watches are."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begins."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Begins anew: what is watched was away meanwhile."""
        self._again.set()

    async def stop(self) -> None:
        """Ends."""
        self._ended.set()
        self._again.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 10.0)

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            self._again.clear()
            if self._ended.is_set():
                return
            began = time.monotonic()
            try:
                asyncio.run(self._watch())
            except Exception as error:
                log.warning("the watches ended and are begun anew: %r", error)
            if self._ended.is_set():
                return
            self._call(self._failed)
            failures = 0 if time.monotonic() - began > CALM_S else failures + 1
            low, high = BACKOFF_S
            pause = random.uniform(0.5, 1.0) * min(high, low * 2.0 ** min(failures, 16))
            self._ended.wait(pause)

    async def _watch(self) -> None:
        await kopf.operator(
            registry=handlers.registry_for(self._pass_on),
            settings=handlers.settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._again,
        )

    def _pass_on(self, kind: str, value: JsonObject) -> None:
        self._call(lambda: self._heard(kind, value))

    def _call(self, what: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            self._ended.set()
