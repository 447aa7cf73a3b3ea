"""Which partitions aren't led by their first replica though it could lead, and since when.

Leadership that went elsewhere when a broker died or was restarted would stay there, and after a
rolling restart the last broker would lead nothing. It returns once the first replica has been in
sync for a while, some partitions at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ClusterView, RecordChanged
from headrace.broker.core import election
from headrace.broker.core.election import Brokers
from headrace.broker.core.model import PartitionRecord
from headrace.protocol.ids import TopicId

ELECTIONS_PER_ROUND = 100
"""Partitions that change their leader in one round: the others wait for the next one."""

JITTER = 0.2
"""Part of the delay that is added to it, another for each partition."""


class PreferredLeaders:
    """Follows the records; a wish of a moment is forgotten with the process."""

    def __init__(self, view: ClusterView, clock: TimeSource) -> None:
        self._view = view
        self._clock = clock
        self._since_s: dict[tuple[TopicId, int], float] = {}

    def on_record(self, event: RecordChanged) -> None:
        """Takes notice of a partition's new record."""
        record, where = event.record, (event.topic.topic_id, event.record.partition)
        if isinstance(record, PartitionRecord) and _is_elsewhere(record):
            self._since_s.setdefault(where, self._clock.monotonic())
        else:
            self._since_s.pop(where, None)

    def forget(self, topic_id: TopicId) -> None:
        """The topic is dead."""
        for where in [where for where in self._since_s if where[0] == topic_id]:
            del self._since_s[where]

    def due(self, brokers: Brokers, *, delay_s: float) -> list[tuple[str, PartitionRecord]]:
        """Topics and records with their first replica as leader, for those that waited long
        enough; some of them, if there are many."""
        now_s = self._clock.monotonic()
        waited = [
            where
            for where, since_s in self._since_s.items()
            if now_s - since_s >= delay_s * (1 + _share(where) * JITTER)
        ]
        found: list[tuple[str, PartitionRecord]] = []
        for where in waited:
            found.extend(self._elected(where, brokers))
            if len(found) >= ELECTIONS_PER_ROUND:
                break
        return found

    def all_off(self, brokers: Brokers) -> list[tuple[str, PartitionRecord]]:
        """The same for all, however short it has been."""
        return [each for where in list(self._since_s) for each in self._elected(where, brokers)]

    def _elected(
        self, where: tuple[TopicId, int], brokers: Brokers
    ) -> Iterator[tuple[str, PartitionRecord]]:
        topic, record = self._view.topic_by_id(where[0]), self._view.record(*where)
        if topic is None or not isinstance(record, PartitionRecord):
            del self._since_s[where]
            return
        step = election.prefer(record, brokers)
        if isinstance(step, PartitionRecord):
            yield topic.name, step


def _is_elsewhere(record: PartitionRecord) -> bool:
    """Whether the first replica is in sync and somebody else leads."""
    first = record.replicas[0]
    led = record.leader
    return led is not None and led.broker_id != first and record.in_isr(first) is not None


def _share(where: tuple[TopicId, int]) -> float:
    """From 0 to 1, spread over partitions and the same for one each time."""
    return ((where[0][0] * 31 + where[1] * 7) % 100) / 100
