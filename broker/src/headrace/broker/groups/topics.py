"""The topics that groups may read, as the assignors want them; made again when the view changes."""

from __future__ import annotations

from headrace.broker.controller.view import (
    BrokerChanged,
    ClusterView,
    RecordChanged,
    TopicChanged,
    TopicTombstoned,
    ViewEvent,
)
from headrace.broker.core.groups.assignors import Topics, TopicShape
from headrace.broker.core.model import AnyRecord, PartitionRecord, TopicObject
from headrace.protocol.names import is_internal


class ReadableTopics:
    """A cache over the cluster's view."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._made: Topics | None = None

    def note(self, event: ViewEvent) -> None:
        """The view has changed: topics, where their replicas are, or brokers' racks."""
        match event:
            case TopicChanged() | TopicTombstoned():
                self._made = None
            case BrokerChanged(registration, before):
                if before is None or before.rack != registration.rack:
                    self._made = None
            case RecordChanged(_, record, before):
                if _replicas(before) != _replicas(record):
                    self._made = None

    def __call__(self) -> Topics:
        """The topics by name, without the system's own and those being deleted."""
        if self._made is None:
            self._made = {
                name: TopicShape(topic.topic_id, topic.partition_count, self._racks(topic))
                for name, topic in self._view.topics.items()
                if not topic.deleting and not is_internal(name)
            }
        return self._made

    def _racks(self, topic: TopicObject) -> tuple[frozenset[str], ...]:
        rack_of = {each: found.rack for each, found in self._view.brokers.items() if found.rack}
        if not rack_of:
            return ()
        found = []
        for index in range(topic.partition_count):
            replicas = _replicas(self._view.record(topic.topic_id, index))
            found.append(frozenset(rack_of[each] for each in replicas if each in rack_of))
        return tuple(found)


def _replicas(record: AnyRecord | None) -> tuple[int, ...]:
    return record.replicas if isinstance(record, PartitionRecord) else ()
