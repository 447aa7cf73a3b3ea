"""SIGNATURES FIRST (bodies follow): the broker's face to cluster state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import ConfigValue, Registration, TopicObject
from headrace.broker.core.standing import LocalMeta, LocalState
from headrace.broker.store.base import Store
from headrace.protocol.ids import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    broker_id: int
    url: str
    rack: str | None = None
    software: str = ""


@dataclass(frozen=True, slots=True)
class TimeSource:
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Coordination:
    def __init__(
        self,
        store: Store,
        identity: Identity,
        *,
        local: LocalState,
        prepare: Callable[[LocalMeta], Awaitable[None]],
        on_overtaken: Callable[[str], None],
        clock: TimeSource = TimeSource(),
    ) -> None:
        """`prepare` writes the volume's meta durably; it is awaited before each registration
        attempt (R21). `on_overtaken(reason)`: another process has this broker's id: stop at once,
        without drain."""

    view: ClusterView

    async def start(self) -> Registration:
        """Cluster object, registration (state starting), lease, view. The broker isn't elected
        yet: recover the logs, attach listeners, then `activate()`.

        Raises: InvalidConfig (other cluster/broker's directory), Conflict (the id is in use by a
        live process), StoreUnavailable."""
        raise NotImplementedError

    async def activate(self) -> None:
        """State running; takes part in the controller's work. When it returns and this broker is
        the controller, every partition that could get a leader has one and `__offsets` exists."""
        raise NotImplementedError

    @property
    def registration(self) -> Registration:
        raise NotImplementedError

    @property
    def cluster_id(self) -> str:
        raise NotImplementedError

    @property
    def controller_id(self) -> int | None:
        raise NotImplementedError

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        config: Mapping[str, ConfigValue] | None = None,
    ) -> TopicObject:
        """Raises InvalidName, InvalidConfig, TopicExists, StoreUnavailable. When it returns,
        `view` has the topic and its records and the listeners have heard."""
        raise NotImplementedError

    async def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, ConfigValue | None] | None = None,
        partitions: int | None = None,
    ) -> TopicObject:
        """Raises TopicNotFound, InvalidConfig, InvalidRequest (fewer partitions), Forbidden for
        internal topics is the API's matter."""
        raise NotImplementedError

    async def delete_topic(self, name: str) -> TopicId:
        """Raises TopicNotFound, StoreUnavailable. When it returns the tombstone is written and
        the listeners have heard `TopicTombstoned`."""
        raise NotImplementedError

    async def mark_failed(self, topic_id: TopicId, partition: int) -> None:
        """R23: this broker's replica is broken: out of ISR and ELR, LE+1."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Registration says draining, so that leadership moves away where others can lead."""
        raise NotImplementedError

    async def stop(self, *, clean: bool = True) -> None:
        """Ends all tasks and, if clean, gives the lease up. Doesn't close the store."""
        raise NotImplementedError
