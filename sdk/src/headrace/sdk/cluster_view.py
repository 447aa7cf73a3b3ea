"""What a client knows of topics and leaders, kept until it is old or proves wrong, and the address
a request for a partition goes to.

With `route="auto"` that is the leader's advertised address. Where it can't be reached requests go
through the bootstrap address, which passes them on. If that works and the leader is still the same
afterwards, it is alive and merely out of reach from here (port-forward, Ingress): one warning, and
the direct way is tried again after a while. Otherwise it has died, and there will be another one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from headrace.protocol import routes
from headrace.protocol.compression import CODEC_NAMES, Codec
from headrace.protocol.errors import HeadraceError, InternalError
from headrace.protocol.ids import TopicId, parse_topic_id
from headrace.protocol.models import ClusterInfo, TopicInfo
from headrace.sdk.client import METADATA_TIMEOUT_S, Client

log = logging.getLogger("headrace.sdk.cluster_view")

MAX_MESSAGE_BYTES_DEFAULT = 1_048_588
"""`max.message.bytes` where a topic's description doesn't say (Kafka's default as well)."""

DIRECT_RETRY_UNSURE_S = 1.0
"""After so long an address that failed is tried directly again, while it isn't known whether the
broker is out of reach or dead."""

DIRECT_RETRY_FIRST_S = 30.0
"""The same once it proved to be alive and out of reach; doubles up to the maximum."""

DIRECT_RETRY_MAX_S = 600.0


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as last heard of. `leaders[p]` is the broker that leads partition p, or None;
    `epochs[p]` is the leader's epoch."""

    name: str
    topic_id: TopicId
    leaders: tuple[int | None, ...]
    epochs: tuple[int, ...]
    max_message_bytes: int
    codec: Codec
    asked_at: float

    def has_new_leader(self, before: TopicView, partition: int) -> bool:
        """Whether somebody leads the partition who didn't at the time of `before`, or the same
        broker again in a new epoch."""
        if partition >= len(self.leaders) or self.leaders[partition] is None:
            return False
        if partition >= len(before.leaders):
            return True
        now = (self.leaders[partition], self.epochs[partition])
        return now != (before.leaders[partition], before.epochs[partition])


@dataclass(slots=True)
class _Helped:
    """A request that got through by the detour: of what, and what was believed then."""

    topic: str
    partition: int
    epoch: int
    at: float


@dataclass(slots=True)
class _Detour:
    until: float
    length_s: float = DIRECT_RETRY_UNSURE_S
    helped: _Helped | None = None
    is_confirmed: bool = False

    def helped_after(self, view: TopicView) -> bool:
        """Whether the view is too old to say anything of it: it was asked for before, and an
        election may have been in between."""
        helped = self.helped
        return helped is not None and helped.topic == view.name and helped.at > view.asked_at

    def is_judged_by(self, view: TopicView) -> bool:
        """Whether the view tells if whoever couldn't be reached is alive."""
        helped = self.helped
        return helped is not None and helped.topic == view.name and helped.at <= view.asked_at


class ClusterView:
    """The cache. One refresh a topic is under way at a time, whoever asks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._topics: dict[str, TopicView] = {}
        self._brokers: dict[int, str] = {}
        self._loading: dict[str, asyncio.Task[TopicView]] = {}
        self._detours: dict[str, _Detour] = {}

    def known(self, name: str) -> TopicView | None:
        """What is cached of a topic, however old."""
        return self._topics.get(name)

    def forget(self, name: str, topic_id: TopicId) -> None:
        """Drops a topic that proved to be gone (unless a newer one of that name is known)."""
        found = self._topics.get(name)
        if found is not None and found.topic_id == topic_id:
            del self._topics[name]

    async def topic(self, name: str) -> TopicView:
        """The topic from the cache, or loaded.

        Raises:
            TopicNotFound: there is no such topic.
            HeadraceError: the cluster can't be asked.
        """
        found = self._topics.get(name)
        if found is not None and self._age_s(found) < self._client.settings.metadata_max_age:
            return found
        return await self.refresh(name)

    async def refresh(self, name: str) -> TopicView:
        """Loads the topic now, or waits for the load that is under way.

        Raises:
            TopicNotFound: there is no such topic; it is dropped from the cache.
        """
        # A caller that gives up doesn't take the load away from the others.
        return await asyncio.shield(self._start_loading(name))

    def _start_loading(self, name: str) -> asyncio.Task[TopicView]:
        task = self._loading.get(name)
        if task is None:
            task = asyncio.ensure_future(self._load(name))
            self._loading[name] = task
            task.add_done_callback(lambda done: self._loaded(name, done))
        return task

    def _loaded(self, name: str, task: asyncio.Task[TopicView]) -> None:
        del self._loading[name]
        # Asking marks an exception as seen, where every waiter has gone.
        if not task.cancelled() and task.exception() is None:
            self._look_once_more(task.result())

    def _look_once_more(self, view: TopicView) -> None:
        """A detour has helped while this view was on its way: it says nothing of it."""
        if any(each.helped_after(view) for each in self._detours.values()):
            self._start_loading(view.name)

    async def _load(self, name: str) -> TopicView:
        asked_at = asyncio.get_running_loop().time()
        try:
            info = await self._client.call(
                "GET",
                routes.fill(routes.TOPIC, topic=name),
                TopicInfo,
                patience=METADATA_TIMEOUT_S,
            )
        except HeadraceError as error:
            if error.code == "topic_not_found":
                self._topics.pop(name, None)
            raise
        leaders = {part.leader for part in info.partitions if part.leader is not None}
        if not leaders <= self._brokers.keys() or name in self._topics:
            await self.refresh_brokers()
        found = _view_of(info, asked_at)
        before, self._topics[name] = self._topics.get(name), found
        if before is not None:
            changed = (a != b for a, b in zip(before.leaders, found.leaders, strict=False))
            self._client.stats.leader_changes += sum(changed)
        self._judge_detours(found)
        return found

    async def refresh_brokers(self) -> None:
        """Loads the brokers' addresses."""
        info = await self._client.call(
            "GET", routes.CLUSTER, ClusterInfo, patience=METADATA_TIMEOUT_S
        )
        self._brokers = {broker.id: broker.url.rstrip("/") for broker in info.brokers}
        self._client.learn(list(self._brokers.values()))

    def url_of(self, topic: str, partition: int) -> str | None:
        """The address to ask about a partition; None while nobody leads it."""
        view = self._topics.get(topic)
        if view is None or partition >= len(view.leaders):
            return None
        leader = view.leaders[partition]
        if leader is None:
            return None
        return self.url_of_broker(leader)

    def url_of_broker(self, broker_id: int) -> str:
        """The address to ask a broker at: its own, or the bootstrap address, which passes on."""
        direct = self._brokers.get(broker_id)
        if direct is None or self._client.settings.route == "bootstrap":
            return self._client.bootstrap_url
        detour = self._detours.get(direct)
        if detour is None or asyncio.get_running_loop().time() >= detour.until:
            return direct
        self._client.stats.detours += 1
        return self._client.bootstrap_url

    def leads(self, url: str, topic: str, partition: int) -> bool:
        """Whether the address is that of the partition's leader: a request goes there directly."""
        return self._client.settings.route != "bootstrap" and self._direct(topic, partition) == url

    def epoch_of(self, topic: str, partition: int) -> int:
        """The epoch of the partition's leader as last heard of; -1 if that is not known."""
        view = self._topics.get(topic)
        return -1 if view is None or partition >= len(view.epochs) else view.epochs[partition]

    def _direct(self, topic: str, partition: int) -> str | None:
        view = self._topics.get(topic)
        if view is None or partition >= len(view.leaders):
            return None
        leader = view.leaders[partition]
        return None if leader is None else self._brokers.get(leader)

    def went_wrong(self, url: str, error: HeadraceError) -> bool:
        """Takes note of a failed request. True if there is another way worth trying at once."""
        is_unreachable = error.code == "connection_failed" and error.details.get("sent") is False
        if not is_unreachable or self._client.settings.route != "auto":
            return False
        if url == self._client.bootstrap_url:
            return False
        now = asyncio.get_running_loop().time()
        detour = self._detours.get(url)
        if detour is None:
            self._detours[url] = _Detour(now + DIRECT_RETRY_UNSURE_S)
        elif now >= detour.until:
            detour.length_s = min(detour.length_s * 2, DIRECT_RETRY_MAX_S)
            detour.until = now + detour.length_s
        return True

    def went_right(self, url: str, topic: str, partition: int) -> None:
        """Takes note of a good answer for a partition: a direct one ends a detour; after one by
        the bootstrap address the leader is looked up: is it still the same?"""
        if not self._detours:
            return
        if self._detours.pop(url, None) is not None:
            return
        direct = self._direct(topic, partition)
        detour = None if direct is None else self._detours.get(direct)
        if detour is not None and detour.helped is None:
            now = asyncio.get_running_loop().time()
            detour.helped = _Helped(topic, partition, self.epoch_of(topic, partition), now)
            self._start_loading(topic)

    def _judge_detours(self, view: TopicView) -> None:
        """A detour has helped. Whoever couldn't be reached still leads, in the same epoch: then it
        is alive. Otherwise it had died, and if it leads again one day it is asked directly."""
        for url, detour in list(self._detours.items()):
            helped = detour.helped
            if helped is None or detour.is_confirmed or not detour.is_judged_by(view):
                continue
            is_same = (
                self.epoch_of(view.name, helped.partition) == helped.epoch
                and self._direct(view.name, helped.partition) == url
            )
            if is_same:
                self._confirm(url, detour)
            else:
                del self._detours[url]

    def _confirm(self, url: str, detour: _Detour) -> None:
        detour.is_confirmed = True
        detour.length_s = DIRECT_RETRY_FIRST_S
        detour.until = asyncio.get_running_loop().time() + detour.length_s
        log.warning(
            "%s can't be reached from here; its partitions go through %s instead, which costs"
            " a hop. If that is intended, set route='bootstrap'.",
            url,
            self._client.bootstrap_url,
        )

    def _age_s(self, view: TopicView) -> float:
        return asyncio.get_running_loop().time() - view.asked_at

    async def close(self) -> None:
        """Ends loads that are under way."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _view_of(info: TopicInfo, now: float) -> TopicView:
    ordered = sorted(info.partitions, key=lambda part: part.partition)
    if [part.partition for part in ordered] != list(range(len(ordered))) or not ordered:
        raise InternalError(f"the description of topic {info.name!r} lists partitions with gaps")
    size = info.config.get("max.message.bytes")
    codec = info.config.get("compression.type")
    return TopicView(
        name=info.name,
        topic_id=parse_topic_id(info.topic_id),
        leaders=tuple(part.leader for part in ordered),
        epochs=tuple(part.leader_epoch for part in ordered),
        max_message_bytes=int(size.value) if size and size.value else MAX_MESSAGE_BYTES_DEFAULT,
        codec=CODEC_NAMES.get(str(codec.value), Codec.NONE) if codec else Codec.NONE,
        asked_at=now,
    )
