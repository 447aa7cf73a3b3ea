"""The async consumer: hands out what `fetcher` has read, keeps positions, commits.

A batch is decoded whole when its first record is asked for, and its records are handed out from a
list; nothing is done per record but the program's own work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from itertools import islice
from typing import Any

from headrace.protocol import batch as batches
from headrace.protocol import routes
from headrace.protocol.errors import (
    Closed,
    CorruptBatch,
    HeadraceError,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionNotFound,
    UnsupportedFormat,
)
from headrace.protocol.ids import TopicPartition
from headrace.protocol.models import CommitAnswer, CommitPart, CommitRequest, GroupInfo
from headrace.protocol.names import check_name
from headrace.protocol.record import Record
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.core.positions import (
    Handout,
    PartitionState,
    RawBatch,
    next_to_hand_out,
    records_from,
)
from headrace.sdk.errors import fresh
from headrace.sdk.offsets import Where, ask, query_for
from headrace.sdk.reading.fetcher import Fetcher
from headrace.sdk.reading.workers import Handler, Workers
from headrace.sdk.serializers import Deserializer, deserialize_with
from headrace.sdk.settings import (
    ConnectionSettings,
    ConsumerSettings,
    Credentials,
    OffsetReset,
    OnCorrupt,
    Route,
    bootstrap_urls,
)
from headrace.sdk.transport import Transport

log = logging.getLogger("headrace.sdk.consumer")

_DEFAULT = ConsumerSettings()
_CONNECTION = ConnectionSettings()
Partition = tuple[str, int]


class Consumer:
    """Reads topics. Use it as a context manager, from one task, on one event loop:

        async with Consumer("http://127.0.0.1:9420", "orders", group="billing") as consumer:
            async for record in consumer:
                print(record.topic, record.partition, record.offset, record.key, record.value)

    It reads all partitions of its topics (also those added later, from their beginning), or those
    given to `assign`. With a `group` it starts where that group committed, and commits what is
    finished: a record is finished once the next one is asked for. After a crash records may come
    again, none is left out.

    Keyword arguments are the fields of `ConsumerSettings` and `ConnectionSettings`, where each is
    explained.

    Errors while reading: what may pass is retried, meanwhile `problems` shows it. What stops one
    partition (a corrupt batch, `offset_reset="error"`, a topic deleted or created again) is raised
    once; reading on continues with the other partitions, and a seek takes that one up again.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *topics: str,
        group: str | None = None,
        offset_reset: OffsetReset = _DEFAULT.offset_reset,
        auto_commit: bool = _DEFAULT.auto_commit,
        auto_commit_interval: float = _DEFAULT.auto_commit_interval,
        on_corrupt: OnCorrupt = _DEFAULT.on_corrupt,
        max_wait: float = _DEFAULT.max_wait,
        min_bytes: int = _DEFAULT.min_bytes,
        fetch_bytes: int = _DEFAULT.fetch_bytes,
        partition_bytes: int = _DEFAULT.partition_bytes,
        prefetch_bytes: int = _DEFAULT.prefetch_bytes,
        offset_retry_timeout: float = _DEFAULT.offset_retry_timeout,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        client_id: str = _CONNECTION.client_id,
        credentials: Credentials | None = None,
        tls: Any = None,
        route: Route = _CONNECTION.route,
        request_timeout: float = _CONNECTION.request_timeout,
        connect_timeout: float = _CONNECTION.connect_timeout,
        metadata_max_age: float = _CONNECTION.metadata_max_age,
        retry_backoff_ms: int = _CONNECTION.retry_backoff_ms,
        retry_backoff_max_ms: int = _CONNECTION.retry_backoff_max_ms,
        transport: Transport | None = None,
    ) -> None:
        self._settings = ConsumerSettings(
            group=None if group is None else check_name(group, kind="group"),
            offset_reset=offset_reset,
            auto_commit=auto_commit,
            auto_commit_interval=auto_commit_interval,
            on_corrupt=on_corrupt,
            max_wait=max_wait,
            min_bytes=min_bytes,
            fetch_bytes=fetch_bytes,
            partition_bytes=partition_bytes,
            prefetch_bytes=prefetch_bytes,
            offset_retry_timeout=offset_retry_timeout,
        )
        self._connection = ConnectionSettings(
            client_id=client_id,
            credentials=credentials,
            tls=tls,
            route=route,
            request_timeout=request_timeout,
            connect_timeout=connect_timeout,
            metadata_max_age=metadata_max_age,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        )
        self._bootstrap = bootstrap_urls(bootstrap)
        self._transport = transport
        self._topics = tuple(check_name(topic, kind="topic") for topic in topics)
        self._load_key = deserialize_with(key_deserializer, name="key_deserializer")
        self._load_value = deserialize_with(value_deserializer, name="value_deserializer")
        self._client: Client | None = None
        self._view: ClusterView | None = None
        self._fetcher: Fetcher | None = None
        self._starting: asyncio.Lock = asyncio.Lock()
        self._is_started = False
        self._is_closed = False
        self._background: list[asyncio.Task[None]] = []
        self._handout: Handout | None = None
        self._is_iterating = False
        self._is_finishing_by_hand = False
        self._touched: set[PartitionState] = set()
        self._committed: dict[TopicPartition, int] = {}
        self._turn = 0

    # --- reading ---------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Record]:
        """The records, as they come, for ever. Within a partition in order.

        Raises:
            HeadraceError: see the class; iterating again goes on with the other partitions.
        """
        while True:
            for record in await self.next_records():
                yield record

    async def next_records(self) -> Iterator[Record]:
        """Waits for records and gives an iterator over some of them, in one partition: what `async
        for` is made of, for programs (and the sync facade) that loop by themselves. Each record is
        finished when the next is taken, the last one by the next call."""
        await self._start()
        if not self._is_iterating and not self._is_finishing_by_hand:
            self._finish_touched()
        self._is_iterating = True
        handout = await self._next_handout(None)
        assert handout is not None
        return handout.iterator

    async def fetch(self, max_records: int = 500, timeout: float | None = None) -> list[Record]:
        """Up to `max_records` records; waits up to `timeout` seconds (None: for ever) for the first
        and not at all for more. An empty list means that the time is over.

        All of the list is finished at the next call.

        Raises:
            HeadraceError: see the class.
        """
        if max_records < 1:
            raise InvalidRequest(f"max_records= must be at least 1, got {max_records}")
        await self._start()
        self._is_iterating = False
        self._finish_touched()
        if timeout is not None and timeout <= 0:
            await asyncio.sleep(0)  # So that polling in a loop lets answers in.
        found: list[Record] = []
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while len(found) < max_records:
            handout = self._ready_handout() if found else await self._next_handout(deadline)
            if handout is None or handout.is_over:
                break
            found += islice(handout.iterator, max_records - len(found))
            self._touched.add(handout.state)
            handout.state.position = handout.position
        return found

    async def fetch_batches(
        self, max_bytes: int = 1 << 20, timeout: float | None = None
    ) -> list[RawBatch]:
        """As `fetch`, but whole batches, not decoded: for programs that read columns
        (`headrace.protocol.batch.decode_columns`). Records before a batch's `first_offset` are to
        be skipped. At least one batch, then up to about `max_bytes`."""
        await self._start()
        self._is_iterating = False
        self._finish_touched()
        self._give_back_handout()
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        found: list[RawBatch] = []
        size = 0
        while size < max_bytes:
            state = self._ready_state() if found else await self._next_state(deadline)
            if state is None:
                break
            batch = self._take(state)
            state.position = batch.header.next_offset
            self._touched.add(state)
            if not batch.header.is_control:
                found.append(batch)
                size += len(batch.data)
        return found

    async def run(self, handler: Handler, concurrency: int = 8) -> None:
        """Calls `handler(record)` for every record, up to `concurrency` at a time, until it raises
        or the call is cancelled. Records of one key (in one partition) are handled in order, one
        after another; those without a key in any order. The handler may be async or plain.

        Only handled records are committed. A handler's exception ends `run` and is raised.
        """
        await self._start()
        self._is_finishing_by_hand = True
        workers = Workers(handler, max(concurrency, 1), self._finish_by_hand)
        try:
            await workers.run(self.next_records, self._state_of)
        finally:
            if not self._is_closed:
                self._rewind_to_finished()
            self._is_finishing_by_hand = False

    # --- handing out -----------------------------------------------------------------------------

    async def _next_handout(self, deadline: float | None) -> Handout | None:
        while True:
            if (handout := self._handout) is not None and not handout.is_over:
                return handout
            self._close_handout()
            state = await self._next_state(deadline)
            if state is None:
                return None
            self._open_handout(state)

    def _ready_handout(self) -> Handout | None:
        """The next handout without waiting; an error found on the way comes at the next call."""
        while self._handout is None or self._handout.is_over:
            self._close_handout()
            state = self._ready_state()
            if state is None:
                return None
            self._open_handout(state)
        return self._handout

    async def _next_state(self, deadline: float | None) -> PartitionState | None:
        """A partition with a batch to hand out; None when the time is over.

        Raises:
            HeadraceError: a partition has failed and nobody was told, or none is left to read.
        """
        fetcher = self._running()
        while True:
            self._raise_failure()
            state = self._ready_state()
            if state is not None:
                return state
            left_s = None
            if deadline is not None:
                left_s = deadline - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return None
            fetcher.pump()
            await fetcher.wait(left_s)
            self._running()

    def _ready_state(self) -> PartitionState | None:
        return next_to_hand_out(self._running().states.values())

    def _raise_failure(self) -> None:
        states = self._running().states.values()
        if not states:
            raise InvalidRequest("there is nothing to read: name topics, or assign partitions")
        for state in states:
            if state.failure is not None and not state.has_raised:
                state.has_raised = True
                raise fresh(state.failure) from state.failure.__cause__
        failures = [state.failure for state in states if state.failure is not None]
        if failures and len(failures) == len(states):
            raise fresh(failures[0])

    def _take(self, state: PartitionState) -> RawBatch:
        self._turn += 1
        state.turn = self._turn
        batch = state.take()
        self._running().pump_soon()
        return batch

    def _open_handout(self, state: PartitionState) -> None:
        batch = self._take(state)
        try:
            records: list[Any] = records_from(
                batches.records(batch.topic, batch.partition, batch.data, batch.header),
                batch.first_offset,
            )
        except (CorruptBatch, UnsupportedFormat) as error:
            self._on_corrupt(state, batch, error)
            return
        error_at = None
        if self._load_value is not None or self._load_key is not None:
            error_at = self._deserialize(records)
        self._handout = Handout(state, batch, records)
        if error_at is not None:
            self._handout.error, self._handout.after = error_at

    def _on_corrupt(self, state: PartitionState, batch: RawBatch, error: HeadraceError) -> None:
        first, last = batch.header.base_offset, batch.header.last_offset
        where = f"{batch.topic}/{batch.partition} offsets {first} to {last}"
        if self._settings.on_corrupt == "skip" and isinstance(error, CorruptBatch):
            log.warning("skipping %s: %s", where, error)
            state.position = batch.header.next_offset
            if not self._is_finishing_by_hand:
                state.finished = state.position
            return
        told = type(error)(
            f"{where}: {error.message}. To go on after it: await consumer.seek"
            f"(({batch.topic!r}, {batch.partition}), {last + 1}), or on_corrupt='skip'",
            details={"first_offset": first, "last_offset": last},
        )
        told.__cause__ = error
        state.fail(told)

    def _deserialize(self, records: list[Any]) -> tuple[Exception, int] | None:
        """Makes keys and values what the program wants. A record that can't be read and all behind
        it are cut off; its error and offset come back."""
        load_key, load_value = self._load_key, self._load_value
        for index, record in enumerate(records):
            try:
                if load_key is not None and record.key is not None:
                    record.key = load_key(record.key)
                if load_value is not None and record.value is not None:
                    record.value = load_value(record.value)
            except Exception as error:
                where = f"({record.topic!r}, {record.partition})"
                error.add_note(
                    f"{where} offset {record.offset} can't be deserialized; to go on after it:"
                    f" await consumer.seek({where}, {record.offset + 1})"
                )
                del records[index:]
                return error, record.offset
        return None

    def _close_handout(self) -> None:
        """The records handed out so far are done with; keeps the position they lead to."""
        handout, self._handout = self._handout, None
        if handout is None or handout.version != handout.state.version:
            return
        state = handout.state
        state.position = handout.position
        if self._is_iterating and not self._is_finishing_by_hand:
            state.finished = state.position
        if handout.error is not None:
            state.fail(handout.error)

    def _give_back_handout(self) -> None:
        """Takes back what was not handed out, into the buffer it came from."""
        handout = self._handout
        if handout is None or handout.version != handout.state.version:
            self._handout = None
            return
        state, position = handout.state, handout.position
        if not handout.is_over or handout.error is not None:
            handout.cut()
            state.put_back(handout.batch._replace(first_offset=position))
        if handout.in_hand is not None and self._is_iterating and not self._is_finishing_by_hand:
            state.finished = max(state.finished or 0, handout.in_hand)
        state.position = position
        self._handout = None
        self._touched.add(state)

    def _finish_touched(self) -> None:
        """The program asks for more: what it had is finished."""
        if self._handout is not None:
            handout = self._handout
            if handout.version == handout.state.version:
                handout.state.position = handout.position
                self._touched.add(handout.state)
        for state in self._touched:
            state.finished = state.position
        self._touched.clear()

    def _finished_of(self, state: PartitionState) -> int | None:
        """What may be committed by itself: all before the record that the program has in hand."""
        handout = self._handout
        if (
            self._is_iterating
            and not self._is_finishing_by_hand
            and handout is not None
            and handout.state is state
            and handout.version == state.version
            and handout.in_hand is not None
        ):
            return max(state.finished or 0, handout.in_hand)
        return state.finished

    def _position_of(self, state: PartitionState) -> int | None:
        handout = self._handout
        if handout is not None and handout.state is state and handout.version == state.version:
            return handout.position
        return state.position

    def _finish_by_hand(self, state: PartitionState, version: int, offset: int) -> None:
        if state.version == version:
            state.finished = offset

    def _rewind_to_finished(self) -> None:
        """After `run`: what was handed out and not handled comes again."""
        self._give_back_handout()
        for state in self._running().states.values():
            if state.finished is not None and state.position != state.finished:
                state.move(state.finished)
        self._touched.clear()

    # --- assignment ------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions being read; empty before the first use."""
        return frozenset(self._fetcher.states) if self._fetcher is not None else frozenset()

    @property
    def problems(self) -> dict[TopicPartition, Exception]:
        """Partitions that give nothing at the moment, and why."""
        states = self._fetcher.states if self._fetcher is not None else {}
        found = {where: state.failure or state.problem for where, state in states.items()}
        return {where: error for where, error in found.items() if error is not None}

    async def assign(self, partitions: Iterable[Partition]) -> None:
        """Reads exactly these partitions from now on, starting as the class says. Those that were
        read before stay where they are.

        Raises:
            TopicNotFound, PartitionNotFound: there is no such place.
        """
        wanted = {TopicPartition(*where) for where in partitions}
        self._topics = ()
        await self._start()
        states = self._running().states
        self._give_back_handout()
        for where in [where for where in states if where not in wanted]:
            states.pop(where).forget()
        await self._add([where for where in sorted(wanted) if where not in states])

    async def _add(self, wanted: list[TopicPartition], *, is_new: bool = False) -> None:
        """Starts reading partitions: at the committed offset, else as `offset_reset` says. One that
        was added to a topic later (`is_new`) is read from its beginning, or records are lost."""
        fetcher, view = self._running(), self._view
        assert view is not None
        found: list[PartitionState] = []
        for where in wanted:
            topic = await view.topic(where.topic)
            if where.partition not in range(len(topic.leaders)):
                raise PartitionNotFound(
                    f"topic {where.topic!r} has {len(topic.leaders)} partitions,"
                    f" there is no {where.partition}"
                )
            found.append(PartitionState(where, topic.topic_id, None))
        committed = await self._load_committed() if self._settings.group and found else {}
        reset = "earliest" if is_new else self._settings.offset_reset
        for state in found:
            entry = committed.get(state.owner)
            if entry is not None and entry[0] == state.topic_id.hex():
                state.move(entry[1])
                self._committed[state.owner] = entry[1]
            elif reset == "error":
                raise OffsetOutOfRange(
                    f"{state.owner.topic}/{state.owner.partition} has no committed offset and"
                    " offset_reset is 'error'; seek, commit, or choose 'earliest' or 'latest'"
                )
            else:
                state.start = reset
        unresolved = [state for state in found if state.start is not None]
        if unresolved:
            await fetcher.resolve(unresolved)
        for state in found:
            fetcher.states[state.owner] = state
        fetcher.pump()

    async def _load_committed(self) -> dict[TopicPartition, tuple[str, int]]:
        assert self._client is not None
        path = routes.fill(routes.GROUP_OFFSETS, group=self._settings.group)
        timeout = self._settings.offset_retry_timeout
        try:
            info = await self._client.call("GET", path, GroupInfo, timeout=timeout)
        except HeadraceError as error:
            if error.code == "group_not_found":
                return {}
            raise
        return {
            TopicPartition(entry.topic, entry.partition): (entry.topic_id, entry.offset)
            for entry in info.offsets
        }

    # --- positions -------------------------------------------------------------------------------

    async def seek(self, partition: Partition, to: Where) -> None:
        """Goes on at an offset, at `"earliest"`, at `"latest"`, or (a datetime) at the first record
        at or after a time. Takes effect at once, also on what was read ahead.

        Raises:
            PartitionNotFound: it is not assigned.
            HeadraceError: the place can't be looked up.
        """
        await self._start()
        await self._seek([self._state_at(partition)], to)

    async def seek_to_earliest(self, *partitions: Partition) -> None:
        """Goes to the first record there is, in all assigned partitions or the given ones."""
        await self._start()
        await self._seek(self._chosen(partitions), "earliest")

    async def seek_to_latest(self, *partitions: Partition) -> None:
        """Goes behind the last record, in all assigned partitions or the given ones."""
        await self._start()
        await self._seek(self._chosen(partitions), "latest")

    async def seek_to_time(self, time: datetime, *partitions: Partition) -> None:
        """Goes to the first record at or after `time`, in all assigned partitions or the given
        ones; behind the last where there is none."""
        await self._start()
        await self._seek(self._chosen(partitions), time)

    async def _seek(self, states: list[PartitionState], to: Where) -> None:
        if isinstance(to, int):
            places = dict.fromkeys([state.owner for state in states], _checked_offset(to))
        else:
            places = await self._look_up([state.owner for state in states], to)
        for state in states:
            if self._handout is not None and self._handout.state is state:
                self._handout.cut()
                self._handout = None
            self._touched.discard(state)
            state.move(places[state.owner])
        self._running().pump()

    async def _look_up(
        self, partitions: Sequence[TopicPartition], to: Where
    ) -> dict[TopicPartition, int]:
        assert self._client is not None
        timeout = self._settings.offset_retry_timeout
        queries = [query_for(where, to) for where in partitions]
        answers = await ask(self._client, queries, timeout=timeout)
        found: dict[TopicPartition, int] = {}
        late: list[TopicPartition] = []
        for where, answer in zip(partitions, answers, strict=True):
            if answer.error is not None:
                raise answer.error.to_error()
            if answer.offset is None:
                late.append(where)
            else:
                found[where] = answer.offset
        return found | (await self._look_up(late, "latest") if late else {})

    async def position(self, partition: Partition) -> int | None:
        """The offset of the next record that will be handed out; None while it isn't known (the
        partition can't be asked, see `problems`)."""
        await self._start()
        return self._position_of(self._state_at(partition))

    async def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each assigned partition's position is behind its end, asked now.

        Raises:
            HeadraceError: a partition can't be asked.
        """
        await self._start()
        states = self._running().states
        ends = await self._look_up(list(states), "latest")
        return {
            where: max(0, end - (self._position_of(states[where]) or 0))
            for where, end in ends.items()
            if where in states
        }

    async def pause(self, *partitions: Partition) -> None:
        """Hands out nothing of the given partitions (none given: of all) until `resume`."""
        await self._start()
        for state in self._chosen(partitions):
            state.is_paused = True
            if self._handout is not None and self._handout.state is state:
                self._give_back_handout()

    async def resume(self, *partitions: Partition) -> None:
        """Undoes `pause`."""
        await self._start()
        for state in self._chosen(partitions):
            state.is_paused = False
        self._running().pump()
        self._running().wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        states = self._fetcher.states.values() if self._fetcher is not None else ()
        return frozenset(state.owner for state in states if state.is_paused)

    def _state_at(self, partition: Partition) -> PartitionState:
        where = TopicPartition(*partition)
        found = self._running().states.get(where)
        if found is None:
            raise PartitionNotFound(f"{where.topic}/{where.partition} is not assigned")
        return found

    def _state_of(self, record: Record) -> PartitionState:
        return self._running().states[TopicPartition(record.topic, record.partition)]

    def _chosen(self, partitions: Sequence[Partition]) -> list[PartitionState]:
        if not partitions:
            return list(self._running().states.values())
        return [self._state_at(partition) for partition in partitions]

    # --- committing ------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[Partition, int] | None = None, *, metadata: str = ""
    ) -> None:
        """Commits the group's offsets: the given ones (of the next record to read), or all that was
        handed out so far, the record in hand included (within `run`: all that was handled).

        Raises:
            InvalidRequest: the consumer has no group.
            HeadraceError: the first partition that could not be committed.
        """
        await self._start()
        if offsets is None:
            chosen = self._finish_all()
        else:
            chosen = {TopicPartition(*where): at for where, at in offsets.items()}
        await self._commit(chosen, metadata, timeout=self._settings.offset_retry_timeout)

    def _finish_all(self) -> dict[TopicPartition, int]:
        """Declares all that was handed out finished (but leaves that to `run` while it runs)."""
        found: dict[TopicPartition, int] = {}
        for state in self._running().states.values():
            if not self._is_finishing_by_hand:
                state.position = state.finished = self._position_of(state)
            if state.finished is not None:
                found[state.owner] = state.finished
        return found

    async def _commit(
        self, offsets: Mapping[TopicPartition, int], metadata: str, *, timeout: float
    ) -> None:
        assert self._client is not None
        if self._settings.group is None:
            raise InvalidRequest("only a consumer with group= can commit")
        if not offsets:
            return
        parts = [
            CommitPart(where.topic, where.partition, _checked_offset(offset), metadata=metadata)
            for where, offset in offsets.items()
        ]
        path = routes.fill(routes.GROUP_OFFSETS, group=self._settings.group)
        answer = await self._client.call(
            "POST", path, CommitAnswer, body=CommitRequest(parts), timeout=timeout
        )
        for result in answer.offsets:
            if result.error is None:
                where = TopicPartition(result.topic, result.partition)
                self._committed[where] = offsets[where]
        for result in answer.offsets:
            if result.error is not None:
                raise result.error.to_error()

    async def committed(self, *partitions: Partition) -> dict[TopicPartition, int | None]:
        """The group's committed offsets of the given partitions (none given: of the assigned), None
        where there is none, asked now.

        Raises:
            InvalidRequest: the consumer has no group.
        """
        await self._start()
        if self._settings.group is None:
            raise InvalidRequest("only a consumer with group= has committed offsets")
        found = await self._load_committed()
        wanted = [TopicPartition(*where) for where in partitions] or sorted(self.assignment)
        return {where: found[where][1] if where in found else None for where in wanted}

    async def _commit_finished(self, *, timeout: float) -> None:
        states = self._running().states.values()
        finished = {state.owner: self._finished_of(state) for state in states}
        changed = {
            where: offset
            for where, offset in finished.items()
            if offset is not None and self._committed.get(where) != offset
        }
        if changed:
            await self._commit(changed, "", timeout=timeout)

    async def _auto_commit(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval)
            try:
                await self._commit_finished(timeout=self._connection.request_timeout)
            except HeadraceError as error:
                log.warning("offsets could not be committed, trying again later: %s", error)

    # --- life ------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Looks the topics and starting offsets up, once; what fails is tried again next time."""
        if self._is_started:
            self._running()
            return
        async with self._starting:
            if self._is_started:
                return
            if self._fetcher is None:
                self._running_or_raise_closed()
                self._client = Client(self._bootstrap, self._connection, self._transport)
                self._view = ClusterView(self._client)
                self._fetcher = Fetcher(self._client, self._view, self._settings)
            await self._add(await self._all_partitions())
            if self._settings.group is not None and self._settings.auto_commit:
                self._background.append(asyncio.create_task(self._auto_commit()))
            self._background.append(asyncio.create_task(self._watch_topics()))
            self._is_started = True

    async def _all_partitions(self) -> list[TopicPartition]:
        assert self._view is not None
        found: list[TopicPartition] = []
        for topic in dict.fromkeys(self._topics):
            view = await self._view.topic(topic)
            found += [TopicPartition(topic, number) for number in range(len(view.leaders))]
        return found

    async def _watch_topics(self) -> None:
        """Notices added partitions and topics created again, now and then."""
        assert self._view is not None
        while True:
            await asyncio.sleep(self._connection.metadata_max_age)
            try:
                for topic in self._topics:
                    self._running().check_identity(await self._view.refresh(topic))
                known = self._running().states
                added = [where for where in await self._all_partitions() if where not in known]
                if added:
                    await self._add(added, is_new=True)
            except HeadraceError as error:
                log.debug("the topics could not be looked up: %s", error)

    def _running_or_raise_closed(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed")

    def _running(self) -> Fetcher:
        self._running_or_raise_closed()
        assert self._fetcher is not None
        return self._fetcher

    async def __aenter__(self) -> Consumer:
        try:
            await self._start()
        except BaseException:
            await self._shut()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:  # Cancelled or interrupted: don't wait for the brokers.
            await self._shut()

    async def close(self) -> None:
        """Commits what is finished (with `auto_commit`) and gives up all connections; harmless when
        closed already. The record in hand is not finished: `commit` before closing if it is."""
        commits = self._settings.group is not None and self._settings.auto_commit
        if commits and self._is_started and not self._is_closed:
            try:
                await self._commit_finished(timeout=self._connection.request_timeout)
            except HeadraceError as error:
                log.warning("offsets could not be committed at close: %s", error)
        await self._shut()

    async def _shut(self) -> None:
        self._is_closed = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._handout is not None:
            self._handout.cut()
        for part in (self._fetcher, self._view, self._client):
            if part is not None:
                await part.close()


def _checked_offset(offset: int) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise InvalidRequest(f"an offset is a whole number of at least 0, got {offset!r}")
    return offset
