"""Watch streams: history from a revision on, then what comes, bookmarks, time-outs, and faults.

A stream is a position in the state's history and a bell; so a slow client costs nothing, and one
that falls behind what is kept gets 410 as from a real server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from apiserver.answers import ApiError, Json
from apiserver.state import Event, State

Matches = Callable[[Json], bool]
Shape = Callable[[list[Json]], Json]


@dataclass(slots=True, kw_only=True)
class Stream:
    """One watch."""

    collection: tuple[str, str]
    namespace: str
    matches: Matches
    shape: Shape
    position: int
    bookmarks: bool
    timeout_s: float
    response: web.StreamResponse
    user: str = ""
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    is_silent: bool = False
    is_dropped: bool = False
    is_expired: bool = False
    skipped: int = 0

    def kind_of(self, event: Event) -> str | None:
        """What the client is told: a selector makes objects come and go; None: nothing."""
        if event.ref.collection != self.collection:
            return None
        if self.namespace not in ("", event.ref.namespace):
            return None
        is_in = event.type != "DELETED" and self.matches(event.object)
        was_in = event.previous is not None and self.matches(event.previous)
        if is_in:
            return "MODIFIED" if was_in else "ADDED"
        return "DELETED" if was_in else None

    async def send(self, kind: str, value: Json) -> None:
        """One line."""
        line = json.dumps({"type": kind, "object": value}, separators=(",", ":"))
        await self.response.write(line.encode() + b"\n")

    def skip(self, events: int = 1) -> None:
        """The next events are never told, as by a watch cache that missed them."""
        self.skipped += events

    def drop(self) -> None:
        """Cuts the connection without a good-bye."""
        self.is_dropped = True
        self.bell.set()


class Watches:
    """All streams of a server, and what can be done to them."""

    def __init__(self, state: State, bookmark_interval_s: float) -> None:
        self._state = state
        self.bookmark_interval_s = bookmark_interval_s
        self._by_id: dict[int, Stream] = {}
        state.listeners.append(lambda _event: self._ring())

    @property
    def open(self) -> list[Stream]:
        """The streams that clients have open."""
        return list(self._by_id.values())

    def drop(self) -> None:
        """Cuts all connections."""
        for stream in self.open:
            stream.drop()

    def silence(self) -> None:
        """All streams that are open now stay open and never say anything again."""
        for stream in self.open:
            stream.is_silent = True

    def expire(self) -> None:
        """Tells all streams that are open now 410, without the events that waited."""
        for stream in self.open:
            stream.is_expired = True
        self._ring()

    async def serve(self, stream: Stream, initial: list[Json], *, mark_end: bool) -> None:
        """Feeds a stream until its time is over or the client leaves."""
        self._by_id[id(stream)] = stream
        try:
            for value in initial:
                await stream.send("ADDED", stream.shape([value]))
            if mark_end:
                await stream.send("BOOKMARK", self._bookmark(stream, is_end=True))
            with suppress(TimeoutError):
                async with asyncio.timeout(stream.timeout_s):
                    await self._feed(stream)
            while stream.is_silent and not stream.is_dropped:
                stream.bell.clear()
                await stream.bell.wait()
            if stream.is_dropped:
                _abort(stream.response)
        except ConnectionError:
            return
        finally:
            self._by_id.pop(id(stream), None)

    async def _feed(self, stream: Stream) -> None:
        while not stream.is_dropped:
            stream.bell.clear()
            if not stream.is_silent and not await self._catch_up(stream):
                return
            try:
                async with asyncio.timeout(self.bookmark_interval_s):
                    await stream.bell.wait()
            except TimeoutError:
                if stream.bookmarks and not stream.is_silent:
                    await stream.send("BOOKMARK", self._bookmark(stream, is_end=False))

    async def _catch_up(self, stream: Stream) -> bool:
        """Sends what is new; False if the stream ends."""
        try:
            if stream.is_expired:
                raise ApiError(410, "Expired", "too old resource version (injected)")
            events = self._state.since(stream.position)
        except ApiError as error:
            await stream.send("ERROR", error.status)
            return False
        for event in events:
            stream.position = event.revision
            kind = stream.kind_of(event)
            if kind and stream.skipped:
                stream.skipped -= 1
            elif kind:
                value: Any = event.object
                if kind == "DELETED" and event.type != "DELETED":
                    revision = event.object["metadata"]["resourceVersion"]
                    old = event.previous or {}
                    value = {**old, "metadata": {**old["metadata"], "resourceVersion": revision}}
                await stream.send(kind, stream.shape([value]))
        return True

    def _bookmark(self, stream: Stream, *, is_end: bool) -> Json:
        resource = next(
            (v for _, v in self._state.listed(stream.collection, "")),
            {"kind": "", "apiVersion": ""},
        )
        meta: Json = {"resourceVersion": str(max(stream.position, 1)), "creationTimestamp": None}
        if is_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": resource["kind"], "apiVersion": resource["apiVersion"], "metadata": meta}

    def _ring(self) -> None:
        for stream in self._by_id.values():
            stream.bell.set()


def _abort(response: web.StreamResponse) -> None:
    """Breaks the connection in the middle of the body."""
    request = response._req
    if request is not None and request.transport is not None:
        request.transport.abort()
