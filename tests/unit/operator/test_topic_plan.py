"""Plans for topics and groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operator import spec
from headrace.operator.core.group_plan import (
    RESET_MARK,
    Committed,
    GroupFact,
    GroupResource,
    SetOffsets,
    group_status,
    plan_group,
)
from headrace.operator.core.observed import Moving
from headrace.operator.core.part import not_ready
from headrace.operator.core.resources import Resource, rulers
from headrace.operator.core.topic_plan import (
    GIVE_UP_S,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    Hold,
    Release,
    SetReplicas,
    TopicFact,
    TopicResource,
    plan_topic,
    plan_without_brokers,
    plan_without_cluster,
    topic_status,
)
from headrace.operator.spec import ConsumerGroupSpec, TopicSpec

NOW = "2026-01-01T00:00:00Z"
FACT = TopicFact(name="orders", topic_id="id-1", partitions=6, replicas=3)


def topic(**wanted: Any) -> TopicResource:
    raw = {"clusterRef": {"name": "main"}, **wanted}
    return Resource(
        namespace="q", name="orders", uid="u-1", subject="orders", created=NOW, generation=1,
        spec=spec.read(TopicSpec, raw), has_finalizer=wanted.get("deletionPolicy") != "Retain",
    )  # fmt: skip


def steps(resource: TopicResource, fact: TopicFact | None) -> tuple[Any, ...]:
    return plan_topic(resource, fact, resource).actions


def test_a_topic_is_held_before_it_is_made() -> None:
    wanted = topic(partitions=6, config={"retention.ms": 1})
    assert steps(replace(wanted, has_finalizer=False), None) == (Hold(),)
    assert steps(wanted, None) == (CreateTopic("orders", 6, None, {"retention.ms": 1}),)


def test_a_topic_that_is_kept_is_not_held() -> None:
    kept = topic(deletionPolicy="Retain")
    assert steps(kept, FACT) == ()
    assert steps(replace(kept, has_finalizer=True), FACT) == (Release(),)


def test_adoption_leaves_settings_that_are_not_named() -> None:
    fact = replace(FACT, config={"retention.ms": 5, "cleanup.policy": "compact"})
    [alter] = steps(topic(config={"retention.ms": 7}), fact)
    assert alter == AlterTopic("orders", {"retention.ms": 7}, None)


def test_a_setting_that_was_ours_goes_back_to_its_default() -> None:
    fact = replace(FACT, config={"retention.ms": 5, "cleanup.policy": "compact"})
    resource = replace(topic(), status={"managedConfig": ["retention.ms"]})
    assert steps(resource, fact) == (AlterTopic("orders", {"retention.ms": None}, None),)


def test_numbers_and_words_that_mean_the_same_are_not_written_again() -> None:
    fact = replace(FACT, config={"unclean.leader.election.enable": True, "retention.ms": 5})
    same = topic(config={"unclean.leader.election.enable": "true", "retention.ms": "5"})
    assert steps(same, fact) == ()


def test_partitions_grow_and_never_shrink() -> None:
    assert steps(topic(partitions=8), FACT) == (AlterTopic("orders", {}, 8),)
    plan = plan_topic(topic(partitions=4), FACT, topic())
    assert plan.actions == ()
    assert plan.conditions[0].reason == "NotSupported"


def test_replicas_change_by_moving_once() -> None:
    assert steps(topic(replicas=2), FACT) == (SetReplicas("orders", 2),)
    under_way = replace(FACT, moving=Moving(total=6, done=2))
    assert steps(topic(replicas=2), under_way) == ()


def deleted(seconds: float = 1.0, **wanted: Any) -> TopicResource:
    return replace(topic(**wanted), deleting_s=seconds, status={"topicId": "id-1"})


def test_a_deleted_resource_takes_its_topic_with_it() -> None:
    assert steps(deleted(), FACT) == (DeleteTopic("orders"),)
    assert steps(deleted(), None) == (Release(),)


def test_a_topic_that_somebody_made_anew_stays() -> None:
    [release] = steps(deleted(), replace(FACT, topic_id="id-2"))
    assert "stays" in release.warning


def test_a_younger_resource_of_the_same_name_does_nothing() -> None:
    older = topic()
    younger = replace(topic(partitions=9), uid="u-2", created="2026-02-01T00:00:00Z", name="b")
    assert rulers([younger, older])["orders"].uid == "u-1"
    plan = plan_topic(younger, FACT, older)
    assert plan.actions == (Release(),)
    assert plan.conditions[0].reason == "ResourceConflict"
    gone = replace(younger, deleting_s=1.0)
    assert plan_topic(gone, FACT, older).actions == (Release(),)


def test_of_two_made_in_one_second_the_one_that_rules_already_goes_on() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "AllIsWell"}]}
    first = replace(topic(), uid="u-2", status=ready)
    second = replace(topic(), uid="u-1", name="b")
    assert rulers([second, first])["orders"].uid == "u-2"


def test_a_resource_is_not_held_by_a_cluster_that_is_gone() -> None:
    why = not_ready("ClusterNotFound", "no BrokerCluster main")
    [release] = plan_without_cluster(deleted(), why).actions
    assert isinstance(release, Release)
    assert "wasn't deleted" in release.warning


def test_a_deletion_waits_for_brokers_and_gives_up_at_last() -> None:
    assert plan_without_brokers(deleted(GIVE_UP_S - 1), "no answer").actions == ()
    [release] = plan_without_brokers(deleted(GIVE_UP_S), "no answer").actions
    assert isinstance(release, Release)


configs = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 3))


@given(
    configs,
    configs,
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(1, 4)),
)
def test_a_topics_plan_reaches_its_target_and_is_empty_there(
    wanted: dict[str, int],
    present: dict[str, int],
    partitions: int | None,
    there: int,
    replicas: int | None,
) -> None:
    raw: dict[str, Any] = {"config": wanted}
    raw |= {"partitions": partitions} if partitions else {}
    raw |= {"replicas": replicas} if replicas else {}
    resource, fact = topic(**raw), replace(FACT, config=dict(present), partitions=there)
    for action in steps(resource, fact):
        match action:
            case AlterTopic(config=config, partitions=more):
                merged = {**fact.config, **config}
                kept = {key: value for key, value in merged.items() if value is not None}
                fact = replace(fact, config=kept, partitions=more or fact.partitions)
            case SetReplicas(replicas=count):
                fact = replace(fact, replicas=count)
    assert steps(resource, fact) == ()
    assert wanted.items() <= fact.config.items()
    assert present.items() - wanted.items() <= fact.config.items() | {
        (key, value) for key, value in present.items() if key in wanted
    }
    assert fact.partitions >= there


def test_status_is_the_same_while_nothing_changes() -> None:
    resource = topic(config={"retention.ms": 5})
    fact = replace(FACT, config={"retention.ms": 5})
    first = topic_status(resource, fact, (), now=NOW)
    assert first["managedConfig"] == ["retention.ms"]
    later = topic_status(replace(resource, status=first), fact, (), now="2027-01-01T00:00:00Z")
    assert later == first


# --- groups --------------------------------------------------------------------------------------


def group(status: dict[str, Any] | None = None, **wanted: Any) -> GroupResource:
    raw = {"clusterRef": {"name": "main"}, "topics": ["orders"], **wanted}
    return Resource(
        namespace="q", name="billing", uid="u-1", subject="billing", created=NOW, generation=1,
        spec=spec.read(ConsumerGroupSpec, raw), status=status or {},
    )  # fmt: skip


THERE = GroupFact(topics=frozenset({"orders"}))


def test_the_start_is_set_before_the_first_member_and_once() -> None:
    wanted = group(startFrom="latest")
    plan = plan_group(wanted, THERE, wanted)
    assert plan.actions == (SetOffsets("billing", ("orders",), "latest"),)
    assert plan.remembered == {"initialised": ["orders"]}
    after = group({"initialised": ["orders"]}, startFrom="latest")
    assert plan_group(after, THERE, after).actions == ()


def test_the_start_of_a_group_that_reads_already_is_left() -> None:
    wanted = group(startFrom="earliest")
    reading = replace(THERE, members=1)
    assert plan_group(wanted, reading, wanted).actions == ()
    committed = replace(THERE, offsets=(Committed(topic="orders", partition=0),))
    assert plan_group(wanted, committed, wanted).actions == ()


def test_a_start_waits_for_its_topic() -> None:
    wanted = group(startFrom="earliest")
    plan = plan_group(wanted, GroupFact(), wanted)
    assert plan.actions == ()
    assert plan.conditions[0].reason == "TopicNotFound"


def test_a_reset_is_done_once_for_each_id_and_only_while_the_group_is_empty() -> None:
    wanted = group(reset={"id": "1", "to": "earliest"})
    busy = plan_group(wanted, replace(THERE, members=2), wanted)
    assert busy.actions == ()
    assert busy.conditions[0].reason == "ResetPending"
    plan = plan_group(wanted, THERE, wanted)
    assert plan.actions == (SetOffsets("billing", ("orders",), "earliest", RESET_MARK + "1"),)
    done = group({"lastResetId": "1"}, reset={"id": "1", "to": "earliest"})
    assert plan_group(done, THERE, done).actions == ()


def test_a_reset_whose_status_was_lost_is_not_done_again() -> None:
    wanted = group(reset={"id": "1", "to": "earliest"})
    mark = Committed(topic="orders", partition=0, metadata=RESET_MARK + "1")
    plan = plan_group(wanted, replace(THERE, offsets=(mark,)), wanted)
    assert plan.actions == ()
    assert plan.remembered == {"lastResetId": "1"}


def test_queues_are_refused_in_words() -> None:
    wanted = group(type="queue")
    assert plan_group(wanted, THERE, wanted).conditions[0].reason == "NotSupported"


@pytest.mark.parametrize(("lag", "state"), [(11, "True"), (10, "False")])
def test_lag_above_the_limit_is_a_condition(lag: int, state: str) -> None:
    fact = replace(THERE, offsets=(Committed(topic="orders", partition=0, lag=lag),))
    status = group_status(group(maxLag=10), fact, (), {}, now=NOW)
    [found] = [each for each in status["conditions"] if each["type"] == "LagHigh"]
    assert found["status"] == state
    assert status["lag"] == lag
