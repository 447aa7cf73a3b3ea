"""`until`: batches that begin at or after it aren't sent, the one around it is sent whole."""

from __future__ import annotations

import pytest

from testkit.brokers import BrokerProcess
from testkit.http import Http, one_batch


@pytest.mark.parametrize(
    ("offset", "until", "bases"),
    [
        (0, 1, [0]),
        (0, 3, [0]),
        (0, 4, [0, 3]),
        (0, 5, [0, 3]),
        (0, 6, [0, 3]),
        (0, 7, [0, 3, 6]),
        (4, 6, [3]),
        (0, 100, [0, 3, 6]),
        (4, 4, []),
        (5, 2, []),
    ],
)
async def test_until_ends_the_answer_at_a_batch(
    broker: BrokerProcess, offset: int, until: int, bases: list[int]
) -> None:
    async with Http(broker.url) as http:
        topic = await http.topic()
        for _ in range(3):
            await http.produce((topic.topic_id, 0, one_batch(b"a", b"b", b"c")))
        result, found = await http.fetch(topic.topic_id, 0, offset, until=until, wait_ms=20)
        assert result.error is None
        assert [header.base_offset for header, _ in found] == bases


async def test_a_read_that_has_reached_until_does_not_wait(broker: BrokerProcess) -> None:
    async with Http(broker.url) as http:
        topic = await http.topic()
        await http.produce((topic.topic_id, 0, one_batch(b"a")))
        result, found = await http.fetch(topic.topic_id, 0, 1, until=1, wait_ms=20_000)
        assert (result.error, found) == (None, [])
