"""Whose is it? From what a request names to the broker that has to serve it.

Looks at the cluster's view only, so the answer may be outdated: the broker asked then refuses with
`not_leader`, and the client tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import PartitionRecord
from headrace.broker.groups.state import partition_for_group
from headrace.protocol.errors import InternalError
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.names import OFFSETS_TOPIC

T = TypeVar("T")


class Owners:
    """Answers None for what is this broker's own, and for what nobody leads or knows: those are
    served here, where the right refusal is found."""

    def __init__(self, view: ClusterView, *, broker_id: int) -> None:
        self._view = view
        self._broker_id = broker_id

    def leader(self, where: TopicIdPartition) -> int | None:
        """The other broker that leads the partition."""
        record = self._view.record(where.topic_id, where.partition)
        if not isinstance(record, PartitionRecord) or record.leader is None:
            return None
        leader = record.leader.broker_id
        return None if leader == self._broker_id else leader

    def leader_by_name(self, topic: str, partition: int) -> int | None:
        """As `leader`, by the topic's name."""
        found = self._view.topic(topic)
        return None if found is None else self.leader(TopicIdPartition(found.topic_id, partition))

    def coordinator(self, group: str) -> int | None:
        """The other broker that coordinates the group."""
        topic = self._view.topic(OFFSETS_TOPIC)
        if topic is None:
            return None
        partition = partition_for_group(group, topic.partition_count)
        return self.leader(TopicIdPartition(topic.topic_id, partition))

    def coordinators(self) -> list[int]:
        """All other brokers that coordinate groups."""
        topic = self._view.topic(OFFSETS_TOPIC)
        return [] if topic is None else self.leaders(topic.topic_id)

    def leaders(self, topic_id: TopicId) -> list[int]:
        """All other brokers that lead partitions of the topic."""
        parts = self._view.records(topic_id)
        found = {self.leader(TopicIdPartition(topic_id, partition)) for partition in parts}
        return sorted(each for each in found if each is not None)

    def broker(self, broker_id: int) -> int | None:
        """Another broker that is registered, by its id."""
        is_other = broker_id != self._broker_id and broker_id in self._view.brokers
        return broker_id if is_other else None


def by_owner(owners: Iterable[int | None]) -> dict[int | None, list[int]]:
    """Owner → the indexes of what is its own; in the order of first appearance."""
    found: dict[int | None, list[int]] = {}
    for index, owner in enumerate(owners):
        found.setdefault(owner, []).append(index)
    return found


def in_order(
    groups: Mapping[int | None, Sequence[int]], answers: Sequence[Sequence[T]], count: int
) -> list[T]:
    """The answers of all owners, put back where `by_owner` took their questions from. `answers` are
    in the order of `groups`.

    Raises:
        InternalError: an owner answered for more or fewer than it was asked.
    """
    found: dict[int, T] = {}
    for (owner, indexes), mine in zip(groups.items(), answers, strict=True):
        if len(mine) != len(indexes):
            raise InternalError(
                f"broker {owner} was asked for {len(indexes)} parts and answered {len(mine)}"
            )
        found.update(zip(indexes, mine, strict=True))
    return [found[index] for index in range(count)]
