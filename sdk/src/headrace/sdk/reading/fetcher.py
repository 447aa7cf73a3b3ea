"""The consumer's inner side: long polls to brokers, buffers per partition, what failures mean.

`pump` looks at all partitions and asks for what is missing; it runs whenever something changed (an
answer, a batch handed out, a seek, a retry's time). A few polls are parked at each broker, each
with other partitions. One partition's trouble never holds up another's records:

    retriable        tried again with backoff, meanwhile shown in `problems`
    fatal for it     raised once to whoever reads, the partition stops until a seek
    whole request    all its partitions back off; who may not read is told so
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from headrace.protocol import batch as batches
from headrace.protocol import framing, routes
from headrace.protocol.errors import (
    Closed,
    CorruptBatch,
    HeadraceError,
    InternalError,
    OffsetOutOfRange,
    TopicNotFound,
    from_code,
)
from headrace.protocol.ids import TopicPartition
from headrace.protocol.requests import (
    BATCH_MEDIA_TYPE,
    READ_UNCOMMITTED,
    FetchRequest,
    FetchResponse,
    FetchResult,
)
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView, TopicView
from headrace.sdk.core.positions import PartitionState, is_fetchable, plan_fetch
from headrace.sdk.offsets import ask, query_for
from headrace.sdk.settings import ConsumerSettings
from headrace.sdk.tasks import Tasks

log = logging.getLogger("headrace.sdk.consumer")
_response_decoder = msgspec.msgpack.Decoder(FetchResponse)


SHORT_BYTES = 64 << 10
"""An answer up to this goes to the program before the next question goes to the broker: at the end
of a log the record is what matters, and a question costs 0.1 ms. After a longer answer the broker
is better at work while the program decodes."""


class _Poll:
    """One request under way. `versions` are the partitions' when it left."""

    __slots__ = ("started_at", "states", "task", "versions")

    task: asyncio.Task[None]

    def __init__(self, states: list[PartitionState], started_at: float) -> None:
        self.states = states
        self.versions = [state.version for state in states]
        self.started_at = started_at


class Fetcher:
    """Keeps the buffers of the assigned partitions filled; one loop."""

    def __init__(self, client: Client, view: ClusterView, settings: ConsumerSettings) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self._client = client
        self._view = view
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._polls: dict[str, list[_Poll]] = {}
        self._tasks = Tasks()
        self._refreshing: set[str] = set()
        self._resolving = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._waiters: list[asyncio.Future[None]] = []
        self._is_closed = False

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self, timeout: float | None) -> None:
        """Returns when something has arrived or failed, or after `timeout` seconds."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        timer = None if timeout is None else self._loop.call_later(timeout, _finish, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Lets all who wait look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _finish(waiter)

    # --- asking ----------------------------------------------------------------------------------

    def pump_soon(self) -> None:
        """Plans `pump` for the loop's next turn, once."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._pump_planned)

    def _pump_planned(self) -> None:
        self._is_scheduled = False
        self.pump()

    def pump(self) -> None:
        """Asks for whatever is missing."""
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._loop.time()
        room = self._settings.prefetch_bytes - sum(s.buffered_bytes for s in self.states.values())
        wanted: dict[str, list[PartitionState]] = {}
        wake_at = float("inf")
        for state in self.states.values():
            if state.retry_at > now:
                wake_at = min(wake_at, state.retry_at)
            if room > 0 and is_fetchable(
                state, now=now, partition_bytes=self._settings.partition_bytes
            ):
                url = self._view.url_of(*state.owner)
                if url is None:
                    self._delay(state, _nobody_leads(state.owner))
                    self._refresh_soon(state.owner.topic)
                    wake_at = min(wake_at, state.retry_at)
                else:
                    wanted.setdefault(url, []).append(state)
        for url, states in wanted.items():
            self._ask(url, states, now)
        if any(self._is_unresolved(state, now) for state in self.states.values()):
            self._resolve_soon()
        if wake_at < float("inf"):
            self._timer = self._loop.call_at(wake_at, self.pump)

    def _ask(self, url: str, states: list[PartitionState], now: float) -> None:
        polls = self._polls.setdefault(url, [])
        if len(polls) >= self._settings.polls_per_broker:
            oldest = polls.pop(0)
            oldest.task.cancel()
            for state, version in zip(oldest.states, oldest.versions, strict=True):
                if state.version == version and self.states.get(state.owner) is state:
                    state.is_fetching = False
                    states = [*states, state]
            states = [state for state in states if not state.is_paused]
        plan = plan_fetch(
            states,
            partition_bytes=self._settings.partition_bytes,
            fetch_bytes=self._settings.fetch_bytes,
        )
        for state in plan.states:
            state.is_fetching = True
        request = FetchRequest(
            max_wait_ms=round(self._settings.max_wait * 1000),
            min_bytes=self._settings.min_bytes,
            max_bytes=self._settings.fetch_bytes,
            isolation=READ_UNCOMMITTED,
            parts=plan.parts,
        )
        poll = _Poll(plan.states, now)
        poll.task = self._tasks.spawn(self._poll(url, poll, request))
        polls.append(poll)

    async def _poll(self, url: str, poll: _Poll, request: FetchRequest) -> None:
        error: HeadraceError
        is_short = True
        try:
            response = await self._client.send(
                url,
                "POST",
                routes.FETCH,
                body=(framing.head(request),),
                content_type=BATCH_MEDIA_TYPE,
                timeout=self._settings.max_wait + self._client.settings.request_timeout,
                is_direct=all(self._view.leads(url, *state.owner) for state in poll.states),
            )
            is_short = len(response.body) <= SHORT_BYTES
            answer, data = framing.split(response.body, _response_decoder)
            self._forget_poll(url, poll)
            self._accept(url, poll, answer.parts, data)
            if answer.throttle_ms > 0:
                self._rest(poll, answer.throttle_ms)
        except HeadraceError as failure:
            self._forget_poll(url, poll)
            self._request_failed(url, poll, failure)
        except Exception as failure:
            log.exception("reading from %s failed in an unforeseen way", url)
            error = InternalError(f"reading failed in an unforeseen way: {failure!r}")
            self._forget_poll(url, poll)
            self._request_failed(url, poll, error)
        if is_short:
            self.wake()
            self.pump()
        else:
            self.pump()
            self.wake()

    def _rest(self, poll: _Poll, throttle_ms: int) -> None:
        """The broker asks for a delay (byte rates): nothing is wrong, just not yet."""
        until = self._loop.time() + throttle_ms / 1000
        for state in poll.states:
            state.retry_at = max(state.retry_at, until)

    def _forget_poll(self, url: str, poll: _Poll) -> None:
        polls = self._polls.get(url, [])
        if poll in polls:
            polls.remove(poll)

    # --- answers ---------------------------------------------------------------------------------

    def _accept(self, url: str, poll: _Poll, results: list[FetchResult], data: memoryview) -> None:
        if len(results) != len(poll.states):
            raise InternalError("the broker answered for other partitions than were asked for")
        position = 0
        for state, version, result in zip(poll.states, poll.versions, results, strict=True):
            piece = data[position : position + result.length]
            position += result.length
            if state.version != version or self.states.get(state.owner) is not state:
                continue  # It was moved or taken away meanwhile.
            state.is_fetching = False
            if result.error is None:
                self._view.went_right(url, *state.owner)
                self._take_in(state, result, piece)
            else:
                self._part_failed(state, result)

    def _take_in(self, state: PartitionState, result: FetchResult, data: memoryview) -> None:
        state.attempts = 0
        state.problem = None
        state.high_watermark = result.high_watermark
        state.log_start_offset = result.log_start_offset
        try:
            for position, header in batches.walk(data):
                state.add(header, data[position : position + header.length])
        except CorruptBatch as error:
            # Where one batch ends and the next begins is lost; what came before it is good.
            error.details = {"first_offset": state.fetch_offset}
            if not state.buffer:
                state.fail(error)

    def _part_failed(self, state: PartitionState, result: FetchResult) -> None:
        topic, partition = state.owner
        message = f"{topic}/{partition}: {result.message or result.error}"
        error = from_code(result.error or "internal", message)
        if error.code == "offset_out_of_range":
            self._out_of_range(state, error)
        elif error.code == "topic_not_found" or error.retriable:
            self._delay(state, error)
            self._refresh_soon(topic)
        else:
            state.fail(error)

    def _out_of_range(self, state: PartitionState, error: HeadraceError) -> None:
        if state.buffer:  # What is there is good; the question comes again behind it.
            self._delay(state, error)
            return
        reset = self._settings.offset_reset
        offset = state.fetch_offset
        if reset == "error":
            state.fail(
                OffsetOutOfRange(
                    f"{error.message}; seek to another offset, or choose offset_reset='earliest'"
                    " or 'latest'",
                    details={"offset": offset},
                )
            )
            return
        log.warning("%s: offset %s is out of range, going to %s", state.owner, offset, reset)
        state.forget()
        state.position = state.finished = state.fetch_offset = None
        state.start = reset

    def _request_failed(self, url: str, poll: _Poll, error: HeadraceError) -> None:
        has_detour = self._view.went_wrong(url, error)
        for state, version in zip(poll.states, poll.versions, strict=True):
            if state.version != version or self.states.get(state.owner) is not state:
                continue
            state.is_fetching = False
            if has_detour:
                continue
            if error.retriable or error.code == "internal":
                self._delay(state, error)
                self._refresh_soon(state.owner.topic)
            else:
                state.fail(error)

    def _delay(self, state: PartitionState, error: HeadraceError) -> None:
        state.attempts += 1
        state.problem = error
        now = self._loop.time()
        at = self._client.next_try(error, attempt=state.attempts, now=now)
        state.retry_at = now + self._client.backoff.max_ms / 1000 if at is None else at

    # --- starting offsets ------------------------------------------------------------------------

    def _is_unresolved(self, state: PartitionState, now: float) -> bool:
        return state.start is not None and state.failure is None and state.retry_at <= now

    def _resolve_soon(self) -> None:
        if not self._resolving:
            self._resolving = True
            self._tasks.spawn(self._resolve_waiting())

    async def _resolve_waiting(self) -> None:
        now = self._loop.time()
        states = [state for state in self.states.values() if self._is_unresolved(state, now)]
        try:
            await self.resolve(states)
        except HeadraceError as error:
            for state in states:
                if state.start is not None:
                    self._delay(state, error)
        finally:
            self._resolving = False
            self.pump()
            self.wake()

    async def resolve(self, states: list[PartitionState]) -> None:
        """Turns `start` into an offset for each of `states`. Partitions that can't tell now are
        asked again later, in the background: they don't hold up the others.

        Raises:
            HeadraceError: the cluster can't be asked at all.
        """
        versions = [state.version for state in states]
        queries = [query_for(state.owner, state.start) for state in states]
        timeout = self._settings.offset_retry_timeout
        answers = await ask(self._client, queries, timeout=timeout, repeat=False)
        for state, version, answer in zip(states, versions, answers, strict=True):
            if state.version != version:
                continue
            if answer.error is not None:
                error = answer.error.to_error()
                if error.retriable:
                    self._delay(state, error)
                else:
                    state.fail(error)
            elif answer.offset is None:  # No record is that late: the next one to come.
                state.start = "latest"
            else:
                state.move(answer.offset)

    # --- metadata --------------------------------------------------------------------------------

    def _refresh_soon(self, topic: str) -> None:
        if topic not in self._refreshing and not self._is_closed:
            self._refreshing.add(topic)
            self._tasks.spawn(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            before = self._view.known(topic)
            view = await self._view.refresh(topic)
            self.check_identity(view)
            for state in self._of_topic(topic):
                if before is not None and view.has_new_leader(before, state.owner.partition):
                    state.retry_at = 0.0
        except TopicNotFound as error:
            for state in self._of_topic(topic):
                state.fail(error)
        except HeadraceError as error:
            log.debug("the leaders of %s could not be looked up: %s", topic, error)
        finally:
            self._refreshing.discard(topic)
            self.pump_soon()
            self.wake()

    def check_identity(self, view: TopicView) -> None:
        """Stops the partitions of a topic that is another one by now."""
        for state in self._of_topic(view.name):
            if state.topic_id != view.topic_id and state.failure is None:
                state.fail(
                    TopicNotFound(
                        f"topic {view.name!r} was deleted and created again; its offsets mean"
                        " nothing in the new one. Make a new consumer to read that"
                    )
                )

    def _of_topic(self, topic: str) -> list[PartitionState]:
        return [state for state in self.states.values() if state.owner.topic == topic]

    def check_open(self) -> None:
        """Raises Closed after `close`."""
        if self._is_closed:
            raise Closed("the consumer is closed")

    async def close(self) -> None:
        """Ends all requests."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel()
        self.wake()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _nobody_leads(where: TopicPartition) -> HeadraceError:
    return from_code("partition_offline", f"nobody leads {where.topic}/{where.partition} now")
