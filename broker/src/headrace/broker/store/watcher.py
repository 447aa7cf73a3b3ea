"""What a watcher hasn't taken yet: the newest event of each key, so its size is bounded by the
number of objects however slow the watcher is. Shared by the backends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from headrace.broker.store.base import Gone, Item, Put, Snapshot, WatchEvent
from headrace.broker.store.keys import is_watched


class Mailbox:
    """One watch's events between the backend and its reader. Not thread-safe: loop only."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._snapshot: Snapshot | None = None
        self._changes: dict[str, Put | Gone] = {}
        self._news = asyncio.Event()
        self._begun = False
        self._closed = False

    def close(self) -> None:
        """Ends the watch once what waits is taken."""
        self._closed = True
        self._news.set()

    def put_snapshot(self, items: Iterable[Item]) -> None:
        """Replaces all that waits by a new `Snapshot`."""
        self._snapshot = Snapshot(tuple(i for i in items if is_watched(i.key, self.prefix)))
        self._changes.clear()
        self._begun = True
        self._news.set()

    def put_change(self, event: Put | Gone) -> None:
        """Adds a change; it replaces an earlier one of the same key that still waits. What comes
        before the first snapshot is in it and dropped here."""
        key = event.item.key if isinstance(event, Put) else event.key
        if self._begun and is_watched(key, self.prefix):
            self._changes.pop(key, None)
            self._changes[key] = event
            self._news.set()

    def take(self) -> list[WatchEvent]:
        """All that waits, in order."""
        events: list[WatchEvent] = [self._snapshot] if self._snapshot is not None else []
        events.extend(self._changes.values())
        self._snapshot = None
        self._changes.clear()
        self._news.clear()
        return events

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
        """Events as they come, until `close`."""
        while not self._closed:
            await self._news.wait()
            for event in self.take():
                yield event
