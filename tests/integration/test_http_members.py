"""Members over HTTP: join, give up, receive, leave; commits fenced; what a restart keeps."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import aiohttp
import pytest

from headrace.protocol.models import TopicInfo
from testkit.brokers import BrokerProcess
from testkit.http import Http, Reply, eventually


class Member:
    """A member that does what it is told at once."""

    def __init__(self, http: Http, group: str, topic: str, **fields: object) -> None:
        self.http, self.group = http, group
        self.id = secrets.token_hex(8)
        self.epoch = 0
        self.owned: set[int] = set()
        self._fields = {"topics": [topic], "session_timeout_ms": 2_000, **fields}

    async def beat(self, *, wait_ms: int = 0, epoch: int | None = None) -> Reply:
        body: dict[str, object] = {
            "member_id": self.id, "epoch": self.epoch if epoch is None else epoch,
            "wait_ms": wait_ms, **self._fields,
        }  # fmt: skip
        reply = await self.http.call("POST", f"/v1/groups/{self.group}/heartbeat", json=body)
        if reply.status == 200:
            self._hear(reply.json)
        return reply

    def _hear(self, answer: Any) -> None:
        if answer["epoch"] > self.epoch and answer["assignment"] is not None:
            self.epoch = answer["epoch"]
            self.owned = {p for each in answer["assignment"] for p in each["partitions"]}

    async def commit(self, topic: str, offset: int, *partitions: int, **fields: object) -> Reply:
        body = {
            "offsets": [{"topic": topic, "partition": p, "offset": offset} for p in partitions],
            "member_id": self.id, "member_epoch": self.epoch, **fields,
        }  # fmt: skip
        return await self.http.call("POST", f"/v1/groups/{self.group}/offsets", json=body)


async def settle(*members: Member) -> None:
    async def is_stable() -> bool:
        for member in members:
            assert (await member.beat()).status == 200
        group = members[0].group
        described = await members[0].http.good("GET", f"/v1/groups/{group}")
        return bool(described["state"] == "Stable")

    await eventually(is_stable)


@pytest.fixture
def name() -> str:
    return "g-" + secrets.token_hex(4)


async def group_of(
    http: Http, name: str, count: int, partitions: int = 4
) -> tuple[TopicInfo, list[Member]]:
    topic = await http.topic(partitions=partitions)
    members = [Member(http, name, topic.name) for _ in range(count)]
    await settle(*members)
    return topic, members


async def test_partitions_are_given_up_before_another_member_gets_them(
    broker: BrokerProcess, name: str
) -> None:
    async with Http(broker.url) as http:
        topic, [first] = await group_of(http, name, 1)
        assert first.owned == {0, 1, 2, 3}
        second = Member(http, name, topic.name)
        await second.beat()
        assert second.owned == set()
        body = {"member_id": first.id, "epoch": first.epoch, "wait_ms": 5_000}
        told = await http.call("POST", f"/v1/groups/{name}/heartbeat", json=body)
        kept = {p for each in told.json["assignment"] for p in each["partitions"]}
        assert len(kept) == 2
        await second.beat()
        assert second.owned == set(), "the first hasn't confirmed yet"
        described = await http.good("GET", f"/v1/groups/{name}")
        assert described["state"] == "Reconciling"
        first.epoch, first.owned = told.json["epoch"], kept
        await first.beat()
        await second.beat()
        assert second.owned == {0, 1, 2, 3} - kept
        await settle(first, second)
        described = await http.good("GET", f"/v1/groups/{name}")
        assert [len(each["assignment"]) for each in described["members"]] == [1, 1]


async def test_a_heartbeat_that_waits_hears_of_news_at_once(
    broker: BrokerProcess, name: str
) -> None:
    async with Http(broker.url) as http:
        topic, [first] = await group_of(http, name, 1)
        waiting = asyncio.create_task(first.beat(wait_ms=30_000))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        second = Member(http, name, topic.name)
        await second.beat()
        async with asyncio.timeout(1):
            await waiting
        assert len(first.owned) == 2


async def test_a_silent_members_partitions_go_to_the_others(
    broker: BrokerProcess, name: str
) -> None:
    async with Http(broker.url) as http:
        _, [first, second] = await group_of(http, name, 2)

        async def has_all() -> bool:
            await first.beat()
            return first.owned == {0, 1, 2, 3}

        await eventually(has_all)
        gone = await second.beat()
        assert (gone.status, gone.code) == (409, "unknown_member")


async def test_commits_are_taken_from_owners_only(broker: BrokerProcess, name: str) -> None:
    async with Http(broker.url) as http:
        topic, [first, second] = await group_of(http, name, 2)
        [mine, *_], [other, *_] = sorted(first.owned), sorted(second.owned)
        reply = await first.commit(topic.name, 5, mine, other)
        errors = {each["partition"]: each["error"] for each in reply.json["offsets"]}
        assert errors[mine] is None
        assert errors[other]["code"] == "fenced"
        stranger = await first.commit(topic.name, 5, mine, member_id="", member_epoch=-1)
        assert (stranger.status, stranger.code) == (409, "unknown_member")
        ahead = await first.commit(topic.name, 5, mine, member_epoch=first.epoch + 1)
        assert (ahead.status, ahead.code) == (409, "fenced")
        forced = await first.commit(topic.name, 6, mine, member_id="", force=True)
        assert forced.status == 200
        refused = await http.call("DELETE", f"/v1/groups/{name}")
        assert (refused.status, refused.code) == (409, "group_not_empty")
        for member in (first, second):
            assert (await member.beat(epoch=-1)).status == 200
        assert (await http.call("DELETE", f"/v1/groups/{name}")).status == 204
        assert (await http.call("GET", f"/v1/groups/{name}")).code == "group_not_found"


async def test_a_static_member_keeps_what_it_had_over_a_restart(
    broker: BrokerProcess, name: str
) -> None:
    async with Http(broker.url) as http:
        topic = await http.topic(partitions=4)
        first, second = (
            Member(http, name, topic.name, instance_id=each, session_timeout_ms=6_000)
            for each in ("i1", "i2")
        )
        await settle(first, second)
        had, epoch = first.owned, second.epoch
        again = Member(http, name, topic.name, instance_id="i1", session_timeout_ms=6_000)
        refused = await again.beat()
        assert (refused.status, refused.code) == (409, "instance_in_use")
        await first.beat(epoch=-2)
        await again.beat()
        assert again.owned == had
        await second.beat()
        assert second.epoch == epoch, "nobody else was told anything"
        assert (await first.beat()).code == "unknown_member"


async def test_members_and_what_they_own_outlive_the_coordinator(own_broker: BrokerProcess) -> None:
    own_broker.start()
    async with Http(own_broker.url) as http:
        topic, [first, second] = await group_of(http, "g", 2)
        [mine, *_] = first.owned
        assert (await first.commit(topic.name, 5, mine)).status == 200
        epochs = first.epoch, second.epoch
        own_broker.kill()
        own_broker.start()

        async def answers() -> bool:
            try:
                return (await first.beat()).status == 200
            except aiohttp.ClientError:  # a kept connection of before
                return False

        await eventually(answers)
        assert (await second.beat()).status == 200
        assert (first.epoch, second.epoch) == epochs
        assert (await first.commit(topic.name, 6, mine)).status == 200


async def test_a_topic_created_again_is_another_topic_for_its_groups(
    broker: BrokerProcess, name: str
) -> None:
    async with Http(broker.url) as http:
        topic, [first] = await group_of(http, name, 1, partitions=2)
        assert (await first.commit(topic.name, 5, 0)).status == 200
        await http.good("DELETE", f"/v1/topics/{topic.name}")
        body = {"name": topic.name, "partitions": 3}
        again = await http.good("POST", "/v1/topics", body)

        async def has_new_ones() -> bool:
            reply = await first.beat()
            assignment = reply.json["assignment"] or []
            return [each["topic_id"] for each in assignment] == [again["topic_id"]]

        await eventually(has_new_ones)
        assert first.owned == {0, 1, 2}
        offsets = (await http.good("GET", f"/v1/groups/{name}/offsets"))["offsets"]
        assert offsets == []
        old = {"offsets": [{"topic": topic.name, "partition": 0, "offset": 1,
                            "topic_id": topic.topic_id}],
               "member_id": first.id, "member_epoch": first.epoch}  # fmt: skip
        reply = await http.call("POST", f"/v1/groups/{name}/offsets", json=old)
        assert reply.json["offsets"][0]["error"]["code"] == "topic_not_found"


async def test_partitions_added_to_a_topic_are_given_out(broker: BrokerProcess, name: str) -> None:
    async with Http(broker.url) as http:
        topic, [first] = await group_of(http, name, 1, partitions=2)
        await http.good("PATCH", f"/v1/topics/{topic.name}", {"partitions": 5})

        async def has_all() -> bool:
            await first.beat()
            return first.owned == {0, 1, 2, 3, 4}

        await eventually(has_all)
