"""Requests to the cluster: address, headers, timeouts, answers decoded, errors raised, retries.

Knows nothing of topics or partitions; `cluster_view` and the clients are made of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    BrokerUnavailable,
    ConnectionFailed,
    HeadraceError,
    InternalError,
    RequestTimedOut,
    Throttled,
)
from headrace.protocol.models import ErrorBody
from headrace.protocol.requests import ROUTE_DIRECT, ROUTE_HEADER
from headrace.sdk.core.retries import Backoff, retry_at, was_surely_not_done
from headrace.sdk.settings import ConnectionSettings, bootstrap_urls
from headrace.sdk.transport import Response, Transport, open_transport

log = logging.getLogger("headrace.sdk.client")
T = TypeVar("T")
_ELSEWHERE_CODES = frozenset({"broker_unavailable", "internal"})
"""Errors after which another broker may know better: this one starts, stops, or is broken."""

_error_decoder = msgspec.json.Decoder(ErrorBody)


METADATA_TIMEOUT_S = 2.0
"""How long one address is waited for when leaders are looked up; then the next one is asked. A
broker that is frozen doesn't answer at all."""

SILENT_S = 30.0
"""For so long an address that was learned from the cluster and failed isn't asked again."""


@dataclass(slots=True)
class ConnectionStats:
    """What a client's requests came to, counted since it was made."""

    requests: int = 0
    """Requests sent, retries among them."""

    failures: int = 0
    """Requests without an answer, or answered with an error."""

    detours: int = 0
    """Requests that went through the bootstrap address because the leader can't be reached."""

    leader_changes: int = 0
    """Partitions found to be led by another broker than before."""


class Client:
    """One cluster, reached through its bootstrap addresses. Should all of them fail, the brokers'
    own addresses stand in, as far as they were heard of: a cluster stays reachable although the
    one broker that was named has died."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        settings: ConnectionSettings,
        transport: Transport | None = None,
    ) -> None:
        self.settings = settings
        self.backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self.stats = ConnectionStats()
        self._given = bootstrap_urls(bootstrap)
        self._urls = self._given
        self._index = 0
        self._silent_until: dict[str, float] = {}
        self._transport = transport or open_transport(self._urls[0], settings)

    @property
    def bootstrap_url(self) -> str:
        """The bootstrap address in use; another one after a failure."""
        return self._urls[self._index]

    def learn(self, urls: Sequence[str]) -> None:
        """The brokers' own addresses: asked when those that were given fail."""
        current = self.bootstrap_url
        learned = () if self.settings.route == "bootstrap" else urls
        self._urls = (*self._given, *(url for url in learned if url not in self._given))
        self._index = self._urls.index(current) if current in self._urls else 0

    def _try_next(self, failed_url: str) -> None:
        """Another address from now on, if the one that failed is the one in use."""
        if failed_url != self.bootstrap_url:
            return
        now = asyncio.get_running_loop().time()
        if failed_url not in self._given:
            self._silent_until[failed_url] = now + SILENT_S
        for step in range(1, len(self._urls) + 1):
            index = (self._index + step) % len(self._urls)
            if self._silent_until.get(self._urls[index], now) <= now:
                self._index = index
                return

    async def send(
        self,
        base_url: str,
        method: str,
        path: str,
        *,
        body: Sequence[Buffer] = (),
        content_type: str = "application/json",
        timeout: float | None = None,
        is_direct: bool = False,
    ) -> Response:
        """One request, tried once. Only a 2xx answer comes back. `is_direct`: the broker was chosen
        for what it leads and shall say `not_leader` instead of passing the request on.

        Raises:
            HeadraceError: what the broker answered, or why there was no answer.
        """
        headers = {"Content-Type": content_type} if body else {}
        if is_direct:
            headers[ROUTE_HEADER] = ROUTE_DIRECT
        self.stats.requests += 1
        try:
            response = await self._transport.send(
                method,
                base_url + path,
                body=body,
                headers=headers,
                timeout=timeout or self.settings.request_timeout,
            )
        except (ConnectionFailed, RequestTimedOut):
            self.stats.failures += 1
            self._try_next(base_url)
            raise
        if response.status >= 300:
            self.stats.failures += 1
            error = error_of(response, base_url)
            if error.code in _ELSEWHERE_CODES:
                self._try_next(base_url)
            raise error
        return response

    async def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: msgspec.Struct | None = None,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool = True,
        patience: float | None = None,
    ) -> T:
        """A JSON call through the bootstrap address, retried until `timeout` seconds (default: the
        request timeout) are over. Unless it is `repeatable`, only if it can't have been done.
        `patience`: seconds for one try where there is another address to ask.

        Raises:
            HeadraceError: what the last try ended with.
        """
        if query:
            path = f"{path}?{urlencode(query)}"
        pieces = () if body is None else (msgspec.json.encode(body),)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or self.settings.request_timeout)
        longest = self.settings.request_timeout
        attempt = 0
        while True:
            attempt += 1
            left = max(deadline - loop.time(), 0.001)
            try:
                response = await self.send(
                    self.bootstrap_url,
                    method,
                    path,
                    body=pieces,
                    timeout=min(left, patience if patience and self.has_choice else longest),
                )
                return _decode(response, answer)
            except HeadraceError as error:
                at = self.next_try(error, attempt=attempt, now=loop.time(), deadline=deadline)
                if at is None or not (repeatable or was_surely_not_done(error)):
                    raise
                log.debug("%s %s failed, trying again: %s", method, path, error)
            await asyncio.sleep(at - loop.time())

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one address to ask."""
        return len(self._urls) > 1

    def next_try(
        self, error: HeadraceError, *, attempt: int, now: float, deadline: float = math.inf
    ) -> float | None:
        """`retries.retry_at` with this client's backoff and a drawn chance."""
        return retry_at(
            error,
            attempt=attempt,
            now=now,
            deadline=deadline,
            chance=random.random(),
            backoff=self.backoff,
        )

    async def close(self) -> None:
        """Gives up all connections."""
        await self._transport.close()


def _decode(response: Response, answer: type[T]) -> T:
    if answer is type(None):
        return None
    try:
        return msgspec.json.decode(response.body, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InternalError(
            f"the answer is not of the documented form ({error}); is this a Headrace broker?"
        ) from error


def error_of(response: Response, url: str) -> HeadraceError:
    """The error that an answer stands for. One that isn't ours (a proxy's page) is told apart by
    its status."""
    retry_after_ms = _retry_after_ms(response.headers)
    try:
        body = _error_decoder.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = f"{url} answered HTTP {response.status} in a form that is not Headrace's"
        if response.status == 429:
            return Throttled(message, retry_after_ms=retry_after_ms)
        if response.status in (408, 502, 503, 504):
            return BrokerUnavailable(message, retry_after_ms=retry_after_ms)
        return InternalError(f"{message}; is this a Headrace broker?")
    if body.retry_after_ms is None:
        body.retry_after_ms = retry_after_ms
    return body.to_error()


def _retry_after_ms(headers: Mapping[str, str]) -> int | None:
    text = headers.get("Retry-After", "")
    return int(text) * 1000 if text.isdecimal() else None
