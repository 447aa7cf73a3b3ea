"""Looking after a cluster through the SDK and the command line, on a real broker."""

from __future__ import annotations

import pytest

from headrace.protocol import cluster_models, models
from headrace.sdk import Admin
from headrace.sdk.errors import BrokerNotFound, Conflict, InvalidConfig, InvalidRequest
from testkit.brokers import BrokerProcess
from testkit.command_line import headrace


async def test_cluster_settings_are_shown_changed_and_reset(broker: BrokerProcess) -> None:
    async with Admin(broker.url) as admin:
        before = await admin.cluster_config()
        assert (before["num.partitions"].value, before["num.partitions"].source) == (6, "default")
        after = await admin.alter_cluster_config({"num.partitions": 2, "retention.ms": 7000})
        assert (after["num.partitions"].value, after["num.partitions"].source) == (2, "cluster")
        made = await admin.create_topic("by-default")
        assert len(made.partitions) == 2
        assert made.config["retention.ms"].value == 7000
        again = await admin.alter_cluster_config({"num.partitions": None, "retention.ms": None})
        assert again == before
        with pytest.raises(InvalidConfig, match="each broker's own setting"):
            await admin.alter_cluster_config({"data.dir": "/elsewhere"})


async def test_many_topics_are_created_and_altered_in_one_call(broker: BrokerProcess) -> None:
    async with Admin(broker.url) as admin:
        wanted = [models.TopicCreate(f"batch-{n}", partitions=2) for n in range(30)]
        made = await admin.create_topics([*wanted, models.TopicCreate("__mine")])
        assert [each.error for each in made[:30]] == [None] * 30
        assert made[30].error is not None
        outcomes = await admin.alter_topics(
            [
                cluster_models.NamedTopicAlter(name="batch-1", config={"flush.ms": 9}),
                cluster_models.NamedTopicAlter(name="batch-2", partitions=1),
                cluster_models.NamedTopicAlter(name="absent", partitions=9),
            ]
        )
        codes = [each.error and each.error.code for each in outcomes]
        assert codes == [None, "invalid_request", "topic_not_found"]
        assert (await admin.describe_topic("batch-1")).config["flush.ms"].value == 9
        states = await admin.describe_topics(["batch-1", "batch-2", "absent"])
        assert list(states) == ["batch-1", "batch-2"]
        assert states["batch-1"].config == {"flush.ms": 9}
        assert (states["batch-2"].config, states["batch-2"].partitions) == ({}, 2)
        assert states["batch-2"].under_replicated == states["batch-2"].moving == 0


async def test_a_sole_broker_may_not_be_stopped_and_the_answer_says_why(
    broker: BrokerProcess,
) -> None:
    async with Admin(broker.url) as admin:
        check = await admin.restart_check(0)
        assert not check.ok
        assert check.blocking == check.unavoidable > 0
        assert "waiting doesn't help" in check.blockers[0].reason
        assert (await admin.restart_check(0, phase="after")).ok
        with pytest.raises(BrokerNotFound):
            await admin.restart_check(7)


async def test_a_leader_is_not_replaced_by_command(broker: BrokerProcess) -> None:
    async with Admin(broker.url) as admin:
        await admin.create_topic("led", partitions=1)
        with pytest.raises(Conflict, match="leads it"):
            await admin.elect_leader("led", 0, 0, unclean=True)
        with pytest.raises(InvalidRequest, match="unclean"):
            await admin.elect_leader("led", 0, 0, unclean=False)


def test_the_commands_say_yes_and_no_by_their_exit_codes(broker: BrokerProcess) -> None:
    no = headrace("cluster", "restart-check", "0", bootstrap=broker.url)
    assert no.code == 1
    assert "may not be stopped" in no.text
    allowed = headrace("cluster", "restart-check", "0", "--allow-unavoidable", bootstrap=broker.url)
    assert allowed.code == 0
    assert headrace("cluster", "restart-check", "0", "--after", bootstrap=broker.url).code == 0
    set_ = headrace(
        "cluster", "config", "--set", "flush.ms=77", "--output", "json", bootstrap=broker.url
    )
    assert set_.json["config"]["flush.ms"] == {"value": 77, "source": "cluster"}
    unset = headrace("cluster", "config", "--unset", "flush.ms", bootstrap=broker.url)
    assert unset.code == 0
    assert "flush.ms" in unset.text
    wrong = headrace("cluster", "config", "--set", "nonsense=1", bootstrap=broker.url)
    assert (wrong.code, "no cluster setting" in wrong.err) == (1, True)
    recovered = headrace("cluster", "recover", "--from-disks", bootstrap=broker.url)
    assert (recovered.code, "nothing to do" in recovered.text) == (0, True)
    unsure = headrace(
        "topic", "elect-leader", "led", "--partition", "0", "--broker", "0", bootstrap=broker.url
    )
    assert unsure.code == 2
    assert "--unclean --yes" in unsure.err


def test_many_topics_alike_are_created_and_altered_by_one_command(broker: BrokerProcess) -> None:
    names = [f"alike-{number}" for number in range(5)]
    made = headrace("topic", "create", *names, "--partitions", "2", bootstrap=broker.url)
    assert (made.code, made.text.strip()) == (0, "5 of 5 topic(s) created")
    again = headrace("topic", "create", *names, "new", bootstrap=broker.url)
    assert again.code == 1
    assert "alike-3: topic 'alike-3' exists already (topic_exists)" in again.err
    fine = headrace("topic", "create", *names, "--if-not-exists", bootstrap=broker.url)
    assert fine.code == 0, fine.err
    altered = headrace(
        "topic", "alter", *names, "--config", "retention.ms=60000", "--partitions", "3",
        "--output", "json", bootstrap=broker.url,
    )  # fmt: skip
    assert altered.code == 0, altered.err
    assert [each["name"] for each in altered.json["topics"]] == names
    shown = headrace("topic", "describe", "alike-4", "--output", "json", bootstrap=broker.url).json
    assert shown["config"]["retention.ms"]["value"] == 60000
    assert len(shown["partitions"]) == 3
    one_wrong = headrace(
        "topic", "alter", "alike-0", "nothing", "--config", "retention.ms=1", bootstrap=broker.url
    )
    assert one_wrong.code == 1
    assert "nothing: there is no topic 'nothing'" in one_wrong.err
