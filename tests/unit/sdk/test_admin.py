"""The admin client over the in-memory cluster, and how JSON calls are retried."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.protocol.models import OffsetQuery
from headrace.sdk import (
    Admin,
    ConnectionFailed,
    HeadraceError,
    Producer,
    RequestTimedOut,
    Throttled,
    TopicExists,
    TopicNotFound,
)
from headrace.sdk.errors import (
    BrokerNotFound,
    GroupNotFound,
    InternalError,
    InvalidConfig,
    InvalidName,
    StoreUnavailable,
)
from headrace.sdk.testing import InMemoryCluster

FAST: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture
def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    return headrace_cluster


async def test_topics_are_made_changed_listed_and_deleted(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url) as admin:
        made = await admin.create_topic("t", partitions=2, config={"retention.ms": 5})
        assert (made.name, len(made.partitions)) == ("t", 2)
        assert made.config["retention.ms"].value == 5
        altered = await admin.alter_topic("t", partitions=3, config={"retention.ms": None})
        assert (len(altered.partitions), altered.config["retention.ms"].source) == (3, "default")
        assert [topic.name for topic in (await admin.list_topics(internal=True)).topics] == ["t"]
        assert (await admin.describe_topic("t")).topic_id == made.topic_id
        assert (await admin.delete_topic("t")).topic_id == made.topic_id
        with pytest.raises(TopicNotFound):
            await admin.describe_topic("t")


async def test_what_the_cluster_refuses_is_raised_as_what_it_is(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url) as admin:
        await admin.create_topic("t")
        with pytest.raises(TopicExists):
            await admin.create_topic("t")
        for name in ("a/b", "__x", "", "x" * 250):
            with pytest.raises(InvalidName):
                await admin.create_topic(name)
        with pytest.raises(InvalidConfig):
            await admin.create_topic("u", config={"retention.mss": 1})
        with pytest.raises(InvalidName):
            await admin.describe_topic("../x")
        with pytest.raises(GroupNotFound):
            await admin.describe_group("g")
        with pytest.raises(BrokerNotFound):
            await admin.describe_broker(7)


async def test_cluster_offsets_records_and_groups(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url) as admin, Producer(cluster.url) as producer:
        await admin.create_topic("t", partitions=1)
        await producer.send_many("t", [b"v"] * 10)
        assert (await admin.describe_cluster()).topics == 1
        assert [broker.id for broker in await admin.brokers()] == [0]
        assert (await admin.describe_broker(0)).led_partitions == 1
        found = await admin.offsets({("t", 0): "latest", ("t", 9): "earliest"})
        assert found["t", 0].offset == 10  # type: ignore[index]
        assert found["t", 9].error is not None  # type: ignore[index]
        query = OffsetQuery("t", 0, "bytes", offset=0, size_bytes=1)
        assert (await admin.query_offsets([query]))[0].offset == 10
        assert (await admin.delete_records({("t", 0): 4}))[0].log_start_offset == 4
        assert (await admin.delete_records({("t", 0): 40}))[0].error is not None
        assert (await admin.alter_group_offsets("g", {("t", 0): 6}))[0].error is None
        assert (await admin.alter_group_offsets("g", {("u", 0): 6}))[0].error is not None
        described = await admin.describe_group("g")
        assert [(entry.offset, entry.lag) for entry in described.offsets] == [(6, 4)]
        assert [entry.lag for entry in (await admin.group_offsets("g", topic="t")).offsets] == [
            None
        ]
        assert [group.group for group in (await admin.list_groups()).groups] == ["g"]
        await admin.delete_group("g")
        assert (await admin.list_groups()).groups == []


async def test_calls_are_retried_where_that_can_do_no_harm(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url, **FAST) as admin:
        for error in (StoreUnavailable("wait"), Throttled("slow", retry_after_ms=2)):
            cluster.inject(error, path="/v1/topics", times=2)
            await admin.create_topic(f"t-{error.code}")
        lost = ConnectionFailed("lost", details={"sent": True})
        cluster.inject(lost, path="/v1/topics", method="GET", times=2)
        await admin.list_topics()
        for unsure in (lost, RequestTimedOut("no answer")):
            cluster.inject(unsure, path="/v1/topics", applied=True)
            with pytest.raises(type(unsure)):
                await admin.create_topic(f"unsure-{unsure.code}")
            assert await admin.describe_topic(f"unsure-{unsure.code}")
        cluster.inject(ConnectionFailed("refused", details={"sent": False}), path="/v1/topics")
        await admin.create_topic("t")


async def test_retries_end_with_the_request_timeout(cluster: InMemoryCluster) -> None:
    async with Admin(cluster.url, request_timeout=0.05, **FAST) as admin:
        cluster.inject(StoreUnavailable("wait"), path="/v1/topics", method="GET", times=10_000)
        with pytest.raises(StoreUnavailable):
            await admin.list_topics()


async def test_a_code_of_a_newer_broker_keeps_its_code(cluster: InMemoryCluster) -> None:
    newer = HeadraceError("something new")
    newer.code = "brand_new"  # type: ignore[misc]
    cluster.inject(newer, path="/v1/topics", method="GET")
    async with Admin(cluster.url) as admin:
        with pytest.raises(HeadraceError) as caught:
            await admin.list_topics()
    assert caught.value.code == "brand_new"
    assert not isinstance(caught.value, InternalError)
