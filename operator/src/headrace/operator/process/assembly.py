"""The whole process:

    kopf's watches → Desk (what is known, what is news) → WorkQueue → passes (`reconcile`)
    resync (lists)  ↗                                     only while leading

A candidate keeps its watches, so that it knows everything the moment it leads. What goes wrong with
the API server, the brokers or a resource ends a pass, never the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine
from typing import Any

from headrace.operator.kube import credentials, paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.events import Events
from headrace.operator.process import first_cluster
from headrace.operator.process.desk import Desk
from headrace.operator.process.health import Health
from headrace.operator.process.leadership import Leadership
from headrace.operator.process.metrics import Metrics
from headrace.operator.process.watches import Watches
from headrace.operator.process.work_queue import Key, WorkQueue
from headrace.operator.reconcile.clusters import Clusters
from headrace.operator.reconcile.groups import Groups
from headrace.operator.reconcile.topics import Topics
from headrace.operator.settings import Settings

log = logging.getLogger("headrace.operator")

RETRY_S = (0.5, 5.0)
"""Pause while the custom resources can't be listed."""


class Operator:
    """One operator. `run` works until `stop`."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            InvalidConfig: `apply_file` can't be read or holds something else.
        """
        self._settings = settings
        self._metrics = Metrics()
        self._kube = KubeClient(self._metrics.requested)
        self._events = Events(self._kube, settings.who)
        self._desk = Desk(self._ask)
        self._metrics.states = self._desk.states
        self._watches = Watches(
            settings.namespace_list, self._desk.heard, self._metrics.watches_ended
        )
        self._health = Health(self._metrics, is_alive=self._is_alive, state=lambda: self._state)
        self._first = first_cluster.read(settings.apply_file) if settings.apply_file else None
        self._state: str | None = None
        self._queue: WorkQueue | None = None
        self._stopped = asyncio.Event()
        self._clusters = Clusters(
            self._kube, self._events,
            resync_s=settings.resync_seconds, poll_s=settings.poll_seconds,
        )  # fmt: skip
        self._topics = Topics(self._kube, self._events, self._desk, poll_s=settings.poll_seconds)
        self._groups = Groups(
            self._kube, self._events, self._desk, poll_s=settings.group_poll_seconds
        )

    def stop(self) -> None:
        """Ends `run`."""
        self._stopped.set()

    async def run(self) -> None:
        """Until `stop`.

        Raises:
            kopf.LoginError: there is no way to the API server. OSError: the health port is taken.
        """
        async with self._kube:
            await self._health.start(self._settings.health_host, self._settings.health_port)
            try:
                await self._until_stopped(self._work())
            finally:
                await self._watches.stop()
                await self._health.stop()

    async def _work(self) -> None:
        await self._list_all()
        self._watches.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            group.create_task(self._resync())
            group.create_task(self._lead_for_ever())

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def _is_alive(self) -> bool:
        return self._state is None or self._watches.is_alive

    def _ask(self, key: Key, *, delay_s: float, urgent: bool = False) -> None:
        if self._queue is not None:
            self._queue.ask(key, delay_s=delay_s, urgent=urgent)

    # --- leading ---

    async def _lead_for_ever(self) -> None:
        if not self._settings.leader_election:
            await self._lead()
            return
        settings = self._settings
        leadership = Leadership(
            self._kube,
            namespace=settings.lease_namespace or credentials.own_namespace(),
            name=settings.lease_name,
            who=settings.who,
            seconds=settings.lease_seconds,
        )
        self._state = "candidate"
        try:
            while True:
                await leadership.acquire()
                await self._lead_while(leadership)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(leadership.release())

    async def _lead_while(self, leadership: Leadership) -> None:
        """Until the Lease is lost, or leading ends for a reason that nobody thought of."""
        leading, keeping = (
            asyncio.create_task(self._lead()),
            asyncio.create_task(leadership.keep()),
        )
        try:
            await asyncio.wait({leading, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leading.cancel()
            keeping.cancel()
            for outcome in await asyncio.gather(leading, keeping, return_exceptions=True):
                if isinstance(outcome, Exception):
                    log.error("leading ended and begins anew: %r", outcome, exc_info=outcome)

    async def _lead(self) -> None:
        self._queue = WorkQueue(self._pass, self._metrics, concurrency=self._settings.concurrency)
        self._state = "leader"
        self._metrics.leads(True)
        first = first_cluster.apply(self._kube, self._first) if self._first else None
        applying = asyncio.create_task(first) if first else None
        try:
            # Afresh: what a candidate has heard may be older than what the last leader did.
            await self._list_all()
            await self._queue.run()
        finally:
            if applying is not None:
                applying.cancel()
            self._queue = None
            self._state = "candidate"
            self._metrics.leads(False)

    async def _pass(self, key: Key) -> float | None:
        match key.kind:
            case paths.TOPIC.name:
                return await self._topics.pass_over(key)
            case paths.CONSUMER_GROUP.name:
                return await self._groups.pass_over(key)
        return await self._clusters.pass_over(key)

    # --- lists ---

    async def _list_all(self) -> None:
        """Lists all custom resources, and waits until that can be done: they may be installed after
        the operator, or be away for a while."""
        low, high = RETRY_S
        pause_s, said = low, ""
        while True:
            try:
                for kind in paths.CUSTOM:
                    self._desk.listed(kind.name, await self._listing(kind))
                return
            except KubernetesError as error:
                if str(error) != said:
                    log.warning("the resources can't be listed, waiting: %s", error)
                said = str(error)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(high, pause_s * 2)

    async def _listing(self, kind: paths.Kind) -> list[dict[str, Any]]:
        found = []
        for namespace in self._settings.namespace_list or (None,):
            found += await self._kube.listing(kind, namespace)
        return found

    async def _resync(self) -> None:
        """All resources again and again, since events can be missed."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds * random.uniform(0.8, 1.2))
            try:
                for kind in paths.CUSTOM:
                    self._desk.listed(kind.name, await self._listing(kind))
            except KubernetesError as error:
                log.warning("the resync failed: %s", error)
                if error.is_absent:
                    await self._list_all()
                    self._watches.renew()
            except Exception:
                log.exception("the resync failed")
