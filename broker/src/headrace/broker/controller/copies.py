"""This broker's copies, on its own disk, of what it read in the store of the partitions it holds.

They are what a store that went back in time shows against, and what a lost store is rebuilt from
(replication.md R27). They also let a follower go on while the store is away (R20). Written late and
in one go: a copy may be behind the store, never ahead of it, so it can miss that the store went
back, but never claim so wrongly.

Keys: a partition by its topic id and number; a topic by its id and -1; the cluster by `WHOLE`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import (
    ClusterChanged,
    ClusterView,
    RecordChanged,
    TopicChanged,
    ViewEvent,
)
from headrace.broker.core import encoding
from headrace.broker.core.model import ClusterObject, PartitionRecord, TopicObject
from headrace.broker.core.recovery_plan import Copies
from headrace.broker.peers.base import PeerHandler
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicId, TopicIdPartition, parse_topic_id

log = logging.getLogger(__name__)

STATES = "states"
"""Path of the question for a broker's copies."""

WHOLE = TopicIdPartition(TopicId(bytes(16)), -1)

DEBOUNCE_S = 0.5
"""Changes are gathered for so long before they are written."""

RETRY_S = 10.0
"""Pause after a write that failed."""


class Disk(Protocol):
    """Where the copies lie; `log.logs.Logs` in a broker."""

    @property
    def states(self) -> Mapping[TopicIdPartition, bytes]:
        """All that is kept."""

    async def record_states(self, records: Mapping[TopicIdPartition, bytes]) -> None:
        """Keeps more. Raises HeadraceError if it can't."""

    async def note_store_term(self, store_term: int) -> None:
        """Keeps the highest store term seen. Raises HeadraceError if it can't."""

    async def note_beat(self, beat: int) -> None:
        """Keeps the number of this volume's present state. Raises HeadraceError if it can't."""


class NoDisk:
    """Keeps nothing beyond the process."""

    def __init__(self) -> None:
        self.states: dict[TopicIdPartition, bytes] = {}
        self.beat = 0

    async def record_states(self, records: Mapping[TopicIdPartition, bytes]) -> None:
        """See `Disk`."""
        self.states.update(records)

    async def note_store_term(self, store_term: int) -> None:
        """See `Disk`."""

    async def note_beat(self, beat: int) -> None:
        """See `Disk`."""
        self.beat = beat


class CopyKeeper:
    """Writes what the view tells of; `run` is a task, `flush` for the end."""

    def __init__(self, disk: Disk, view: ClusterView, *, own_id: int, clock: TimeSource) -> None:
        self._disk = disk
        self._view = view
        self._own_id = own_id
        self._clock = clock
        self._due: dict[TopicIdPartition, bytes] = {}
        self._term = 0
        self._closed = False
        self._wake = asyncio.Event()

    @property
    def copies(self) -> Copies:
        """What is on the disk and what is about to be, decoded; damaged copies are left out."""
        return decode_copies({**self._disk.states, **self._due})

    def record(self, topic_id: TopicId, partition: int) -> PartitionRecord | None:
        """The copy of one partition's record; needs no store."""
        key = TopicIdPartition(topic_id, partition)
        raw = self._due.get(key) or self._disk.states.get(key)
        found = encoding.decode_record(raw, topic_id, partition) if raw else None
        return found if isinstance(found, PartitionRecord) else None

    def on_event(self, event: ViewEvent) -> None:
        """Notes what is to be written; a listener of the view."""
        match event:
            case RecordChanged(topic=topic, record=PartitionRecord() as record):
                if self._own_id in record.replicas:
                    key = TopicIdPartition(record.topic_id, record.partition)
                    self._note(key, encoding.encode_record(record))
                    self._note_topic(topic)
            case TopicChanged(topic=topic) if self._holds(topic):
                self._note_topic(topic)
            case ClusterChanged(cluster=cluster):
                self._term = max(self._term, cluster.store_term)
                self._note(WHOLE, encoding.encode_cluster(cluster))

    async def run(self) -> None:
        """For ever; for a task that is started again after it failed."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(DEBOUNCE_S)
            if self._closed:
                return
            try:
                await self.flush()
            except HeadraceError as error:
                log.warning("the copies of the store's records weren't written: %s", error)
                await self._clock.sleep(RETRY_S)
                raise

    async def flush(self) -> None:
        """Writes what is due.

        Raises:
            HeadraceError: the disk can't be written; it stays due.
        """
        self._wake.clear()
        due, self._due = self._due, {}
        try:
            if due:
                await self._disk.record_states(due)
                await self._disk.note_store_term(self._term)
        except BaseException:
            self._due = {**due, **self._due}
            self._wake.set()
            raise

    async def close(self) -> None:
        """Writes what is due, as far as the disk lets it, and nothing afterwards."""
        self._closed = True
        try:
            await self.flush()
        except HeadraceError as error:
            log.warning("the copies of the store's records weren't written: %s", error)

    def _holds(self, topic: TopicObject) -> bool:
        return any(
            isinstance(record, PartitionRecord) and self._own_id in record.replicas
            for record in self._view.records(topic.topic_id).values()
        )

    def _note_topic(self, topic: TopicObject) -> None:
        self._note(TopicIdPartition(topic.topic_id, -1), encoding.encode_topic(topic))

    def _note(self, key: TopicIdPartition, raw: bytes) -> None:
        if not self._closed and self._due.get(key, self._disk.states.get(key)) != raw:
            self._due[key] = raw
            self._wake.set()


def decode_copies(states: Mapping[TopicIdPartition, bytes]) -> Copies:
    """The copies as values; what can't be read is left out."""
    cluster: ClusterObject | None = None
    topics: dict[TopicId, TopicObject] = {}
    records: dict[TopicIdPartition, PartitionRecord] = {}
    for key, raw in states.items():
        if key == WHOLE:
            found = encoding.decode_cluster(raw)
            cluster = found if isinstance(found, ClusterObject) else None
        elif key.partition < 0:
            topic = encoding.decode_topic(raw)
            if isinstance(topic, TopicObject) and topic.topic_id == key.topic_id:
                topics[key.topic_id] = topic
        else:
            record = encoding.decode_record(raw, key.topic_id, key.partition)
            if isinstance(record, PartitionRecord):
                records[key] = record
    return Copies(cluster, topics, records)


class _StatesDoc(msgspec.Struct, frozen=True):
    states: list[tuple[str, int, bytes]]


_decoder = msgspec.msgpack.Decoder(_StatesDoc)


def answer_states(states: Callable[[], Mapping[TopicIdPartition, bytes]]) -> PeerHandler:
    """The handler of `STATES`."""

    async def handle(_body: memoryview) -> list[Buffer]:
        rows = [(key.topic_id.hex(), key.partition, raw) for key, raw in states().items()]
        return [msgspec.msgpack.encode(_StatesDoc(rows))]

    return handle


def decode_states(raw: Buffer) -> Copies:
    """The answer of `STATES`. Raises ValueError if it can't be read."""
    rows = _decoder.decode(raw).states
    return decode_copies(
        {TopicIdPartition(parse_topic_id(topic), partition): raw for topic, partition, raw in rows}
    )
