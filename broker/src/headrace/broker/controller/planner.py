"""Plans from a snapshot of the cluster: a value, so that a long plan can be made off the loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.broker.core import reassignment
from headrace.broker.core.placement import Racks
from headrace.broker.core.reassignment import Assignment, Plan, Where
from headrace.broker.core.topic_config import REPLICAS_MAX
from headrace.protocol.errors import BrokerNotFound, InvalidRequest, TopicNotFound
from headrace.protocol.names import OFFSETS_TOPIC

Mode = Literal["even", "leaders"]


@dataclass(frozen=True, slots=True)
class Planner:
    """`assignment`: where replicas are, or will be once all moves are done; `racks` of all
    registered brokers; `eligible` may get replicas; `in_sync`: the ISR of each partition."""

    assignment: Assignment
    racks: Racks
    eligible: Sequence[int]
    in_sync: Mapping[Where, Collection[int]]

    def spread(self, mode: Mode = "even", *, brokers: Collection[int] | None = None) -> Plan:
        """Replicas and leaders evenly over all brokers that may get some, or those of `brokers`.

        Raises:
            BrokerNotFound: one of them isn't registered.
        """
        self._check_brokers(brokers or ())
        chosen = [b for b in self.eligible if brokers is None or b in brokers]
        make = reassignment.even_out if mode == "even" else reassignment.even_leaders
        return make(self.assignment, self.racks, chosen)

    def by_hand(self, wanted: Mapping[Where, Sequence[int]]) -> Plan:
        """Exactly these replicas.

        Raises:
            TopicNotFound, PartitionNotFound, BrokerNotFound, InvalidRequest.
        """
        return reassignment.explicit(self.assignment, self.racks, self.eligible, wanted)

    def drain(self, leaving: Collection[int], *, ignore_racks: bool = False) -> Plan:
        """No replica on these brokers. The cluster's own topic may have fewer afterwards.

        Raises:
            BrokerNotFound: one of them isn't registered.
        """
        self._check_brokers(leaving)
        users = {at: now for at, now in self.assignment.items() if at[0] != OFFSETS_TOPIC}
        plan = reassignment.drain(
            users, self.racks, self.eligible, leaving=leaving, ignore_racks=ignore_racks
        )
        own = reassignment.drain_with_fewer(
            self.assignment, self.racks, self.eligible, leaving=leaving, topic=OFFSETS_TOPIC
        )
        return Plan((*own.moves, *plan.moves), {**plan.refusals, **own.refusals}, own.factors)

    def factor(self, topic: str, replicas: int) -> Plan:
        """Another number of replicas for each partition of a topic.

        Raises:
            TopicNotFound; InvalidRequest: no possible number.
        """
        if not any(name == topic for name, _ in self.assignment):
            raise TopicNotFound(f"there is no topic {topic!r}")
        if not 1 <= replicas <= REPLICAS_MAX:
            raise InvalidRequest(f"replicas: {replicas} is not between 1 and {REPLICAS_MAX}")
        return reassignment.change_factor(
            self.assignment, self.racks, self.eligible,
            topic=topic, replicas=replicas, in_sync=self.in_sync,
        )  # fmt: skip

    def _check_brokers(self, brokers: Iterable[int]) -> None:
        unknown = [str(broker) for broker in brokers if broker not in self.racks]
        if unknown:
            raise BrokerNotFound(f"no broker {', '.join(unknown)} is registered")
