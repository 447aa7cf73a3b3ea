"""The topics that a producer writes to: their partitions' queues, kept up with the cluster.

A topic that is gone, or another one under the old name, is given up: what waits for it fails, and
the next record asks the cluster anew.
"""

from __future__ import annotations

import logging
import secrets

from headrace.protocol.compression import CODEC_NAMES, Codec
from headrace.protocol.errors import HeadraceError, PartitionNotFound, TopicNotFound
from headrace.sdk.cluster_view import ClusterView, TopicView
from headrace.sdk.core.accumulator import PartitionQueue
from headrace.sdk.core.partitioning import KeyPartitions, next_sticky
from headrace.sdk.sending.buffer import Buffer
from headrace.sdk.sending.schedule import Schedule
from headrace.sdk.settings import ProducerSettings
from headrace.sdk.tasks import Tasks

log = logging.getLogger("headrace.sdk.producer")


def new_producer_id() -> int:
    """A random id of 63 bits: no broker has to be asked, and two are never the same."""
    return secrets.randbits(63)


class TopicQueues:
    """One topic's queues, and which of them records without a key go to."""

    __slots__ = ("batch_bytes", "by_key", "codec", "queues", "sticky", "view")

    def __init__(self, view: TopicView, settings: ProducerSettings) -> None:
        self.view = view
        self.queues: list[PartitionQueue] = []
        self.adopt(view, settings)
        self.sticky = self.queues[secrets.randbelow(len(self.queues))]
        if view.leaders[self.sticky.partition] is None:
            self.turn()

    def adopt(self, view: TopicView, settings: ProducerSettings) -> None:
        """Takes over newer metadata of the same topic: leaders, limits, added partitions. What
        waited for a new leader of its partition may leave at once."""
        for queue in self.queues:
            if view.has_new_leader(self.view, queue.partition):
                queue.retry_at = 0.0
        self.view = view
        chosen = settings.compression
        self.codec: Codec = view.codec if chosen is None else CODEC_NAMES[chosen]
        self.batch_bytes = min(settings.batch_bytes, view.max_message_bytes)
        for partition in range(len(self.queues), len(view.leaders)):
            self.queues.append(
                PartitionQueue(
                    view.name,
                    view.topic_id,
                    partition,
                    batch_bytes=self.batch_bytes,
                    producer_id=new_producer_id() if settings.idempotence else -1,
                )
            )
            self.by_key = KeyPartitions(len(view.leaders), settings.partition_cache)
        for queue in self.queues:
            queue.batch_bytes = self.batch_bytes

    def turn(self) -> None:
        """Sends records without a key to the next partition from now on."""
        self.sticky = self.queues[next_sticky(self.sticky.partition, self.view.leaders)]

    def pick(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        """The queue of a record: the partition asked for, else its key's, else the current one.

        Raises:
            PartitionNotFound: there is no such partition.
        """
        if partition is None:
            return self.sticky if key is None else self.queues[self.by_key[key]]
        if not isinstance(partition, int) or not 0 <= partition < len(self.queues):
            raise PartitionNotFound(
                f"topic {self.view.name!r} has partitions 0 to {len(self.queues) - 1},"
                f" not {partition!r}"
            )
        return self.queues[partition]


class Topics:
    """All topics of one producer. `by_name` holds those that are known."""

    def __init__(
        self,
        view: ClusterView,
        settings: ProducerSettings,
        *,
        metadata_max_age: float,
        buffer: Buffer,
        schedule: Schedule,
        tasks: Tasks,
    ) -> None:
        self.by_name: dict[str, TopicQueues] = {}
        self._view = view
        self._settings = settings
        self._metadata_max_age = metadata_max_age
        self._buffer = buffer
        self._schedule = schedule
        self._tasks = tasks
        self._refreshing: set[str] = set()

    async def load(self, topic: str) -> TopicQueues:
        """The queues of a topic, from the cache or after asking the cluster.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return self._adopt(await self._view.topic(topic))

    def _adopt(self, view: TopicView) -> TopicQueues:
        found = self.by_name.get(view.name)
        if found is not None and found.view.topic_id != view.topic_id:
            self.give_up(view.name, recreated(view.name))
            found = None
        if found is None:
            found = self.by_name[view.name] = TopicQueues(view, self._settings)
        elif found.view is not view:
            found.adopt(view, self._settings)
        return found

    def home_of(self, queue: PartitionQueue) -> TopicQueues | None:
        """The topic that the queue belongs to; None once the topic was given up."""
        topic = self.by_name.get(queue.topic)
        return topic if topic and topic.view.topic_id == queue.topic_id else None

    def give_up(self, topic: str, error: HeadraceError) -> None:
        """The topic is gone: what waits for it fails, and the next record asks the cluster anew."""
        queues = self.by_name.pop(topic, None)
        if queues is not None:
            self._view.forget(topic, queues.view.topic_id)
        for queue in queues.queues if queues else ():
            self._schedule.discard(queue)
            for batch in queue.drop_all():
                self._buffer.failed(batch, error)

    def refresh_if_old(self, topic: TopicQueues) -> None:
        """Looks the topic's partitions up again in the background once their age demands it."""
        if self._buffer.loop.time() - topic.view.asked_at > self._metadata_max_age:
            self.refresh_soon(topic.view.name)

    def refresh_soon(self, topic: str) -> None:
        """Looks the topic up again in the background."""
        if topic not in self._refreshing and not self._buffer.is_closed:
            self._refreshing.add(topic)
            self._tasks.spawn(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            self._adopt(await self._view.refresh(topic))
        except TopicNotFound as error:
            self.give_up(topic, error)
        except HeadraceError as error:
            log.debug("the leaders of %s could not be looked up: %s", topic, error)
        finally:
            self._refreshing.discard(topic)
            self._schedule.soon()


def recreated(topic: str) -> TopicNotFound:
    """The error for records that waited for a topic which is another one by now."""
    return TopicNotFound(
        f"topic {topic!r} was deleted or created again while records waited for it; they are not"
        " sent to a new topic of that name"
    )
