"""The group machine under lost, repeated and reordered heartbeats: one owner at most, always; one
exactly, at rest; and nothing moves that need not."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.core.groups import assignors, machine
from headrace.broker.core.groups.assignors import TopicShape, wanted_partitions
from headrace.broker.core.groups.model import Change, Group, Step, Subscription
from headrace.protocol.errors import Fenced, InstanceInUse, UnknownMember
from headrace.protocol.ids import TopicId, TopicIdPartition

NAMES = ("a", "b", "c")


def shape(number: int, partitions: int, racks: tuple[frozenset[str], ...] = ()) -> TopicShape:
    return TopicShape(TopicId(number.to_bytes(16, "big")), partitions, racks)


def subscription(*topics: str, **fields: Any) -> Subscription:
    return Subscription(
        topics=tuple(sorted(topics)), session_timeout_ms=9, rebalance_timeout_ms=9, **fields
    )


@dataclass
class Client:
    """A member as its own process sees it. `mail`: answers under way to it."""

    member_id: str
    subscription: Subscription
    epoch: int = 0
    owned: frozenset[TopicIdPartition] = frozenset()
    mail: list[tuple[int, frozenset[TopicIdPartition]]] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)

    def receive(self, epoch: int, assignment: frozenset[TopicIdPartition]) -> None:
        if epoch > self.epoch:
            self.epoch, self.owned = epoch, assignment


class GroupMachine(RuleBasedStateMachine):
    """Clients and a coordinator with a network between them that keeps no promise, and a log from
    which the coordinator is loaded again."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group("g")
        self.log: list[Change] = []
        self.clients: dict[str, Client] = {}
        self.topics = {"a": shape(1, 4), "b": shape(2, 3)}
        self.count = 0
        self.now_ms = 0

    def take(self, outcome: machine.Outcome) -> None:
        self.log += outcome.changes
        self.group = outcome.group

    def say(self, client: Client, epoch: int) -> None:
        """One request arrives; its answer is on its way."""
        try:
            if client.member_id not in self.group.members:
                if epoch != 0:
                    return
                self.take(
                    machine.join(
                        self.group, client.member_id, client.subscription, now_ms=self.now_ms
                    )
                )
            else:
                self.take(
                    machine.heartbeat(
                        self.group, client.member_id, epoch,
                        subscription=client.subscription, now_ms=self.now_ms,
                    )
                )  # fmt: skip
        except InstanceInUse:
            return
        except Fenced:
            assert epoch != client.epoch, "a member was fenced for what it was told itself"
            return
        if machine.needs_target(self.group, self.topics):
            self.take(machine.retarget(self.group, self.topics))
            self.take(machine.advance(self.group, client.member_id))
        step = self.group.steps[client.member_id]
        client.mail.append((step.epoch, frozenset(step.assigned)))

    @rule(
        names=st.sets(st.sampled_from(NAMES), min_size=1),
        assignor=st.sampled_from(sorted(assignors.ASSIGNORS)),
        instance=st.sampled_from([None, None, "i", "j"]),
    )
    def start_client(self, names: set[str], assignor: str, instance: str | None) -> None:
        self.count += 1
        wanted = subscription(*names, assignor=assignor, instance_id=instance)
        client = Client(f"m{self.count}", wanted)
        self.say(client, 0)
        if client.member_id in self.group.members:
            self.clients[client.member_id] = client

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), times=st.integers(1, 3), heard=st.sampled_from([True, True, False]))
    def exchange(self, data: st.DataObject, times: int, heard: bool) -> None:
        """Requests and answers as they should be, though older ones may still be under way; or
        answers that aren't heard yet."""
        client = self.any(data)
        for _ in range(times):
            client.requests.append(client.epoch)
            self.say(client, client.epoch)
            if heard:
                client.receive(*client.mail[-1])

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        client = self.any(data)
        client.requests.append(client.epoch)

    @precondition(lambda self: any(each.requests for each in self.clients.values()))
    @rule(data=st.data(), again=st.booleans())
    def arrive(self, data: st.DataObject, again: bool) -> None:
        sent = [each for each in self.clients.values() if each.requests]
        client = data.draw(st.sampled_from(sent))
        index = data.draw(st.integers(0, len(client.requests) - 1))
        epoch = client.requests[index] if again else client.requests.pop(index)
        self.say(client, epoch)

    @precondition(lambda self: any(each.mail for each in self.clients.values()))
    @rule(data=st.data(), fate=st.sampled_from(["once", "again", "lost"]))
    def answer(self, data: st.DataObject, fate: str) -> None:
        addressed = [each for each in self.clients.values() if each.mail]
        client = data.draw(st.sampled_from(addressed))
        index = data.draw(st.integers(0, len(client.mail) - 1))
        mail = client.mail[index] if fate == "again" else client.mail.pop(index)
        if fate != "lost":
            client.receive(*mail)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), keep=st.booleans())
    def close_client(self, data: st.DataObject, keep: bool) -> None:
        client = self.any(data)
        del self.clients[client.member_id]
        self.take(machine.leave(self.group, client.member_id, keep=keep, now_ms=self.now_ms))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), awaited=st.booleans())
    def expire_client(self, data: st.DataObject, awaited: bool) -> None:
        """The member is silent for its session: by its own clock it owns nothing any more."""
        client = self.any(data)
        del self.clients[client.member_id]
        self.take(
            machine.expire(self.group, [client.member_id], awaited=awaited, now_ms=self.now_ms)
        )

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(0, 5))
    def change_topics(self, name: str, partitions: int) -> None:
        """A topic grows, goes, or is made again."""
        self.count += 1
        before = self.topics.pop(name, None)
        if partitions and before is None:
            self.topics[name] = shape(1000 + self.count, partitions)
        elif before is not None and partitions > before.partition_count:
            self.topics[name] = TopicShape(before.topic_id, partitions)

    @rule()
    def fail_over(self) -> None:
        """Another coordinator loads the log, in the order that a compaction left."""
        last = {(type(each), getattr(each, "member_id", "")): each for each in self.log}
        shuffled = list(last.values())
        random.Random(len(shuffled)).shuffle(shuffled)
        loaded = Group("g").with_changes(shuffled)
        assert loaded.members == self.group.members
        assert loaded.targets == self.group.targets
        assert loaded.steps == self.group.steps
        assert loaded.epoch == self.group.epoch
        self.group = loaded

    @rule()
    def come_to_rest(self) -> None:
        """Answers arrive: whatever state this is, it converges, and then nothing moves."""
        self.settle()
        wanted = wanted_partitions(self.group.members, self.topics)
        owned = Counter(where for step in self.group.steps.values() for where in step.assigned)
        assert owned == Counter(wanted)
        before, length = self.group.steps, len(self.log)
        self.round()
        assert (self.group.steps, len(self.log)) == (before, length)
        for client in self.clients.values():
            assert client.owned == self.group.steps[client.member_id].assigned.keys()

    def settle(self) -> None:
        gone = [each for each in self.group.members if each not in self.clients]
        self.take(machine.expire(self.group, gone, awaited=False, now_ms=self.now_ms))
        for _ in range(60):
            self.round()
            if all(map(self.group.is_settled, self.clients)):
                return
        raise AssertionError("it doesn't converge")

    def round(self) -> None:
        for client in self.clients.values():
            client.mail.clear()
            self.say(client, client.epoch)
            client.receive(*client.mail[-1])

    def any(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(list(self.clients.values())))

    @invariant()
    def one_owner_in_the_log(self) -> None:
        owned = Counter(
            where
            for step in self.group.steps.values()
            for where in [*step.assigned, *step.revoking]
        )
        assert not [where for where, count in owned.items() if count > 1]

    @invariant()
    def what_is_kept_of_a_group_is_what_would_be_made_anew(self) -> None:
        anew = replace(self.group)
        assert (self.group.owners, self.group.epoch) == (anew.owners, anew.epoch)

    @invariant()
    def one_owner_in_the_clients(self) -> None:
        owned = Counter(where for each in self.clients.values() for where in each.owned)
        assert not [where for where, count in owned.items() if count > 1]

    @invariant()
    def clients_own_what_the_log_says_they_do(self) -> None:
        for client in self.clients.values():
            step = self.group.steps[client.member_id]
            assert client.owned <= step.assigned.keys() | step.revoking.keys()


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=100, stateful_step_count=40)


# --- assignors -----------------------------------------------------------------------------------

subscriptions = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.sets(st.sampled_from(NAMES), min_size=1).map(lambda names: subscription(*names)),
    min_size=1,
)
sizes = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9))


@given(subscriptions, sizes, st.sampled_from(sorted(assignors.ASSIGNORS)))
def test_each_partition_goes_to_one_member_that_reads_its_topic(
    members: dict[str, Subscription], counts: dict[str, int], name: str
) -> None:
    topics = {each: shape(ord(each), count) for each, count in counts.items()}
    targets = assignors.ASSIGNORS[name](members, topics, {})
    owned = Counter(where for target in targets.values() for where in target)
    assert owned == Counter(wanted_partitions(members, topics))
    names = {found.topic_id: each for each, found in topics.items()}
    for member_id, target in targets.items():
        assert {names[where.topic_id] for where in target} <= set(members[member_id].topics)


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 3), st.integers(0, 3))
def test_uniform_moves_no_more_than_it_must(
    count: int, partitions: int, joined: int, left: int
) -> None:
    topics = {"a": shape(1, partitions)}
    members = {f"m{number:02}": subscription("a") for number in range(count)}
    before = assignors.assign_uniform(members, topics, {})
    stay = dict(list(members.items())[min(left, count - 1) :])
    now = {**stay, **{f"n{number}": subscription("a") for number in range(joined)}}
    after = assignors.assign_uniform(now, topics, before)
    least, odd = divmod(partitions, len(now))
    counted = sorted((len(target) for target in after.values()), reverse=True)
    assert counted == [least + 1] * odd + [least] * (len(now) - odd)
    lost = sum(len(before[each] - after[each]) for each in stay)
    shares = sorted((len(before[each]) for each in stay), reverse=True)
    must = sum(max(0, had - least - (index < odd)) for index, had in enumerate(shares))
    assert lost == must


@given(subscriptions, sizes)
def test_uniform_is_at_rest_with_what_it_made(
    members: dict[str, Subscription], counts: dict[str, int]
) -> None:
    topics = {each: shape(ord(each), count) for each, count in counts.items()}
    once = assignors.assign_uniform(members, topics, {})
    assert assignors.assign_uniform(members, topics, once) == once


def test_uniform_prefers_the_rack_of_a_replica() -> None:
    racks = tuple(frozenset({"east" if index % 2 else "west"}) for index in range(6))
    members = {
        "m1": subscription("a", rack="east"),
        "m2": subscription("a", rack="west"),
    }
    targets = assignors.assign_uniform(members, {"a": shape(1, 6, racks)}, {})
    assert {where.partition for where in targets["m1"]} == {1, 3, 5}
    assert {where.partition for where in targets["m2"]} == {0, 2, 4}


def test_range_gives_partitions_of_one_number_to_one_member() -> None:
    members = {name: subscription("a", "b") for name in ("m1", "m2")}
    targets = assignors.assign_range(members, {"a": shape(1, 4), "b": shape(2, 4)}, {})
    assert [sorted({where.partition for where in targets[each]}) for each in members] == [
        [0, 1],
        [2, 3],
    ]


# --- single steps --------------------------------------------------------------------------------


def settled(*member_ids: str, **fields: object) -> Group:
    group, topics = Group("g"), {"a": shape(1, 4)}
    for member_id in member_ids:
        wanted = subscription("a", instance_id=f"i-{member_id}", **fields)
        group = machine.join(group, member_id, wanted, now_ms=0).group
    group = machine.retarget(group, topics).group
    for _ in range(5):
        for member_id in member_ids:
            epoch = group.steps[member_id].epoch
            group = machine.heartbeat(group, member_id, epoch, subscription=None, now_ms=0).group
    assert all(map(group.is_settled, member_ids))
    return group


def test_a_static_member_that_comes_back_has_what_it_had_and_nobody_else_moves() -> None:
    group = settled("m1", "m2")
    had = group.steps["m1"].assigned.keys()
    wanted = subscription("a", instance_id="i-m1")
    with pytest.raises(InstanceInUse):
        machine.join(group, "m3", wanted, now_ms=0)
    group = machine.leave(group, "m1", keep=True, now_ms=0).group
    group = machine.join(group, "m3", wanted, now_ms=0).group
    assert not machine.needs_target(group, {"a": shape(1, 4)})
    assert group.steps["m3"].assigned.keys() == had
    assert "m1" not in group.members
    with pytest.raises(UnknownMember):
        machine.heartbeat(group, "m1", 1, subscription=None, now_ms=0)


def test_what_is_to_be_given_up_stays_its_owners_until_it_confirms() -> None:
    topics, group = {"a": shape(1, 4)}, settled("m1")
    told = group.steps["m1"].epoch
    group = machine.join(group, "m2", subscription("a"), now_ms=0).group
    group = machine.retarget(group, topics).group
    for _ in range(3):  # The answer is lost again and again.
        group = machine.heartbeat(group, "m1", told, subscription=None, now_ms=0).group
        group = machine.heartbeat(
            group, "m2", group.steps["m2"].epoch, subscription=None, now_ms=0
        ).group
        assert len(group.steps["m1"].revoking) == 2
        assert not group.steps["m2"].assigned
    confirmed = group.steps["m1"].epoch
    group = machine.heartbeat(group, "m1", confirmed, subscription=None, now_ms=0).group
    group = machine.advance(group, "m2").group
    assert len(group.steps["m2"].assigned) == 2


def test_commits_are_fenced_by_the_step_that_gave_the_partition() -> None:
    group = settled("m1", "m2")
    step = group.steps["m1"]
    [where, *_] = step.assigned
    [other, *_] = group.steps["m2"].assigned
    assert machine.check_commit(group, "m1", step.epoch, [where]) == {}
    assert list(machine.check_commit(group, "m1", step.epoch, [other])) == [other]
    before = step.given_at(where)
    assert before is not None
    assert list(machine.check_commit(group, "m1", before - 1, [where])) == [where]
    with pytest.raises(Fenced):
        machine.check_commit(group, "m1", step.epoch + 1, [where])
    with pytest.raises(UnknownMember):
        machine.check_commit(group, "m9", 1, [where])


def test_an_older_subscription_that_arrives_late_changes_nothing() -> None:
    group = settled("m1")
    epoch = group.steps["m1"].epoch
    newer = subscription("a", "b", version=2)
    group = machine.heartbeat(group, "m1", epoch, subscription=newer, now_ms=0).group
    assert group.is_stale
    older = subscription("c", version=1)
    later = machine.heartbeat(group, "m1", epoch, subscription=older, now_ms=0)
    assert later.changes == ()
    assert later.group.members["m1"].topics == ("a", "b")
    assert Step(1, 0, {}, {}).given_at(TopicIdPartition(TopicId(b"x" * 16), 0)) is None
