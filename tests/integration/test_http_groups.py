"""Committed offsets over real HTTP, and what a SIGKILL must not undo, theirs and others'."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.protocol import routes
from headrace.protocol.models import TopicInfo
from testkit.brokers import BrokerProcess
from testkit.http import Http, Reply, eventually, one_batch


@pytest.fixture
async def http(broker: BrokerProcess) -> AsyncIterator[Http]:
    async with Http(broker.url) as client:
        yield client


@pytest.fixture
async def topic(http: Http) -> TopicInfo:
    return await http.topic(partitions=2)


def topic_path(topic: TopicInfo) -> str:
    return routes.fill(routes.TOPIC, topic=topic.name)


# --- groups ---------------------------------------------------------------------------------------


async def commit(http: Http, group: str, topic: TopicInfo, **offsets: int) -> Reply:
    """Commits `p0=offset, p1=offset, ...`."""
    parts = [
        {"topic": topic.name, "partition": int(name[1:]), "offset": value, "metadata": "m" + name}
        for name, value in offsets.items()
    ]
    path = routes.fill(routes.GROUP_OFFSETS, group=group)
    return await http.call("POST", path, json={"offsets": parts})


async def committed(http: Http, group: str) -> dict[tuple[str, int], int]:
    """What a group has committed."""
    answer = await http.good("GET", routes.fill(routes.GROUP_OFFSETS, group=group))
    return {(each["topic"], each["partition"]): each["offset"] for each in answer["offsets"]}


async def test_a_group_commits_is_described_with_its_lag_and_forgotten(
    http: Http, topic: TopicInfo
) -> None:
    await http.write(topic, b"0", b"1", b"2", partition=1)
    assert await committed(http, "g1") == {}
    assert (await http.call("GET", "/v1/groups/g1")).code == "group_not_found"
    assert (await commit(http, "g1", topic, p0=0, p1=1)).status == 200
    described = await http.good("GET", "/v1/groups/g1")
    assert [(each["partition"], each["offset"], each["lag"]) for each in described["offsets"]] == [
        (0, 0, 0), (1, 1, 2),
    ]  # fmt: skip
    assert described["offsets"][1]["metadata"] == "mp1"
    listed = (await http.good("GET", routes.GROUPS))["groups"]
    assert {
            "group": "g1", "state": "Empty", "topics": [topic.name], "members": 0,
        } in listed  # fmt: skip
    other = await http.topic()
    await commit(http, "g1", other, p0=0)
    only = await http.good("GET", f"/v1/groups/g1/offsets?topic={other.name}")
    assert [each["topic"] for each in only["offsets"]] == [other.name]
    assert (await http.call("DELETE", "/v1/groups/g1")).status == 204
    assert await committed(http, "g1") == {}
    assert (await http.call("DELETE", "/v1/groups/g1")).code == "group_not_found"


async def test_one_bad_commit_leaves_the_others_committed(http: Http, topic: TopicInfo) -> None:
    reply = await commit(http, "g2", topic, p0=0, p9=1)
    assert [each["error"] and each["error"]["code"] for each in reply.json["offsets"]] == [
        None, "partition_not_found",
    ]  # fmt: skip
    assert await committed(http, "g2") == {(topic.name, 0): 0}


async def test_a_deleted_topics_offsets_are_forgotten(http: Http, topic: TopicInfo) -> None:
    other = await http.topic()
    await commit(http, "g3", topic, p0=5)
    await commit(http, "g3", other, p0=6)
    await http.good("DELETE", topic_path(topic))
    await http.good("POST", routes.TOPICS, {"name": topic.name, "partitions": 2})
    assert await committed(http, "g3") == {(other.name, 0): 6}
    described = await http.good("GET", "/v1/groups/g3")
    assert [each["topic"] for each in described["offsets"]] == [other.name]


# --- what a SIGKILL must not undo -----------------------------------------------------------------


async def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    """One kill for all of them: each is durable when its request is answered."""
    broker = BrokerProcess(tmp_path, HEADRACE_CHECKPOINT_INTERVAL_MS="3600000").start()
    async with Http(broker.url) as http:
        kept, gone = await http.topic(partitions=2), await http.topic()
        await http.write(kept, *[b"%d" % n for n in range(5)])
        await http.write(gone, b"of a topic that goes")
        first = one_batch(b"a", producer_id=9, producer_epoch=0, base_sequence=0)
        await http.produce((kept.topic_id, 1, first))
        part = {"topic": kept.name, "partition": 0, "before_offset": 3}
        await http.good("POST", routes.DELETE_RECORDS, {"partitions": [part]})
        await commit(http, "g", kept, p0=4)
        await commit(http, "g", gone, p0=1)
        await commit(http, "forgotten", kept, p0=4)
        await http.call("DELETE", "/v1/groups/forgotten")
        await http.good("PATCH", topic_path(kept), {"config": {"retention.ms": 12_345}})
        await http.good("PATCH", topic_path(kept), {"partitions": 3})
        await http.good("DELETE", topic_path(gone))
    broker.kill()
    broker.start()
    async with Http(broker.url) as http:
        described = await http.good("GET", topic_path(kept))
        assert described["topic_id"] == kept.topic_id
        assert described["config"]["retention.ms"] == {"value": 12_345, "source": "topic"}
        assert [each["high_watermark"] for each in described["partitions"]] == [5, 1, 0]
        assert (await http.offset(kept, at="earliest"))["offset"] == 3
        [retry] = await http.produce((kept.topic_id, 1, first))
        assert (retry.error, retry.base_offset) == (None, 0)
        assert await committed(http, "g") == {(kept.name, 0): 4}
        assert await committed(http, "forgotten") == {}
        assert (await http.call("GET", topic_path(gone))).code == "topic_not_found"
        await eventually(lambda: _is_gone(broker.data_dir / "partitions" / gone.topic_id))
    assert broker.stop() == 0


async def _is_gone(path: Path) -> bool:
    return not path.exists()
