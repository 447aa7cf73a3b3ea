"""Who may send and read how many bytes a second: by topic, and by client.

Topics' rates are topic settings, clients' are the broker's; both hold on each broker by itself.
A client is who it says it is (`X-Headrace-Client`), until there is authentication.
"""

from __future__ import annotations

from collections import OrderedDict

from headrace.broker.clock import Clock
from headrace.broker.core.quota import PATIENCE_S, ByteRate, Rates
from headrace.protocol.errors import Throttled
from headrace.protocol.ids import TopicId

CLIENTS_MAX = 10_000
"""Clients whose rates are remembered; the longest silent is forgotten first."""

NOBODY = ""
"""The client of a request that names none: they share one allowance."""


class Quotas:
    """The allowances of all topics and clients on this broker."""

    def __init__(self, clock: Clock, *, client_produce: float, client_fetch: float) -> None:
        """`client_produce` and `client_fetch`: bytes a second for each client, -1 unlimited."""
        self._clock = clock
        self._client_produce = client_produce
        self._client_fetch = client_fetch
        self._clients: OrderedDict[str, Rates] = OrderedDict()
        self._topics: dict[TopicId, Rates] = {}
        self.throttled = 0
        """Requests and parts refused, for metrics."""

    def topic(self, topic_id: TopicId) -> Rates:
        """The topic's allowances; shared by all its partitions here."""
        return self._topics.setdefault(topic_id, Rates.unlimited())

    def configure_topic(self, topic_id: TopicId, *, produce: float, fetch: float) -> None:
        """Takes the topic's rates as they are set now."""
        now_s = self._clock.monotonic()
        rates = self.topic(topic_id)
        rates.produce.configure(produce, now_s=now_s)
        rates.fetch.configure(fetch, now_s=now_s)

    def forget_topic(self, topic_id: TopicId) -> None:
        """The topic is gone."""
        self._topics.pop(topic_id, None)

    def client(self, name: str | None) -> Rates:
        """The client's allowances."""
        name = name or NOBODY
        found = self._clients.get(name)
        if found is None:
            found = self._clients[name] = Rates.unlimited()
            now_s = self._clock.monotonic()
            found.produce.configure(self._client_produce, now_s=now_s)
            found.fetch.configure(self._client_fetch, now_s=now_s)
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        self._clients.move_to_end(name)
        return found

    def require(self, rate: ByteRate, *, whose: str) -> None:
        """Refuses while a debt is unpaid.

        Raises:
            Throttled: with how long to wait.
        """
        debt_s = rate.debt_s(self._clock.monotonic())
        if debt_s > PATIENCE_S:
            self.throttled += 1
            raise Throttled(
                f"{whose} is over its rate of {rate.bytes_per_s:,.0f} bytes a second; come back in"
                f" {debt_s * 1000:.0f} ms",
                retry_after_ms=int(debt_s * 1000) + 1,
            )

    def charge(self, rate: ByteRate, size_bytes: int) -> float:
        """Takes the bytes off; seconds to wait before the next request."""
        return rate.charge(size_bytes, self._clock.monotonic())
