"""What the driver asks the cluster: topics, the ends of their logs, offsets for times and sizes.

Plain questions and answers; what they mean is decided in `core`. The long poll (`wait_for_news`)
keeps an idle query to a few requests a second without ever answering from an old memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from headrace.protocol import framing, routes
from headrace.protocol.errors import HeadraceError, InternalError, RequestTimedOut, TopicNotFound
from headrace.protocol.ids import parse_topic_id
from headrace.protocol.models import (
    CommitAnswer,
    CommitPart,
    CommitRequest,
    OffsetAnswer,
    OffsetQuery,
    TopicList,
)
from headrace.protocol.names import check_name
from headrace.protocol.requests import (
    BATCH_MEDIA_TYPE,
    READ_COMMITTED,
    FetchPart,
    FetchRequest,
    FetchResponse,
)
from headrace.sdk import sync
from headrace.sdk.connections import Connection, TokenFile, connection
from headrace.sdk.offsets import ask
from headrace.sdk.settings import ConnectionSettings
from headrace.spark.core.offsets import Partition, Position, Positions
from headrace.spark.core.options import ConnectOptions, Subscription

log = logging.getLogger("headrace.spark")
_decoder = msgspec.msgpack.Decoder(FetchResponse)

TOPICS_KNOWN_S = 5.0
"""How long a list of topics is believed: added partitions and topics are found within it."""

IDLE_WAIT_S = 0.25
"""How long one long poll lasts while nothing comes: four requests a second to each broker."""

TROUBLE_WAIT_S = 0.5
"""How long to leave a cluster alone that can't be waited on (a failover, a topic deleted)."""

PUBLISH_S = 2.0
"""How long a query waits for a group's offsets to be published."""

T = TypeVar("T")


def open_connection(options: ConnectOptions) -> Connection:
    """This process's connection to the cluster, on the driver as well as in an executor."""
    settings = ConnectionSettings(
        client_id=options.client_id,
        credentials=None if options.token_path is None else TokenFile(options.token_path),
        route=options.route,
        request_timeout=options.request_timeout_ms / 1000,
        connect_timeout=options.connect_timeout_ms / 1000,
    )
    return connection(options.bootstrap, settings)


class Cluster:
    """A cluster as one query sees it."""

    def __init__(self, options: ConnectOptions, subscription: Subscription) -> None:
        self._link = open_connection(options)
        self._options = options
        self._subscription = subscription
        self._shape: dict[str, tuple[str, list[int]]] = {}
        self._known_until = 0.0

    # --- topics ----------------------------------------------------------------------------------

    def topics(self, *, fresh: bool = False) -> dict[str, tuple[str, list[int]]]:
        """The subscribed topics there are: id and partitions.

        Raises:
            HeadraceError: the cluster can't be asked.
        """
        if fresh or time.monotonic() >= self._known_until:
            listed = sync.run(self._link.client.call("GET", routes.TOPICS, TopicList)).topics
            wanted = self._subscription
            chosen = {
                each.name: (each.topic_id, wanted.partitions_of(each.name, each.partitions))
                for each in listed
            }
            self._shape = {name: found for name, found in chosen.items() if found[1]}
            self._known_until = time.monotonic() + TOPICS_KNOWN_S
        return self._shape

    def require_topics(self) -> None:
        """Refuses to begin with topics that aren't there.

        Raises:
            TopicNotFound: a subscribed topic is missing, or a pattern matches none.
        """
        found = self.topics(fresh=True)
        missing = sorted(set(self._subscription.named_topics) - found.keys())
        if missing:
            raise TopicNotFound(
                f"there is no topic {', '.join(map(repr, missing))} at {self._options.bootstrap};"
                " create it first (headrace topic create)"
            )
        if not found:
            log.warning("no topic matches %r so far", self._subscription.pattern)

    # --- offsets ---------------------------------------------------------------------------------

    def earliest(self, *, fresh: bool = False) -> dict[str, Position]:
        """Where the logs of all subscribed partitions start."""
        return self._ends("earliest", fresh=fresh)

    def latest(self, *, fresh: bool = False) -> dict[str, Position]:
        """Where they end: the high watermark."""
        return self._ends("latest", fresh=fresh)

    def _ends(self, end: Literal["earliest", "latest"], *, fresh: bool) -> dict[str, Position]:
        shape = self.topics(fresh=fresh)
        asked = [(name, number) for name, (_, numbers) in shape.items() for number in numbers]
        answers = self._ask([OffsetQuery(*where, end) for where in asked])
        gone = {answer.topic for answer in answers if _is_gone(answer)}
        if gone and not fresh:  # Deleted since the topics were listed.
            return self._ends(end, fresh=True)
        found: dict[str, dict[int, int]] = {name: {} for name in shape if name not in gone}
        for (name, number), answer in zip(asked, answers, strict=True):
            if name in found:
                found[name][number] = _offset_of(answer)
        return {name: Position(shape[name][0], offsets) for name, offsets in found.items()}

    def at_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The first offset at or after a time (ms) in each partition; None where there is none."""
        queries = [
            OffsetQuery(*where, "timestamp", timestamp_ms=stamp) for where, stamp in times.items()
        ]
        found: dict[Partition, int | None] = {}
        for where, answer in zip(times, self._ask(queries), strict=True):
            if answer.error is not None:
                raise answer.error.to_error()
            found[where] = answer.offset
        return found

    def after_bytes(
        self, begins: Mapping[Partition, int], sizes: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Offsets so many stored bytes after others. A partition that can't tell (its start is no
        longer in the log) is left out."""
        asked = list(sizes)
        queries = [
            OffsetQuery(*where, "bytes", offset=begins[where], size_bytes=sizes[where])
            for where in asked
        ]
        answers = self._ask(queries)
        return {
            where: answer.offset
            for where, answer in zip(asked, answers, strict=True)
            if answer.error is None and answer.offset is not None
        }

    def _ask(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        if not queries:
            return []
        timeout = self._options.request_timeout_ms / 1000
        return sync.run(ask(self._link.client, queries, timeout=timeout))

    # --- waiting, publishing ---------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether the list of topics is old enough to be asked for again."""
        return time.monotonic() >= self._known_until

    def wait_for_news(self, heads: Positions) -> bool:
        """Waits until a partition has more than `heads` says (True, at once) or `IDLE_WAIT_S` is
        over (False). True as well, after a pause, if that can't be told."""
        return sync.run(_wait_for_news(self._link, heads))

    def publish(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commits a group's offsets, for people and dashboards; the query waits for it, so not
        for long.

        Raises:
            HeadraceError: the first partition that could not be committed, or time is over.
        """
        parts = [CommitPart(*where, offset, metadata="spark") for where, offset in offsets.items()]
        path = routes.fill(routes.GROUP_OFFSETS, group=check_name(group, kind="group"))
        call = self._link.client.call("POST", path, CommitAnswer, body=CommitRequest(parts))
        answer = sync.run(_within(PUBLISH_S, call))
        for result in answer.offsets:
            if result.error is not None:
                raise result.error.to_error()


async def _within(limit_s: float, work: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise RequestTimedOut(f"the cluster did not answer within {limit_s:g} s") from None


def _is_gone(answer: OffsetAnswer) -> bool:
    error = answer.error
    return error is not None and error.code in ("topic_not_found", "partition_not_found")


def _offset_of(answer: OffsetAnswer) -> int:
    if answer.error is not None:
        raise answer.error.to_error()
    if answer.offset is None:
        raise InternalError(f"the broker knows no end of {answer.topic}/{answer.partition}")
    return answer.offset


async def _wait_for_news(link: Connection, heads: Positions) -> bool:
    by_url: dict[str, list[FetchPart]] = {}
    try:
        for topic, found in heads.items():
            if link.view.known(topic) is None:
                await link.view.topic(topic)
            topic_id = parse_topic_id(found.topic_id)
            for number, offset in found.offsets.items():
                url = link.view.url_of(topic, number) or link.client.bootstrap_url
                by_url.setdefault(url, []).append(FetchPart(topic_id, number, offset, 1))
        if not by_url:
            await asyncio.sleep(IDLE_WAIT_S)
            return False
        return await _first([asyncio.ensure_future(_poll(link, *each)) for each in by_url.items()])
    except HeadraceError as error:
        log.debug("waiting for news failed: %s", error)
        await asyncio.sleep(TROUBLE_WAIT_S)
        await _refresh(link, heads)
        return True


async def _first(polls: Iterable[asyncio.Task[bool]]) -> bool:
    """Whether one of the polls brought news; the others are given up then."""
    open_ones = set(polls)
    try:
        while open_ones:
            done, open_ones = await asyncio.wait(open_ones, return_when=asyncio.FIRST_COMPLETED)
            if any(each.result() for each in done):
                return True
        return False
    finally:
        for each in open_ones:
            each.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


async def _poll(link: Connection, url: str, parts: list[FetchPart]) -> bool:
    request = FetchRequest(round(IDLE_WAIT_S * 1000), 1, 1, READ_COMMITTED, parts)
    try:
        response = await link.client.send(
            url,
            "POST",
            routes.FETCH,
            body=(framing.head(request),),
            content_type=BATCH_MEDIA_TYPE,
            timeout=link.client.settings.request_timeout,
        )
    except HeadraceError as error:
        link.view.went_wrong(url, error)
        raise
    answer, _ = framing.split(response.body, _decoder)
    for part, result in zip(parts, answer.parts, strict=True):
        if result.error is not None:
            raise HeadraceError(f"a partition can't be waited on: {result.message}")
        if result.high_watermark > part.offset:
            return True
    return False


async def _refresh(link: Connection, heads: Positions) -> None:
    for topic in heads:
        try:
            await link.view.refresh(topic)
        except HeadraceError as error:
            log.debug("the leaders of %s can't be asked: %s", topic, error)
