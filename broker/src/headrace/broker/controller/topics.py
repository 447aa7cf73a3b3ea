"""Create, alter and delete topics, on whichever broker was asked.

The topic's object decides races: it is created if absent, and every change of it is a
compare-and-swap. The partition records follow from it (`steps`); if this broker dies in between,
the controller makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.steps import TopicSteps
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.updates import StoreWriter, Write
from headrace.broker.controller.view import ClusterView
from headrace.broker.core import cluster_config, encoding
from headrace.broker.core.cluster_config import ClusterConfig
from headrace.broker.core.model import ConfigValue, TopicObject, Unreadable
from headrace.broker.core.topic_config import REPLICAS_MAX, check_key, validate
from headrace.broker.store import keys
from headrace.broker.store.base import Item
from headrace.protocol.errors import (
    Conflict,
    HeadraceError,
    InvalidConfig,
    InvalidRequest,
    StoreUnavailable,
    TopicExists,
    TopicNotFound,
)
from headrace.protocol.ids import TopicId
from headrace.protocol.limits import PARTITIONS_PER_TOPIC_MAX
from headrace.protocol.names import check_name

REPLICAS_DEFAULT = 3
COMPLETE_ATTEMPTS_MAX = 10
COMPLETE_PAUSE_S = 0.05


class _BeingDeletedError(Exception):
    """The name is still taken by a topic on its way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic that somebody wants; what is None takes the cluster's default."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    config: Mapping[str, ConfigValue] | None = None


class Topics:
    """What a user may do to topics."""

    def __init__(
        self,
        writer: StoreWriter,
        view: ClusterView,
        steps: TopicSteps,
        statuses: BrokerStatuses,
        *,
        clock: TimeSource,
        new_id: Callable[[], TopicId],
    ) -> None:
        self._writer = writer
        self._view = view
        self._steps = steps
        self._statuses = statuses
        self._clock = clock
        self._new_id = new_id

    async def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        config: Mapping[str, ConfigValue] | None = None,
    ) -> TopicObject:
        """See `Coordination.create_topic`."""
        topic = self._new(name, partitions=partitions, replicas=replicas, config=config)
        return await self._create_or_fail(topic)

    async def create_many(self, wanted: Sequence[NewTopic]) -> list[TopicObject | HeadraceError]:
        """See `Coordination.create_topics`: few calls of the store for all, instead of a few for
        each."""
        outcomes: list[TopicObject | HeadraceError] = [self._try_new(each) for each in wanted]
        names = Counter(each.name for each in wanted)
        made: list[TopicObject] = []
        for at, each in enumerate(outcomes):
            if isinstance(each, TopicObject) and names[each.name] > 1:
                outcomes[at] = InvalidRequest(f"topic {each.name!r} is named twice")
            elif isinstance(each, TopicObject) and each.name in self._view.all_topics:
                outcomes[at] = await self._outcome(self._create_or_fail(each))
            elif isinstance(each, TopicObject):
                made.append(each)
        await self._writer.update_many(
            {keys.topic(each.name): (None, encoding.encode_topic(each)) for each in made}
        )
        await self._steps.advance([each.name for each in made], elect=False)
        for at, each in enumerate(outcomes):
            if isinstance(each, TopicObject) and each in made and not self._is_complete(each):
                outcomes[at] = await self._outcome(self._create_or_fail(each))
        return outcomes

    async def _create_or_fail(self, topic: TopicObject) -> TopicObject:
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            try:
                await self._writer.update(keys.topic(topic.name), lambda item: _create(item, topic))
                return await self._complete(topic)
            except _BeingDeletedError:
                await self._steps.finish_deletion(topic.name)
        raise Conflict(f"topic {topic.name!r} is being deleted: try again in a moment")

    def _is_complete(self, topic: TopicObject) -> bool:
        present = self._view.topic(topic.name)
        if present is None or present.topic_id != topic.topic_id:
            return False
        return len(self._view.records(topic.topic_id)) >= topic.partition_count

    @staticmethod
    async def _outcome(work: Awaitable[TopicObject]) -> TopicObject | HeadraceError:
        try:
            return await work
        except HeadraceError as error:
            return error

    def _try_new(self, wanted: NewTopic) -> TopicObject | HeadraceError:
        try:
            return self._new(
                wanted.name, partitions=wanted.partitions, replicas=wanted.replicas,
                config=wanted.config,
            )  # fmt: skip
        except HeadraceError as error:
            return error

    def _new(
        self,
        name: str,
        *,
        partitions: int | None,
        replicas: int | None,
        config: Mapping[str, ConfigValue] | None,
    ) -> TopicObject:
        """A topic that isn't there yet, checked."""
        defaults = self._defaults()
        return TopicObject(
            name=check_name(name, kind="topic"),
            topic_id=self._new_id(),
            partition_count=_checked_partitions(
                defaults.num_partitions if partitions is None else partitions
            ),
            replicas=self._checked_replicas(replicas, defaults.default_replication_factor),
            config=validate(config or {}),
        )

    def _defaults(self) -> ClusterConfig:
        cluster = self._view.cluster
        return cluster_config.resolve(cluster.config if cluster else {})

    async def alter(
        self,
        name: str,
        *,
        config: Mapping[str, ConfigValue | None] | None = None,
        partitions: int | None = None,
    ) -> TopicObject:
        """See `Coordination.alter_topic`."""
        check_name(name, kind="topic")
        if partitions is not None:
            _checked_partitions(partitions)

        def compute(item: Item | None) -> Write | None:
            before = _present(item, name)
            after = _altered(before, config or {}, partitions)
            return None if after == before else Write(encoding.encode_topic(after))

        topic = _present(await self._writer.update(keys.topic(name), compute), name)
        await self._complete(topic)
        if self._steps.term:
            await self._steps.settle([name])
        return topic

    async def delete(self, name: str) -> TopicId:
        """See `Coordination.delete_topic`."""
        check_name(name, kind="topic")

        def compute(item: Item | None) -> Write | None:
            topic = _decoded(item, name)
            if topic.deleting:
                return None
            deleting = replace(topic, deleting=True, version=topic.version + 1)
            return Write(encoding.encode_topic(deleting))

        topic = _decoded(await self._writer.update(keys.topic(name), compute), name)
        await self._steps.finish_deletion(name)
        return topic.topic_id

    async def _complete(self, topic: TopicObject) -> TopicObject:
        """Makes the partition records and waits until all are there."""
        for attempt in range(COMPLETE_ATTEMPTS_MAX):
            await self._clock.sleep(COMPLETE_PAUSE_S * attempt)
            await self._steps.advance([topic.name], elect=False)
            known = self._view.records(topic.topic_id)
            if len(known) >= topic.partition_count:
                return topic
            if self._view.topic_by_id(topic.topic_id) is None:
                raise TopicNotFound(f"topic {topic.name!r} was deleted by somebody else meanwhile")
        raise StoreUnavailable(
            f"topic {topic.name!r} is there, but not all of its partitions yet: they follow as soon"
            " as enough brokers are live and the store answers"
        )

    def _checked_replicas(self, replicas: int | None, default: int) -> int:
        brokers = self._statuses.current().values()
        live = sum(s.live and s.state == "running" and not s.cordoned for s in brokers)
        wanted = min(default, max(live, 1)) if replicas is None else replicas
        if not 1 <= wanted <= REPLICAS_MAX:
            raise InvalidRequest(f"replicas: {wanted} is not between 1 and {REPLICAS_MAX}")
        if wanted > live:
            raise InvalidConfig(
                f"{wanted} replicas need as many live brokers, there are {live}: start more"
                " brokers or ask for fewer replicas"
            )
        return wanted


def _create(item: Item | None, topic: TopicObject) -> Write | None:
    """The new object where there is none. Our own, from a try whose answer was lost, is fine."""
    if item is None:
        return Write(encoding.encode_topic(topic))
    present = encoding.decode_topic(item.value)
    if isinstance(present, TopicObject) and present.topic_id == topic.topic_id:
        return None
    if isinstance(present, TopicObject) and present.deleting:
        raise _BeingDeletedError
    raise TopicExists(f"topic {topic.name!r} exists already")


def _altered(
    before: TopicObject, config: Mapping[str, ConfigValue | None], partitions: int | None
) -> TopicObject:
    count = before.partition_count if partitions is None else partitions
    if count < before.partition_count:
        raise InvalidRequest(
            f"topic {before.name!r} has {before.partition_count} partitions: there can only be more"
        )
    given = {key: value for key, value in config.items() if value is not None}
    checked = validate(given)
    reset = {check_key(key) for key, value in config.items() if value is None}
    kept = {key: value for key, value in before.config.items() if key not in reset}
    merged = {**kept, **checked}
    if (count, merged) == (before.partition_count, dict(before.config)):
        return before
    return replace(before, partition_count=count, config=merged, version=before.version + 1)


def _decoded(item: Item | None, name: str) -> TopicObject:
    if item is None:
        raise TopicNotFound(f"there is no topic {name!r}")
    topic = encoding.decode_topic(item.value)
    if isinstance(topic, Unreadable):
        raise StoreUnavailable(
            f"the store's object of topic {name!r} can't be read ({topic.reason}): repair it"
        )
    return topic


def _present(item: Item | None, name: str) -> TopicObject:
    topic = _decoded(item, name)
    if topic.deleting:
        raise TopicNotFound(f"there is no topic {name!r}: it is being deleted")
    return topic


def _checked_partitions(count: int) -> int:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidRequest(f"partitions: {count} is not between 1 and {PARTITIONS_PER_TOPIC_MAX}")
    return count
