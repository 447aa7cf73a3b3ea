"""The async consumer: what programs call. How records get here is in `reading`.

Nothing is asked of the cluster before the first use, which makes the session and starts it.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from itertools import islice
from operator import length_hint
from time import monotonic
from typing import Any

from headrace.protocol.errors import Closed, InvalidConfig, InvalidRequest
from headrace.protocol.ids import TopicPartition
from headrace.protocol.names import check_name
from headrace.protocol.record import Record
from headrace.sdk.client import Client
from headrace.sdk.core.positions import PartitionState, RawBatch
from headrace.sdk.offsets import Where
from headrace.sdk.reading.decoding import Decoder
from headrace.sdk.reading.group_reader import Call
from headrace.sdk.reading.session import Callbacks, Session
from headrace.sdk.reading.workers import Handler, Workers
from headrace.sdk.serializers import Deserializer, deserialize_with
from headrace.sdk.settings import (
    Assignor,
    ConnectionSettings,
    ConsumerSettings,
    Credentials,
    OffsetReset,
    OnCorrupt,
    Route,
    bootstrap_urls,
)
from headrace.sdk.transport import Transport

_DEFAULT = ConsumerSettings()
_CONNECTION = ConnectionSettings()
BREATH_S = 0.05
"""How long `async for` goes over records that are there without letting the loop do anything else:
a program that never awaits must not keep its heartbeats from being sent."""

BREATH_RECORDS = 16
"""Records between two looks at the clock, at most; one, where the program is slow."""

Partition = tuple[str, int]
Callback = Callable[["Consumer", Sequence[TopicPartition]], Awaitable[object] | object]
"""Called with the consumer and partitions; plain or async."""


class Consumer:
    """Reads topics. Use it as a context manager, from one task, on one event loop:

        async with Consumer("http://127.0.0.1:9420", "orders", group="billing") as consumer:
            async for record in consumer:
                print(record.topic, record.partition, record.offset, record.key, record.value)

    It reads all partitions of its topics (also those added later, from their beginning), or those
    given to `assign`. With a `group` it shares the partitions with the other members of that group,
    each partition being one member's at a time; it starts where the group committed, and commits
    what is finished: a record is finished once the next one is asked for. After a crash records may
    come again, none is left out.

    `on_assigned(consumer, partitions)` is called before the first record of partitions that came
    (and may seek), `on_revoked` before they go (and may commit), `on_lost` (else `on_revoked`) when
    they are gone already. They may be plain or async; what they raise ends the consumer.

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
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        broadcast: bool = _DEFAULT.broadcast,
        pattern: str | None = _DEFAULT.pattern,
        instance_id: str | None = _DEFAULT.instance_id,
        rack: str | None = _DEFAULT.rack,
        assignor: Assignor = _DEFAULT.assignor,
        session_timeout: float = _DEFAULT.session_timeout,
        rebalance_timeout: float = _DEFAULT.rebalance_timeout,
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
            broadcast=broadcast,
            pattern=pattern,
            instance_id=instance_id,
            rack=rack,
            assignor=assignor,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
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
        if self._settings.pattern is not None and topics:
            raise InvalidConfig("topics and pattern= exclude one another")
        if self._settings.offsets_group is not None:
            check_name(self._settings.offsets_group, kind="group")
        self._callbacks = Callbacks(
            self._bound(on_assigned), self._bound(on_revoked), self._bound(on_lost)
        )
        self._decoder = Decoder(
            load_key=deserialize_with(key_deserializer, name="key_deserializer"),
            load_value=deserialize_with(value_deserializer, name="value_deserializer"),
        )
        self._session: Session | None = None
        self._started: Session | None = None
        self._is_closed = False

    def _bound(self, callback: Callback | None) -> Call | None:
        if callback is None:
            return None
        chosen = callback
        return lambda partitions: chosen(self, partitions)

    # --- reading ---------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Record]:
        """The records, as they come, for ever. Within a partition in order.

        Raises:
            HeadraceError: see the class; iterating again goes on with the other partitions.
        """
        while True:
            records = await self.next_records()
            handouts, breathe_at, count = self._opened().handouts, monotonic() + BREATH_S, 1
            while length_hint(records):
                for record in islice(records, count):
                    yield record
                if monotonic() < breathe_at:
                    count = min(2 * count, BREATH_RECORDS)
                else:
                    await handouts.breathe()
                    breathe_at, count = monotonic() + BREATH_S, 1

    async def next_records(self) -> Iterator[Record]:
        """Waits for records and gives an iterator over some of them, in one partition: what `async
        for` is made of, for programs (and the sync facade) that loop by themselves. Each record is
        finished when the next is taken, the last one by the next call."""
        session = self._started or await self._start()
        return await session.handouts.next_iterator()

    async def fetch(self, max_records: int = 500, timeout: float | None = None) -> list[Record]:
        """Up to `max_records` records; waits up to `timeout` seconds (None: for ever) for the first
        and not at all for more. An empty list means that the time is over.

        All of the list is finished at the next call.

        Raises:
            HeadraceError: see the class.
        """
        if max_records < 1:
            raise InvalidRequest(f"max_records= must be at least 1, got {max_records}")
        session = self._started or await self._start()
        return await session.handouts.fetch(max_records, timeout)

    async def fetch_batches(
        self, max_bytes: int = 1 << 20, timeout: float | None = None
    ) -> list[RawBatch]:
        """As `fetch`, but whole batches, not decoded: for programs that read columns
        (`headrace.protocol.batch.decode_columns`). Records before a batch's `first_offset` are to
        be skipped. At least one batch, then up to about `max_bytes`."""
        session = await self._start()
        return await session.handouts.fetch_batches(max_bytes, timeout)

    async def run(self, handler: Handler, concurrency: int = 8) -> None:
        """Calls `handler(record)` for every record, up to `concurrency` at a time, until it raises
        or the call is cancelled. Records of one key (in one partition) are handled in order, one
        after another; those without a key in any order. The handler may be async or plain.

        Only handled records are committed. A handler's exception ends `run` and is raised.
        """
        session = await self._start()
        progress = session.progress
        progress.is_by_hand = True
        workers = Workers(handler, max(concurrency, 1), progress.finish_by_hand)
        progress.has_unhandled = workers.has_unhandled
        try:
            await workers.run(self.next_records, session.state_of)
        finally:
            if not self._is_closed:
                progress.rewind(session.fetcher.states.values())
            progress.is_by_hand = False

    # --- assignment ------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions being read; empty before the first use."""
        return frozenset(state.owner for state in self._states())

    @property
    def problems(self) -> dict[TopicPartition, Exception]:
        """Partitions that give nothing at the moment, and why."""
        found = {state.owner: state.failure or state.problem for state in self._states()}
        return {where: error for where, error in found.items() if error is not None}

    async def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Reads these topics, or those whose whole name the pattern matches, instead of those
        before; partitions of both go on where they are. In a group the others get what is given up
        here, and what is new comes as the group gives it: the callbacks tell.

        Raises:
            TopicNotFound: there is no such topic; nothing has changed.
            InvalidConfig: both or neither, or a pattern without a group.
        """
        names = tuple(check_name(topic, kind="topic") for topic in topics)
        if bool(names) == (pattern is not None):
            raise InvalidConfig("subscribe() takes topics or pattern=, one of them")
        session = self._opened()
        await session.subscribe(names, pattern)
        await self._start()

    async def assign(self, partitions: Iterable[Partition]) -> None:
        """Reads exactly these partitions from now on, starting as the class says. Those that were
        read before stay where they are.

        Raises:
            TopicNotFound, PartitionNotFound: there is no such place.
        """
        wanted = {TopicPartition(*where) for where in partitions}
        self._opened().forget_topics()
        session = await self._start()
        await session.leave()
        session.progress.give_back()
        await session.subscription.replace(wanted)

    def _states(self) -> list[PartitionState]:
        return [] if self._session is None else list(self._session.fetcher.states.values())

    # --- positions -------------------------------------------------------------------------------

    async def seek(self, partition: Partition, to: Where) -> None:
        """Goes on at an offset, at `"earliest"`, at `"latest"`, or (a datetime) at the first record
        at or after a time. Takes effect at once, also on what was read ahead.

        Raises:
            PartitionNotFound: it is not assigned.
            HeadraceError: the place can't be looked up.
        """
        session = await self._start()
        await session.seek([session.state_at(partition)], to)

    async def seek_to_earliest(self, *partitions: Partition) -> None:
        """Goes to the first record there is, in all assigned partitions or the given ones."""
        session = await self._start()
        await session.seek(session.chosen(partitions), "earliest")

    async def seek_to_latest(self, *partitions: Partition) -> None:
        """Goes behind the last record, in all assigned partitions or the given ones."""
        session = await self._start()
        await session.seek(session.chosen(partitions), "latest")

    async def seek_to_time(self, time: datetime, *partitions: Partition) -> None:
        """Goes to the first record at or after `time`, in all assigned partitions or the given
        ones; behind the last where there is none."""
        session = await self._start()
        await session.seek(session.chosen(partitions), time)

    async def position(self, partition: Partition) -> int | None:
        """The offset of the next record that will be handed out; None while it isn't known (the
        partition can't be asked, see `problems`)."""
        session = await self._start()
        return session.progress.position_of(session.state_at(partition))

    async def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each assigned partition's position is behind its end, asked now.

        Raises:
            HeadraceError: a partition can't be asked.
        """
        session = await self._start()
        states, position_of = session.fetcher.states, session.progress.position_of
        ends = await session.places_of(list(states), "latest")
        return {
            where: max(0, end - (position_of(states[where]) or 0))
            for where, end in ends.items()
            if where in states
        }

    async def pause(self, *partitions: Partition) -> None:
        """Hands out nothing of the given partitions (none given: of all) until `resume`."""
        session = await self._start()
        for state in session.chosen(partitions):
            state.is_paused = True
            session.progress.pause(state)

    async def resume(self, *partitions: Partition) -> None:
        """Undoes `pause`."""
        session = await self._start()
        for state in session.chosen(partitions):
            state.is_paused = False
        session.fetcher.pump()
        session.fetcher.wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(state.owner for state in self._states() if state.is_paused)

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
        session = await self._start()
        if offsets is None:
            chosen = session.progress.finish_all(session.fetcher.states.values())
        else:
            chosen = {TopicPartition(*where): at for where, at in offsets.items()}
        await session.commits.commit(chosen, metadata=metadata)

    async def committed(self, *partitions: Partition) -> dict[TopicPartition, int | None]:
        """The group's committed offsets of the given partitions (none given: of the assigned), None
        where there is none, asked now.

        Raises:
            InvalidRequest: the consumer has no group.
        """
        session = await self._start()
        if self._settings.offsets_group is None:
            raise InvalidRequest("only a consumer with group= has committed offsets")
        found = await session.commits.load()
        wanted = [TopicPartition(*where) for where in partitions] or sorted(self.assignment)
        return {where: found[where][1] if where in found else None for where in wanted}

    # --- life ------------------------------------------------------------------------------------

    async def _start(self) -> Session:
        """The session at work (`_started` is the same without a call, for the hot path)."""
        if self._started is None:
            await self._opened().start()
            self._started = self._opened()
        return self._started

    def _opened(self) -> Session:
        if self._is_closed:
            raise Closed("the consumer is closed")
        if self._session is None:
            client = Client(self._bootstrap, self._connection, self._transport)
            self._session = Session(
                client, self._topics, self._settings, self._decoder, self._callbacks
            )
        return self._session

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
        if self._session is not None and not self._is_closed:
            await self._session.commit_last()
        await self._shut()

    async def _shut(self) -> None:
        self._is_closed = True
        self._started = None
        if self._session is not None:
            await self._session.close()
