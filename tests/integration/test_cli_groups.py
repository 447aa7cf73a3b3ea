"""`headrace group` against a real broker: members shown, offsets moved, dry unless told."""

from __future__ import annotations

import asyncio
import secrets
import urllib.request

from headrace.sdk import Admin, Consumer, Producer
from testkit.brokers import BrokerProcess
from testkit.command_line import headrace


async def test_a_groups_members_are_shown_and_its_offsets_moved(broker: BrokerProcess) -> None:
    topic, group = "t-" + secrets.token_hex(4), "g-" + secrets.token_hex(4)
    at = ("--bootstrap", broker.url)
    async with Admin(broker.url) as admin, Producer(broker.url) as producer:
        await admin.create_topic(topic, partitions=2)
        await producer.send_many(topic, [b"v"] * 10, partition=0)
    async with Consumer(broker.url, topic, group=group, instance_id="one") as consumer:
        assert len(await consumer.fetch(10)) == 10
        await consumer.commit()
        shown = headrace("group", "describe", group, *at).text
        assert "Stable" in shown
        assert f"{topic} 0-1" in shown
        text = await asyncio.to_thread(metrics_of, broker)
        assert f'headrace_group_lag_records{{group="{group}",topic="{topic}"}} 0.0' in text
        assert f'headrace_group_members{{group="{group}"}} 1.0' in text
        refused = headrace("group", "reset-offsets", group, "--to-earliest", "--execute", *at)
        assert refused.code == 1
        assert "live members" in refused.err
    await leave(broker.url, group)
    dry = headrace("group", "reset-offsets", group, "--shift-by", "-3", "--output", "json", *at)
    assert [each["new"] for each in dry.json] == [7, 0]
    assert "--execute" in dry.err
    assert await committed(broker.url, group) == [10, 0]
    headrace("group", "reset-offsets", group, "--shift-by", "-3", "--execute", *at)
    assert await committed(broker.url, group) == [7, 0]
    assert headrace("group", "reset-offsets", group, *at).code == 2


def metrics_of(broker: BrokerProcess) -> str:
    """What Prometheus would get."""
    with urllib.request.urlopen(broker.health_url + "/metrics") as scraped:
        return str(scraped.read().decode())


async def leave(url: str, group: str) -> None:
    """A static member stays a member for its session; this one doesn't come back."""
    async with Admin(url) as admin:
        offsets = {
            (each.topic, each.partition): each.offset
            for each in (await admin.describe_group(group)).offsets
        }
        await admin.delete_group(group, force=True)
        await admin.alter_group_offsets(group, offsets)


async def committed(url: str, group: str) -> list[int]:
    async with Admin(url) as admin:
        return [each.offset for each in (await admin.describe_group(group)).offsets]
