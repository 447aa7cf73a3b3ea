"""The in-memory cluster's state and its answers to the paths of the HTTP API.

Handlers are plain functions under one lock, so clients of several threads and loops (the sync
facade's, a test's) may share a cluster; only a long poll awaits, and it is woken across loops.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from headrace.protocol import framing, models, routes
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import (
    BrokerNotFound,
    ClientError,
    ConnectionFailed,
    GroupNotFound,
    HeadraceError,
    InvalidConfig,
    InvalidRequest,
    NotLeader,
    PartitionNotFound,
    PartitionOffline,
    PathNotFound,
    RequestTimedOut,
    TopicExists,
    TopicNotFound,
)
from headrace.protocol.ids import TopicId, new_topic_id
from headrace.protocol.names import check_name, check_user_topic
from headrace.protocol.record import Record
from headrace.protocol.requests import (
    FetchPart,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ProducePart,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from headrace.sdk.testing.faults import Fault, Faults
from headrace.sdk.testing.memory_groups import (
    MemoryCommit,
    MemoryGroups,
    Place,
    owned_topics,
)
from headrace.sdk.testing.memory_log import MemoryLog
from headrace.sdk.transport import Response, Transport

T = TypeVar("T")
REQUESTS_KEPT = 10_000
"""How many of the last requests `InMemoryCluster.requests` remembers."""

_ADDRESS = re.compile(r"(memory://[0-9a-f]+)(?:/b(\d+))?(/.*)")
_HEARTBEAT = re.compile(routes.GROUP_HEARTBEAT.replace("{group}", "(?P<group>[^/]+)"))
_LOOK_S = 0.1
"""How soon a waiting heartbeat notices that another member's session is over."""
_clusters: weakref.WeakValueDictionary[str, InMemoryCluster] = weakref.WeakValueDictionary()
_CONFIG_DEFAULTS: dict[str, models.ConfigValue] = {
    "max.message.bytes": 1_048_588,
    "compression.type": "producer",
    "retention.ms": 604_800_000,
    "retention.bytes": -1,
    "cleanup.policy": "delete",
    "min.insync.replicas": 1,
}


@dataclass(slots=True)
class _Topic:
    name: str
    topic_id: TopicId
    logs: list[MemoryLog]
    leaders: list[int | None]
    config: dict[str, models.ConfigValue] = field(default_factory=dict)

    def setting(self, key: str) -> Any:
        return self.config.get(key, _CONFIG_DEFAULTS[key])


class _Call(NamedTuple):
    """A request, taken apart. `broker` is None for the bootstrap address, which forwards all."""

    broker: int | None
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes

    def decoded(self, form: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body, type=form)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body is not of the documented form: {error}") from error


class InMemoryCluster:
    """A cluster in this process. Give its `url` to any client as the bootstrap address.

    Args:
        brokers: how many there are; partition p of a topic is led by broker p modulo that.
        now_ms: the clock of append and commit times.
    """

    def __init__(
        self, *, brokers: int = 1, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self.url = f"memory://{secrets.token_hex(8)}"
        self.requests: deque[tuple[str, str]] = deque(maxlen=REQUESTS_KEPT)
        self._now_ms = now_ms
        self._brokers = brokers
        self._unreachable: set[int] = set()
        self._offline: set[tuple[str, int]] = set()
        self._topics: dict[str, _Topic] = {}
        self._groups = MemoryGroups(self._places, time.monotonic)
        self._faults = Faults()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._lock = threading.RLock()
        self._routes = self._table()
        _clusters[self.url] = self

    async def __aenter__(self) -> InMemoryCluster:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the cluster: its address leads nowhere from then on."""
        _clusters.pop(self.url, None)
        self._unreachable = {*range(self._brokers), -1}
        self._wake()

    # --- for tests: state ------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 6,
        config: Mapping[str, models.ConfigValue] | None = None,
    ) -> None:
        """Makes a topic without going through Admin.

        Raises:
            TopicExists, InvalidName, InvalidConfig: as the API does.
        """
        with self._lock:
            self._create(models.TopicCreate(name, partitions, None, dict(config or {})))

    def delete_topic(self, name: str) -> None:
        """Removes a topic without going through Admin."""
        with self._lock:
            del self._topics[self._topic(name).name]
            self._wake()

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """What is in a topic (by partition, then offset) or in one of its partitions."""
        with self._lock:
            logs = self._topic(topic).logs
            chosen = logs if partition is None else [logs[partition]]
            return [record for log in chosen for record in log.records()]

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """A group's committed offsets by topic and partition."""
        with self._lock:
            names = {topic.topic_id: topic.name for topic in self._topics.values()}
            return {
                (names[topic_id], partition): commit.offset
                for (topic_id, partition), commit in self._offsets_of(group).items()
                if topic_id in names
            }

    def expire_members(self, group: str) -> None:
        """Ends the sessions of a group's members, as a long silence does."""
        with self._lock:
            for member in self._groups.of(group).members.values():
                member.seen_at = -1e9
            self._wake()

    def log(self, topic: str, partition: int) -> MemoryLog:
        """One partition's log, for tests that look at or damage batches."""
        return self._topic(topic).logs[partition]

    # --- for tests: failures ---------------------------------------------------------------------

    def inject(
        self,
        error: HeadraceError,
        *,
        path: str = routes.PRODUCE,
        method: str = "POST",
        times: int = 1,
        applied: bool = False,
        partition: tuple[str, int] | None = None,
    ) -> None:
        """Makes the next `times` requests of `method` and `path` fail.

        A `ClientError` or `RequestTimedOut` is raised by the transport (a lost connection, no
        answer); other errors are answered as brokers do, with `Retry-After` if they have it. With
        `applied` the request has had its effect. With `partition` only that part of a produce or
        fetch fails.

            cluster.inject(RequestTimedOut("no answer"), applied=True)
            cluster.inject(Throttled("slow down", retry_after_ms=100), times=2)
        """
        with self._lock:
            self._faults.add(Fault(error, method, path, times, applied, partition))
            self._wake()

    def clear_faults(self) -> None:
        """Forgets injected failures that have not happened yet."""
        with self._lock:
            self._faults.clear()

    def set_reachable(self, broker: int, reachable: bool) -> None:
        """Whether a broker's own address can be reached (the bootstrap address always can)."""
        with self._lock:
            (self._unreachable.discard if reachable else self._unreachable.add)(broker)
            self._wake()

    def set_leader(self, topic: str, partition: int, broker: int | None) -> None:
        """Moves a partition's leadership; None: nobody leads it."""
        with self._lock:
            self._topic(topic).leaders[partition] = broker
            self._wake()

    def set_offline(self, topic: str, partition: int, offline: bool) -> None:
        """Whether a partition's log can't be used."""
        with self._lock:
            key = (topic, partition)
            (self._offline.add if offline else self._offline.discard)(key)
            self._wake()

    # --- the transport ---------------------------------------------------------------------------

    def transport(self) -> Transport:
        """A transport to this cluster, for `transport=` of the clients; `url` does the same."""
        return _MemoryTransport(self)

    async def answer(
        self, method: str, url: str, body: Sequence[Buffer], timeout: float
    ) -> Response:
        """What the cluster answers to one HTTP request.

        Raises:
            ConnectionFailed, RequestTimedOut: as a transport does.
        """
        found = _ADDRESS.fullmatch(url)
        if found is None or found[1] != self.url:
            raise ConnectionFailed(f"there is no cluster at {url}", details={"sent": False})
        broker = None if found[2] is None else int(found[2])
        if (broker if broker is not None else -1) in self._unreachable:
            raise ConnectionFailed(f"{url} can't be reached", details={"sent": False})
        parts = urlsplit(found[3])
        self.requests.append((method, parts.path))
        with self._lock:
            fault = self._faults.take(method, parts.path)
        if fault is not None and not fault.applied:
            return _failed(fault.error)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        call = _Call(broker, {}, query, b"".join(body))
        try:
            async with asyncio.timeout(timeout):
                response = await self._handle(method, parts.path, call)
        except TimeoutError as error:
            raise RequestTimedOut(f"{url} did not answer", details={"sent": True}) from error
        return response if fault is None else _failed(fault.error)

    async def _handle(self, method: str, path: str, call: _Call) -> Response:
        try:
            if (method, path) == ("POST", routes.FETCH):
                return await self._fetch(call)
            if method == "POST" and (beating := _HEARTBEAT.fullmatch(path)) is not None:
                return await self._heartbeat(unquote(beating["group"]), call)
            for verb, pattern, handler in self._routes:
                found = pattern.fullmatch(path)
                if found is not None and verb == method:
                    named = {name: unquote(value) for name, value in found.groupdict().items()}
                    with self._lock:
                        return handler(call._replace(path=named))
            raise PathNotFound(f"there is no {method} {path}")
        except HeadraceError as error:
            return _failed(error)

    def _table(self) -> list[tuple[str, re.Pattern[str], Callable[[_Call], Response]]]:
        rows: list[tuple[str, str, Callable[[_Call], Response]]] = [
            ("GET", routes.CLUSTER, self._describe_cluster),
            ("GET", routes.BROKERS, lambda _: _json(models.BrokerList(self._broker_infos()))),
            ("GET", routes.BROKER, self._describe_broker),
            ("GET", routes.TOPICS, self._list_topics),
            ("POST", routes.TOPICS, self._create_topic),
            ("GET", routes.TOPIC, lambda call: _json(self._info(self._topic(call.path["topic"])))),
            ("PATCH", routes.TOPIC, self._alter_topic),
            ("DELETE", routes.TOPIC, self._delete_topic),
            ("POST", routes.PRODUCE, self._produce),
            ("POST", routes.OFFSETS, self._list_offsets),
            ("POST", routes.DELETE_RECORDS, self._delete_records),
            ("GET", routes.GROUPS, self._list_groups),
            ("GET", routes.GROUP, self._describe_group),
            ("DELETE", routes.GROUP, self._delete_group),
            ("GET", routes.GROUP_OFFSETS, self._group_offsets),
            ("POST", routes.GROUP_OFFSETS, self._commit),
        ]
        return [
            (method, re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)), handler)
            for method, path, handler in rows
        ]

    # --- cluster and topics ----------------------------------------------------------------------

    def _broker_infos(self) -> list[models.BrokerInfo]:
        return [
            models.BrokerInfo(id=broker, url=self._url_of(broker), state="running")
            for broker in range(self._brokers)
        ]

    def _url_of(self, broker: int) -> str:
        return self.url if self._brokers == 1 else f"{self.url}/b{broker}"

    def _describe_cluster(self, _: _Call) -> Response:
        partitions = sum(len(topic.logs) for topic in self._topics.values())
        return _json(
            models.ClusterInfo("memory", 0, self._broker_infos(), 1, len(self._topics), partitions)
        )

    def _describe_broker(self, call: _Call) -> Response:
        broker = int(call.path["broker_id"]) if call.path["broker_id"].isdecimal() else -1
        if not 0 <= broker < self._brokers:
            raise BrokerNotFound(f"no broker {call.path['broker_id']} is registered")
        led = sum(topic.leaders.count(broker) for topic in self._topics.values())
        return _json(
            models.BrokerDetail(
                id=broker,
                url=self._url_of(broker),
                state="running",
                session=1,
                generation=[1],
                led_partitions=led,
                offline_partitions=len(self._offline),
                disk_free_bytes=1 << 40,
                disk_reserve_bytes=0,
                storage_full=False,
            )
        )

    def _topic(self, name: str) -> _Topic:
        check_name(name, kind="topic")
        found = self._topics.get(name)
        if found is None:
            raise TopicNotFound(f"there is no topic {name!r}; create it first")
        return found

    def _create(self, asked: models.TopicCreate) -> _Topic:
        check_user_topic(asked.name)
        _check_config(asked.config)
        if asked.name in self._topics:
            raise TopicExists(f"topic {asked.name!r} is there already")
        made = _Topic(asked.name, new_topic_id(), [], [], dict(asked.config))
        self._grow(made, asked.partitions or 6)
        self._topics[asked.name] = made
        return made

    def _grow(self, topic: _Topic, partitions: int) -> None:
        for partition in range(len(topic.logs), partitions):
            topic.logs.append(MemoryLog(topic.name, partition))
            topic.leaders.append(partition % self._brokers)

    def _info(self, topic: _Topic) -> models.TopicInfo:
        parts = [
            models.PartitionInfo(
                partition=log.partition,
                leader=leader,
                leader_epoch=0,
                replicas=[log.partition % self._brokers],
                isr=[log.partition % self._brokers],
                log_start_offset=log.start_offset,
                high_watermark=log.end_offset,
                size_bytes=log.size_bytes,
            )
            for log, leader in zip(topic.logs, topic.leaders, strict=True)
        ]
        config = {
            key: models.ConfigEntry(
                topic.setting(key), "topic" if key in topic.config else "default"
            )
            for key in _CONFIG_DEFAULTS
        }
        return models.TopicInfo(topic.name, topic.topic_id.hex(), False, 1, config, parts)

    def _list_topics(self, _: _Call) -> Response:
        found = [
            models.TopicSummary(topic.name, topic.topic_id.hex(), False, len(topic.logs), 1)
            for _, topic in sorted(self._topics.items())
        ]
        return _json(models.TopicList(found))

    def _create_topic(self, call: _Call) -> Response:
        return _json(self._info(self._create(call.decoded(models.TopicCreate))), status=201)

    def _alter_topic(self, call: _Call) -> Response:
        asked = call.decoded(models.TopicAlter)
        topic = self._topic(call.path["topic"])
        given = {key: value for key, value in asked.config.items() if value is not None}
        _check_config(dict.fromkeys(asked.config, 0) | given)
        if asked.replicas not in (None, 1):
            raise InvalidConfig("the cluster in memory is one broker: there is one replica")
        if asked.partitions is not None and asked.partitions < len(topic.logs):
            raise InvalidRequest(f"topic {topic.name!r} has {len(topic.logs)} partitions already")
        kept = {key: value for key, value in topic.config.items() if key not in asked.config}
        topic.config = {**kept, **given}
        self._grow(topic, asked.partitions or 0)
        return _json(self._info(topic))

    def _delete_topic(self, call: _Call) -> Response:
        topic = self._topic(call.path["topic"])
        self.delete_topic(topic.name)
        return _json(models.TopicDeleted(topic.topic_id.hex()))

    # --- records ---------------------------------------------------------------------------------

    def _find(
        self, topic_id: bytes, partition: int, broker: int | None
    ) -> tuple[_Topic, MemoryLog]:
        for topic in self._topics.values():
            if topic.topic_id == topic_id:
                return topic, self._usable(topic, partition, broker)
        raise TopicNotFound(f"there is no topic with id {topic_id.hex()}")

    def _usable(self, topic: _Topic, partition: int, broker: int | None) -> MemoryLog:
        if not 0 <= partition < len(topic.logs):
            raise PartitionNotFound(f"topic {topic.name!r} has no partition {partition}")
        leader = topic.leaders[partition]
        if (topic.name, partition) in self._offline or leader is None:
            raise PartitionOffline(f"{topic.name}/{partition} is offline")
        if broker is not None and leader != broker:
            raise NotLeader(f"broker {leader} leads {topic.name}/{partition}, not {broker}")
        return topic.logs[partition]

    def _part_fault(self, path: str, topic_id: bytes, partition: int) -> Fault | None:
        for topic in self._topics.values():
            if topic.topic_id == topic_id:
                return self._faults.take("POST", path, (topic.name, partition))
        return None

    def _produce(self, call: _Call) -> Response:
        request, data = framing.split(call.body, msgspec.msgpack.Decoder(ProduceRequest))
        if sum(part.length for part in request.parts) != len(data):
            raise InvalidRequest("the parts' lengths don't add up to the body's")
        results, position = [], 0
        for part in request.parts:
            piece = data[position : position + part.length]
            position += part.length
            results.append(self._append(part, piece, call.broker))
        self._wake()
        return Response(200, {}, framing.head(ProduceResponse(0, results)))

    def _append(self, part: ProducePart, data: memoryview, broker: int | None) -> ProduceResult:
        result = ProduceResult(part.topic_id, part.partition)
        fault = self._part_fault(routes.PRODUCE, part.topic_id, part.partition)
        try:
            if fault is not None and not fault.applied:
                raise fault.error
            topic, log = self._find(part.topic_id, part.partition, broker)
            base_offset, append_time_ms = log.append(
                data, now_ms=self._now_ms(), bytes_max=int(topic.setting("max.message.bytes"))
            )
            if fault is not None:
                raise fault.error
        except HeadraceError as error:
            result.error, result.message = error.code, error.message
        else:
            result.base_offset, result.append_time_ms = base_offset, append_time_ms
            result.log_start_offset = log.start_offset
        return result

    async def _fetch(self, call: _Call) -> Response:
        request, _ = framing.split(call.body, msgspec.msgpack.Decoder(FetchRequest))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        while True:
            with self._lock:
                results, pieces, is_urgent = self._look(request, call.broker)
                size = sum(map(len, pieces))
                left_s = deadline - loop.time()
                if is_urgent or size >= request.min_bytes or left_s <= 0:
                    head = framing.head(FetchResponse(0, results))
                    return Response(200, {}, b"".join([head, *pieces]))
                waiter = self._waiter()
            await self._woken(left_s, waiter)

    def _waiter(self) -> tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]:
        loop = asyncio.get_running_loop()
        waiter = (loop, loop.create_future())
        self._waiters.add(waiter)
        return waiter

    async def _woken(
        self,
        timeout: float,
        waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None,
    ) -> None:
        """Waits for anything to change. A waiter made under the lock misses nothing."""
        waiter = waiter or self._waiter()
        try:
            await asyncio.wait([waiter[1]], timeout=timeout)
        finally:
            self._waiters.discard(waiter)
        if -1 in self._unreachable:
            raise ConnectionFailed("the cluster was closed", details={"sent": True})

    def _look(
        self, request: FetchRequest, broker: int | None
    ) -> tuple[list[FetchResult], list[bytes], bool]:
        results: list[FetchResult] = []
        pieces: list[bytes] = []
        room, is_urgent = request.max_bytes, False
        for part in request.parts:
            result, found = self._look_at(part, room, broker)
            room -= result.length
            results.append(result)
            pieces += found
            is_urgent |= result.error is not None or 0 <= part.until <= part.offset
        return results, pieces, is_urgent

    def _look_at(
        self, part: FetchPart, room: int, broker: int | None
    ) -> tuple[FetchResult, list[bytes]]:
        result = FetchResult(part.topic_id, part.partition)
        fault = self._part_fault(routes.FETCH, part.topic_id, part.partition)
        found: list[bytes] = []
        try:
            if fault is not None:
                raise fault.error
            _, log = self._find(part.topic_id, part.partition, broker)
            if room > 0:
                found = log.read(part.offset, bytes_max=min(part.max_bytes, room), until=part.until)
        except HeadraceError as error:
            result.error, result.message = error.code, error.message
        else:
            result.high_watermark = result.last_stable_offset = log.end_offset
            result.log_start_offset = log.start_offset
            result.leader_epoch = 0
            result.length = sum(map(len, found))
        return result, found

    def _wake(self) -> None:
        """Lets long polls look again, each on its own loop."""
        for loop, future in list(self._waiters):
            try:
                loop.call_soon_threadsafe(_finish, future)
            except RuntimeError:  # That loop is closed; its poll is gone with it.
                self._waiters.discard((loop, future))

    # --- offsets and groups ----------------------------------------------------------------------

    def _list_offsets(self, call: _Call) -> Response:
        asked = call.decoded(models.OffsetsRequest)
        return _json(models.OffsetsAnswer([self._offset(query) for query in asked.queries]))

    def _offset(self, query: models.OffsetQuery) -> models.OffsetAnswer:
        answer = models.OffsetAnswer(query.topic, query.partition, leader_epoch=0)
        try:
            log = self._usable(self._topic(query.topic), query.partition, None)
            if query.at == "earliest":
                answer.offset = log.start_offset
            elif query.at == "latest":
                answer.offset = log.end_offset
            elif query.at == "bytes":
                answer.offset = log.offset_after_bytes(query.offset or 0, query.size_bytes or 0)
            else:
                found = log.offset_for_time(query.timestamp_ms or 0)
                if found is not None:
                    answer.offset, answer.timestamp_ms = found
        except HeadraceError as error:
            answer.error = models.ErrorBody.of(error)
        return answer

    def _delete_records(self, call: _Call) -> Response:
        results = []
        for part in call.decoded(models.DeleteRecordsRequest).partitions:
            result = models.DeleteRecordsResult(part.topic, part.partition)
            try:
                log = self._usable(self._topic(part.topic), part.partition, None)
                before = log.end_offset if part.before_offset < 0 else part.before_offset
                result.log_start_offset = log.delete_before(before)
            except HeadraceError as error:
                result.error = models.ErrorBody.of(error)
            results.append(result)
        return _json(models.DeleteRecordsAnswer(results))

    def _names(self) -> dict[TopicId, str]:
        return {topic.topic_id: topic.name for topic in self._topics.values()}

    def _places(self, name: str) -> list[Place]:
        topic = self._topics.get(name)
        return [] if topic is None else [(topic.topic_id, log.partition) for log in topic.logs]

    def _offsets_of(self, group: str) -> dict[Place, MemoryCommit]:
        found = self._groups.groups.get(group)
        return {} if found is None else found.offsets

    async def _heartbeat(self, name: str, call: _Call) -> Response:
        check_name(name, kind="group")
        body = call.decoded(models.GroupHeartbeat)
        with self._lock:
            answer = self._groups.beat(name, body)
            self._wake()
        deadline = time.monotonic() + body.wait_ms / 1000
        while body.epoch >= 0:
            with self._lock:
                news = self._groups.news(name, body)
                left_s = deadline - time.monotonic()
                if news is not None:
                    answer.epoch = news[0]
                    answer.assignment = owned_topics(news[1], self._names())
                    self._wake()
                    break
                if left_s <= 0:
                    break
            await self._woken(min(left_s, _LOOK_S))
        return _json(answer)

    def _list_groups(self, _: _Call) -> Response:
        names = self._names()
        groups = []
        for name in sorted(self._groups.groups):
            group = self._groups.of(name)
            state, members = self._groups.describe(group, names)
            topics = {names[topic_id] for topic_id, _ in group.offsets if topic_id in names}
            topics.update(topic for each in members for topic in each.topics)
            if topics:
                groups.append(models.GroupSummary(name, state, sorted(topics), len(members)))
        return _json(models.GroupList(groups))

    def _group_info(self, group: str, *, with_lag: bool) -> models.GroupInfo:
        check_name(group, kind="group")
        topics = {topic.topic_id: topic for topic in self._topics.values()}
        found = []
        for (topic_id, partition), commit in self._offsets_of(group).items():
            topic = topics.get(topic_id)
            if topic is None:
                continue
            end = topic.logs[partition].end_offset if with_lag else None
            found.append(
                models.CommittedOffset(
                    topic.name, topic_id.hex(), partition, *commit, end, end and end - commit.offset
                )
            )
        found.sort(key=lambda entry: (entry.topic, entry.partition))
        return models.GroupInfo(group, "Empty", 0, found)

    def _describe_group(self, call: _Call) -> Response:
        info = self._group_info(call.path["group"], with_lag=True)
        if info.group in self._groups.groups:
            group = self._groups.of(info.group)
            info.state, info.members = self._groups.describe(group, self._names())
        if not info.offsets and not info.members:
            raise GroupNotFound(f"group {info.group!r} has no members and no committed offsets")
        return _json(info)

    def _group_offsets(self, call: _Call) -> Response:
        info = self._group_info(call.path["group"], with_lag=False)
        wanted = call.query.get("topic")
        info.offsets = [entry for entry in info.offsets if wanted in (None, entry.topic)]
        return _json(info)

    def _delete_group(self, call: _Call) -> Response:
        self._groups.delete(call.path["group"], force=call.query.get("force") == "true")
        return Response(204, {}, b"")

    def _commit(self, call: _Call) -> Response:
        name = check_name(call.path["group"], kind="group")
        request = call.decoded(models.CommitRequest)
        results: list[models.CommitResult] = []
        good: list[tuple[models.CommitResult, models.CommitPart, Place]] = []
        for part in request.offsets:
            result = models.CommitResult(part.topic, part.partition)
            results.append(result)
            try:
                good.append((result, part, self._place_of(part)))
            except HeadraceError as error:
                result.error = models.ErrorBody.of(error)
        refused = self._groups.check_commit(name, request, [place for _, _, place in good])
        for result, part, place in good:
            if place in refused:
                result.error = models.ErrorBody.of(refused[place])
            else:
                commit = MemoryCommit(part.offset, part.leader_epoch, part.metadata, self._now_ms())
                self._groups.of(name).offsets[place] = commit
        return _json(models.CommitAnswer(results))

    def _place_of(self, part: models.CommitPart) -> Place:
        topic = self._topic(part.topic)
        if part.topic_id not in (None, topic.topic_id.hex()):
            raise TopicNotFound(f"topic {part.topic!r} was deleted and created again")
        if part.partition >= len(topic.logs):
            raise PartitionNotFound(f"{part.topic!r} has no partition {part.partition}")
        return topic.topic_id, part.partition


class _MemoryTransport:
    """`Transport` to an in-memory cluster. Each request lets the loop run, as a socket would."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self._cluster = cluster

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: Sequence[Buffer] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Response:
        """See `Transport.send`."""
        await asyncio.sleep(0)
        return await self._cluster.answer(method, url, body, timeout)

    async def close(self) -> None:
        """Nothing is held."""


def transport_of(url: str) -> Transport:
    """The transport to the in-memory cluster with this address.

    Raises:
        ConnectionFailed: it is closed, or of another process.
    """
    found = _clusters.get(url)
    if found is None:
        raise ConnectionFailed(f"there is no in-memory cluster at {url} (any more)")
    return found.transport()


def _check_config(config: Mapping[str, models.ConfigValue]) -> None:
    for key in config:
        if key not in _CONFIG_DEFAULTS:
            raise InvalidConfig(f"{key!r} is no topic setting that the in-memory cluster knows")


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _json(body: msgspec.Struct, *, status: int = 200) -> Response:
    return Response(status, {"Content-Type": "application/json"}, msgspec.json.encode(body))


def _failed(error: HeadraceError) -> Response:
    if isinstance(error, (ClientError, RequestTimedOut)):
        raise error
    headers = {}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    return _json(models.ErrorBody.of(error), status=error.status)._replace(headers=headers)
