"""Requests to the cluster: address, headers, timeouts, answers decoded, errors raised, retries.

Knows nothing of topics or partitions; `cluster_view` and the clients are made of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    BrokerUnavailable,
    ConnectionFailed,
    HeadraceError,
    InternalError,
    Throttled,
)
from headrace.protocol.models import ErrorBody
from headrace.sdk.core.retries import Backoff, retry_at, was_surely_not_done
from headrace.sdk.settings import ConnectionSettings, bootstrap_urls
from headrace.sdk.transport import Response, Transport, open_transport

log = logging.getLogger("headrace.sdk.client")
T = TypeVar("T")
_error_decoder = msgspec.json.Decoder(ErrorBody)


class Client:
    """One cluster, reached through its bootstrap addresses."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        settings: ConnectionSettings,
        transport: Transport | None = None,
    ) -> None:
        self.settings = settings
        self.backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._urls = bootstrap_urls(bootstrap)
        self._index = 0
        self._transport = transport or open_transport(self._urls[0], settings)

    @property
    def bootstrap_url(self) -> str:
        """The bootstrap address in use; another one after a failure."""
        return self._urls[self._index]

    async def send(
        self,
        base_url: str,
        method: str,
        path: str,
        *,
        body: Sequence[Buffer] = (),
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> Response:
        """One request, tried once. Only a 2xx answer comes back.

        Raises:
            HeadraceError: what the broker answered, or why there was no answer.
        """
        headers = {"Content-Type": content_type} if body else None
        try:
            response = await self._transport.send(
                method,
                base_url + path,
                body=body,
                headers=headers,
                timeout=timeout or self.settings.request_timeout,
            )
        except ConnectionFailed:
            if base_url == self.bootstrap_url:
                self._index = (self._index + 1) % len(self._urls)
            raise
        if response.status >= 300:
            raise error_of(response, base_url)
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
    ) -> T:
        """A JSON call through the bootstrap address, retried until `timeout` seconds (default: the
        request timeout) are over. Unless it is `repeatable`, only if it can't have been done.

        Raises:
            HeadraceError: what the last try ended with.
        """
        if query:
            path = f"{path}?{urlencode(query)}"
        pieces = () if body is None else (msgspec.json.encode(body),)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or self.settings.request_timeout)
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
                    timeout=min(left, self.settings.request_timeout),
                )
                return _decode(response, answer)
            except HeadraceError as error:
                at = self.next_try(error, attempt=attempt, now=loop.time(), deadline=deadline)
                if at is None or not (repeatable or was_surely_not_done(error)):
                    raise
                log.debug("%s %s failed, trying again: %s", method, path, error)
            await asyncio.sleep(at - loop.time())

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
