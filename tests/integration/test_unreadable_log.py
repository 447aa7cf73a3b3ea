"""A partition whose bytes can't be read any more holds up nobody else's, in the same request."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.protocol import framing, requests, routes
from headrace.protocol.models import TopicInfo
from testkit.brokers import BrokerProcess
from testkit.http import Http, fetch_decoder, one_batch


async def fetch_both(http: Http, topic: TopicInfo) -> tuple[list[requests.FetchResult], bytes]:
    parts = [requests.FetchPart(bytes.fromhex(topic.topic_id), p, 0, 1 << 24) for p in (0, 1)]
    reply = await http.call(
        "POST",
        routes.FETCH,
        data=framing.head(requests.FetchRequest(0, 1, 1 << 26, 0, parts)),
        headers={"Content-Type": requests.BATCH_MEDIA_TYPE},
    )
    assert reply.status == 200, reply.body
    answer, data = framing.split(reply.body, fetch_decoder)
    return answer.parts, bytes(data)


@pytest.mark.parametrize("size_bytes", [100, 300_000])
async def test_a_file_that_lost_its_end_costs_its_own_partition_only(
    own_broker: BrokerProcess, size_bytes: int
) -> None:
    own_broker.start()
    async with Http(own_broker.url) as http:
        topic = await http.topic(partitions=2)
        data = one_batch(b"x" * size_bytes)
        await http.produce((topic.topic_id, 0, data), (topic.topic_id, 1, data))
        [path] = Path(own_broker.data_dir, "partitions", topic.topic_id, "0").glob("*.log")
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 10)
        if size_bytes > 1 << 18:  # its answer had begun when this showed
            with pytest.raises(Exception, match="payload"):
                await fetch_both(http, topic)
        results, sent = await fetch_both(http, topic)
        assert [result.error for result in results] == ["partition_offline", None]
        assert [result.length for result in results] == [0, len(data)]
        assert sent[-size_bytes:] == bytes(data)[-size_bytes:]
