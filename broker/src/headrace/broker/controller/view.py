"""The cluster as this broker knows it: one watch over the store, turned into values and events.

Everything in the store is level-triggered and may arrive late, merged, or twice. The view takes a
topic, registration or cluster object only with a greater version and a partition record only with
a greater (topic id, partition epoch) than it has (replication.md R8). It never concludes from an
absence that data may go: only a tombstone ends a topic (R25). Own writes are applied at once, so
that a caller sees what it has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.broker.core.model import AnyRecord, ClusterObject, Registration, TopicObject
from headrace.broker.store.base import Item, WatchEvent
from headrace.protocol.ids import TopicId


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic is new (`before` None) or was altered; also when it began to be deleted."""

    topic: TopicObject
    before: TopicObject | None


@dataclass(frozen=True, slots=True)
class TopicTombstoned:
    """The topic id is dead for good: its data may be removed. `topic` None: never seen alive."""

    topic_id: TopicId
    topic: TopicObject | None


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A partition's record is new (`before` None) or changed. Always after its `TopicChanged`."""

    topic: TopicObject
    record: AnyRecord
    before: AnyRecord | None


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker registered or changed its registration."""

    registration: Registration
    before: Registration | None


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """The cluster object changed: its defaults of topic settings may have."""

    cluster: ClusterObject
    before: ClusterObject | None


ViewEvent = TopicChanged | TopicTombstoned | RecordChanged | BrokerChanged | ClusterChanged
Listener = Callable[[ViewEvent], None]


class ClusterView:
    """What is known of the cluster, and who wants to hear of changes."""

    @property
    def cluster(self) -> ClusterObject | None: ...

    @property
    def brokers(self) -> Mapping[int, Registration]: ...

    @property
    def topics(self) -> Mapping[str, TopicObject]:
        """Topics in use by name (not those being deleted)."""

    def topic(self, name: str) -> TopicObject | None: ...

    def topic_by_id(self, topic_id: TopicId) -> TopicObject | None: ...

    def record(self, topic_id: TopicId, partition: int) -> AnyRecord | None: ...

    def records(self, topic_id: TopicId) -> Mapping[int, AnyRecord]: ...

    def is_tombstoned(self, topic_id: TopicId) -> bool: ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` (synchronously, on the loop) with every change from now on; first with
        what is known already, as if it were new. Returns what ends it. An exception of a listener
        is logged and doesn't keep the others from hearing."""

    def apply(self, events: Iterable[WatchEvent]) -> None: ...

    def item(self, key: str) -> Item | None: ...
