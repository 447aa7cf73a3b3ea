"""What 1,000 idle long polls cost a broker: CPU, and bytes for each.

    python bench/idle_polls.py [--polls 1000] [--seconds 20] [--json]

Each poll is a connection of its own with a binary fetch parked at the end of an empty partition,
written by hand so that the client costs next to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
from urllib.parse import urlsplit

from own_broker import broker_usage, data_folder, own_broker, show

from headrace.protocol import framing, routes
from headrace.protocol.requests import (
    BATCH_MEDIA_TYPE,
    READ_UNCOMMITTED,
    FetchPart,
    FetchRequest,
)
from headrace.sdk import Admin

TOPIC = "quiet"
WAIT_MS = 60_000
"""Longer than the measurement: no poll expires in it."""

SETTLE_S = 2.0
"""Before each measurement, for what creating topics and accepting connections left to do."""


def poll_request(bootstrap: str, topic_id: str) -> bytes:
    """A fetch at offset 0 of an empty partition, as bytes on the wire."""
    part = FetchPart(bytes.fromhex(topic_id), 0, 0, 1 << 20)
    body = framing.head(FetchRequest(WAIT_MS, 1, 1 << 20, READ_UNCOMMITTED, [part]))
    head = (
        f"POST {routes.FETCH} HTTP/1.1\r\nHost: {urlsplit(bootstrap).netloc}\r\n"
        f"Content-Type: {BATCH_MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def measure(polls: int, seconds: float) -> dict[str, float | int]:
    """RSS before and after the polls are parked, CPU while they stay so."""
    with data_folder() as folder:
        async with own_broker(folder) as cluster:
            async with Admin(cluster.bootstrap) as admin:
                topic = await admin.create_topic(TOPIC, partitions=1)
            request = poll_request(cluster.bootstrap, topic.topic_id)
            await asyncio.sleep(SETTLE_S)
            before = broker_usage(cluster)
            await asyncio.sleep(seconds / 4)
            cpu_without = broker_usage(cluster).cpu_s - before.cpu_s
            opened = await open_polls(polls, request, cluster.bootstrap)
            await asyncio.sleep(SETTLE_S)
            parked = broker_usage(cluster)
            await asyncio.sleep(seconds)
            after = broker_usage(cluster)
            answered = sum(not poll.parked for poll in opened)
            for poll in opened:
                if poll.transport is not None:
                    poll.transport.close()
    return {
        "polls": polls,
        "answered or dropped meanwhile (should be 0)": answered,
        "CPU without polls, % of a core": round(cpu_without / (seconds / 4) * 100, 2),
        "CPU with polls, % of a core": round((after.cpu_s - parked.cpu_s) / seconds * 100, 2),
        "RSS before, MB": round(before.rss_bytes / 1e6, 1),
        "RSS with polls, MB": round(after.rss_bytes / 1e6, 1),
        "each, bytes": round((after.rss_bytes - before.rss_bytes) / polls),
    }


class Poll(asyncio.Protocol):
    """One parked request; an answer or a closed connection ends it."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.parked = True
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask at once."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """An answer: the poll was not idle."""
        self.parked = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Dropped by the broker, or closed by us."""
        self.parked = False


async def open_polls(polls: int, request: bytes, bootstrap: str) -> list[Poll]:
    """Connections, each with its request written."""
    address = urlsplit(bootstrap)
    loop = asyncio.get_running_loop()
    opened: list[Poll] = []
    for _ in range(polls):
        _, poll = await loop.create_connection(
            lambda: Poll(request), address.hostname, address.port
        )
        opened.append(poll)
    return opened


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < options.polls + 100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, options.polls + 100), hard))
    figures = asyncio.run(measure(options.polls, options.seconds))
    show("idle long polls", figures, as_json=options.json)


if __name__ == "__main__":
    main()
