"""The part of `Admin` that looks after the cluster as a whole: settings, restarts, last resorts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from headrace.protocol import cluster_models, models, routes
from headrace.protocol.cluster_models import TOPICS_PER_CALL_MAX
from headrace.protocol.names import check_name
from headrace.sdk.client import Client

T = TypeVar("T")


class ClusterAdmin:
    """Mixed into `Admin`, which has the client."""

    _client: Client

    async def cluster_config(self) -> dict[str, models.ConfigEntry]:
        """The cluster-wide settings in force, with where each comes from."""
        answer = await self._client.call(
            "GET", routes.CLUSTER_CONFIG, cluster_models.ClusterSettings
        )
        return answer.config

    async def alter_cluster_config(
        self, config: Mapping[str, models.ConfigValue | None]
    ) -> dict[str, models.ConfigEntry]:
        """Changes cluster-wide settings while everything runs; None goes back to the default. The
        answer has all that are in force.

        Raises:
            InvalidConfig: an unknown key, a wrong value, or a setting of single brokers.
        """
        answer = await self._client.call(
            "PATCH",
            routes.CLUSTER_CONFIG,
            cluster_models.ClusterSettings,
            body=cluster_models.ClusterSettingsAlter(dict(config)),
        )
        return answer.config

    async def cluster_health(
        self, *, problem: str | None = None, topic: str | None = None, limit: int = 1_000
    ) -> cluster_models.ClusterHealth:
        """What each broker carries, and partitions with problems: all, or those of one topic or
        with one problem (`offline`, `under_min_isr`, `under_replicated`, `unreadable`)."""
        asked = {"problem": problem, "topic": topic, "limit": str(limit)}
        query = {key: value for key, value in asked.items() if value is not None}
        return await self._client.call(
            "GET", routes.CLUSTER_HEALTH, cluster_models.ClusterHealth, query=query
        )

    async def restart_check(
        self, broker_id: int, *, phase: cluster_models.RestartPhase = "before"
    ) -> cluster_models.RestartCheck:
        """Whether a broker may be stopped now without any partition going offline or under its
        minimum (`before`), or is whole again after its start (`after`). Any doubt is a no.

        Raises:
            BrokerNotFound: no such broker is registered.
        """
        path = routes.fill(routes.RESTART_CHECK, broker_id=broker_id)
        return await self._client.call(
            "GET", path, cluster_models.RestartCheck, query={"phase": phase}
        )

    async def recover(
        self, *, execute: bool = False, accept_missing: bool = False
    ) -> cluster_models.RecoverAnswer:
        """What there is to put right in a store that went back in time or was lost, from the copies
        on the brokers' disks; `execute` does it.

        Raises:
            Conflict: brokers that may know something newer didn't answer, or the store changed.
        """
        return await self._client.call(
            "POST",
            routes.CLUSTER_RECOVER,
            cluster_models.RecoverAnswer,
            body=cluster_models.Recover(execute, accept_missing),
        )

    async def elect_leader(
        self, topic: str, partition: int, broker_id: int, *, unclean: bool
    ) -> cluster_models.ElectedLeader:
        """Makes a replica lead with what it has, because those with all records are gone for good.
        `unclean=True` says that losing the rest is accepted.

        Raises:
            Conflict: somebody leads, or can with all records; the broker can't.
            TopicNotFound, PartitionNotFound, InvalidRequest (not `unclean`).
        """
        path = routes.fill(
            routes.ELECT_LEADER, topic=check_name(topic, kind="topic"), partition=partition
        )
        body = cluster_models.ElectLeader(broker_id, unclean)
        return await self._client.call(
            "POST", path, cluster_models.ElectedLeader, body=body, repeatable=False
        )

    async def create_topics(
        self, topics: Iterable[models.TopicCreate]
    ) -> list[cluster_models.TopicOutcome]:
        """Makes many topics; each outcome has the topic's id, or an error (also where a try whose
        answer was lost has made it: topic_exists)."""
        outcomes: list[cluster_models.TopicOutcome] = []
        for part in _parts(list(topics)):
            answer = await self._client.call(
                "POST", routes.CREATE_TOPICS, cluster_models.TopicOutcomes,
                body=cluster_models.TopicCreates(part), repeatable=False,
            )  # fmt: skip
            outcomes.extend(answer.topics)
        return outcomes

    async def alter_topics(
        self, topics: Iterable[cluster_models.NamedTopicAlter]
    ) -> list[cluster_models.TopicOutcome]:
        """Changes many topics; each outcome has the topic's id, or an error."""
        outcomes: list[cluster_models.TopicOutcome] = []
        for part in _parts(list(topics)):
            answer = await self._client.call(
                "POST", routes.ALTER_TOPICS, cluster_models.TopicOutcomes,
                body=cluster_models.TopicAlters(part),
            )  # fmt: skip
            outcomes.extend(answer.topics)
        return outcomes

    async def describe_topics(self, names: Iterable[str]) -> dict[str, cluster_models.TopicState]:
        """Those of these topics that there are: size, own settings, health; without partitions."""
        found: dict[str, cluster_models.TopicState] = {}
        for part in _parts(sorted(set(names))):
            answer = await self._client.call(
                "POST", routes.DESCRIBE_TOPICS, cluster_models.TopicStates,
                body=cluster_models.TopicNames(part),
            )  # fmt: skip
            found |= {each.name: each for each in answer.topics}
        return found


def _parts(topics: Sequence[T]) -> Iterator[list[T]]:
    for first in range(0, len(topics), TOPICS_PER_CALL_MAX):
        yield list(topics[first : first + TOPICS_PER_CALL_MAX])
