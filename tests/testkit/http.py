"""A bare client for tests that say exactly what goes over the wire."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from headrace.protocol import batch, framing, requests, routes
from headrace.protocol.models import TopicInfo

produce_decoder = msgspec.msgpack.Decoder(requests.ProduceResponse)
fetch_decoder = msgspec.msgpack.Decoder(requests.FetchResponse)


@dataclass
class Reply:
    """Status, headers and body of one answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The error code."""
        return str(self.json["code"])


class Http:
    """One session against one broker."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = aiohttp.ClientSession()

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        json: object = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 30,
    ) -> Reply:
        """One request; never raises for a status."""
        headers = dict(headers or {})
        if json is not None:
            data = msgspec.json.encode(json)
            headers.setdefault("Content-Type", "application/json")
        async with self._session.request(
            method, self.url + path, data=data, headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:  # fmt: skip
            return Reply(answer.status, dict(answer.headers), await answer.read())

    async def good(self, method: str, path: str, json: object = None) -> Any:
        """The JSON of an answer that must be a 2xx."""
        reply = await self.call(method, path, json=json)
        assert 200 <= reply.status < 300, (reply.status, reply.body)
        return reply.json if reply.body else None

    async def write(self, topic: TopicInfo, *values: bytes, partition: int = 0) -> list[int]:
        """Each value as a batch of its own; the offsets."""
        offsets = []
        for value in values:
            [result] = await self.produce((topic.topic_id, partition, one_batch(value)))
            assert result.error is None, result
            offsets.append(result.base_offset)
        return offsets

    async def offset(self, topic: TopicInfo, **question: object) -> Any:
        """One answer of /v1/offsets, of partition 0 unless the question says otherwise."""
        query = {"topic": topic.name, "partition": 0, **question}
        [answer] = (await self.good("POST", routes.OFFSETS, {"queries": [query]}))["answers"]
        return answer

    async def topic(self, *, partitions: int = 1, **config: object) -> TopicInfo:
        """A new topic with a name of its own; config keys with `_` for `.`."""
        body = {
            "name": "t-" + secrets.token_hex(6),
            "partitions": partitions,
            "config": {key.replace("_", "."): value for key, value in config.items()},
        }
        reply = await self.call("POST", routes.TOPICS, json=body)
        assert reply.status == 201, reply.body
        return msgspec.json.decode(reply.body, type=TopicInfo)

    async def produce(
        self, *parts: tuple[str, int, bytes], acks: int = -1, timeout_ms: int = 10_000
    ) -> list[requests.ProduceResult]:
        """Batches to (topic id, partition)s in one request."""
        request = requests.ProduceRequest(
            acks, timeout_ms,
            [requests.ProducePart(bytes.fromhex(t), p, len(data)) for t, p, data in parts],
        )  # fmt: skip
        reply = await self.produce_raw(
            framing.head(request) + b"".join(bytes(data) for _, _, data in parts)
        )
        assert reply.status == 200, reply.body
        answer, rest = framing.split(reply.body, produce_decoder)
        assert not rest
        return answer.parts

    async def produce_raw(self, body: bytes, **headers: str) -> Reply:
        """A produce request of any bytes."""
        return await self.call(
            "POST", routes.PRODUCE, data=body,
            headers={"Content-Type": requests.BATCH_MEDIA_TYPE, **headers},
        )  # fmt: skip

    async def fetch(
        self,
        topic_id: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        min_bytes: int = 1,
        until: int = -1,
    ) -> tuple[requests.FetchResult, list[tuple[batch.BatchHeader, bytes]]]:
        """One partition from an offset; the result and the batches with their headers."""
        part = requests.FetchPart(
            bytes.fromhex(topic_id), partition, offset, max_bytes, until=until
        )
        request = requests.FetchRequest(wait_ms, min_bytes, 1 << 26, 0, [part])
        reply = await self.call(
            "POST", routes.FETCH, data=framing.head(request),
            headers={"Content-Type": requests.BATCH_MEDIA_TYPE},
        )  # fmt: skip
        assert reply.status == 200, reply.body
        answer, data = framing.split(reply.body, fetch_decoder)
        assert len(data) == answer.parts[0].length
        found = [
            (header, bytes(data[position : position + header.length]))
            for position, header in batch.walk(data)
        ]
        return answer.parts[0], found


async def eventually(holds: Callable[[], Awaitable[bool]], *, timeout_s: float = 8.0) -> None:
    """Waits until what it asks is true."""
    deadline = time.monotonic() + timeout_s
    while not await holds():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.05)


def one_batch(*values: bytes, key: bytes | None = None, **fields: Any) -> bytes:
    """A sealed batch of these values."""
    return bytes(batch.encode_records([(key, value, 1_000, None) for value in values], **fields))
