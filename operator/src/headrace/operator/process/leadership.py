"""Waits to be the leader, and keeps at it: the Lease's I/O (`core.lease` decides)."""

from __future__ import annotations

import asyncio
import datetime
import logging
import random

from headrace.operator.core import lease
from headrace.operator.kube import paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.spec import JsonObject

log = logging.getLogger("headrace.operator.leadership")


class Leadership:
    """One candidate."""

    def __init__(
        self, kube: KubeClient, *, namespace: str, name: str, who: str, seconds: float
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._who = who
        self._seconds = seconds
        self._sight: lease.Sight | None = None

    async def acquire(self) -> None:
        """Waits until this process leads."""
        said = ""
        while True:
            try:
                if await self._try():
                    log.info("%s leads", self._who)
                    return
                holder = "" if self._sight is None else self._sight.spec.get("holderIdentity", "")
                now_said = f"waiting: {holder or 'nobody yet'} leads"
            except KubernetesError as error:
                now_said = f"the lease {self._namespace}/{self._name} can't be used: {error}"
            if now_said != said:
                log.info("%s", now_said)
            said = now_said
            await self._pause()

    async def keep(self) -> None:
        """Returns once this process leads no more, or can't be sure of it any more: well before
        another would take over."""
        loop = asyncio.get_running_loop()
        sure_until_s = loop.time() + self._seconds * 2 / 3
        while True:
            await self._pause()
            try:
                async with asyncio.timeout(max(0.1, sure_until_s - loop.time())):
                    began_s = loop.time()
                    if not await self._try():
                        log.warning("somebody else leads now")
                        return
                    sure_until_s = began_s + self._seconds * 2 / 3
            except (KubernetesError, TimeoutError) as error:
                log.warning("the lease can't be renewed: %s", error or "no answer in time")
            if loop.time() >= sure_until_s:
                log.warning("the lease couldn't be renewed for too long; leading no more")
                return

    async def release(self) -> None:
        """Leaves at once for others what this process leads, if it can."""
        try:
            async with asyncio.timeout(2.0):
                present = await self._kube.get(paths.LEASE, self._namespace, self._name)
                spec = (present or {}).get("spec") or {}
                if present is not None and spec.get("holderIdentity") == self._who:
                    await self._kube.replace({**present, "spec": lease.released(spec)})
        except (KubernetesError, TimeoutError) as error:
            log.info("the lease wasn't given back: %s", error)

    async def _try(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        present = await self._kube.get(paths.LEASE, self._namespace, self._name)
        self._sight = lease.looked(self._sight, present, now_s)
        if lease.decide(self._sight, self._who, now_s) == "wait":
            return False
        try:
            await self._write(present)
        except KubernetesError as error:
            if error.is_conflict:
                return False
            raise
        return True

    async def _write(self, present: JsonObject | None) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = None if present is None else present.get("spec") or {}
        spec = lease.held(before, self._who, seconds=self._seconds, now=now)
        if present is not None:
            await self._kube.replace({**present, "spec": spec})
            return
        await self._kube.create(
            {
                "apiVersion": paths.LEASE.api_version,
                "kind": paths.LEASE.name,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": spec,
            }
        )

    async def _pause(self) -> None:
        await asyncio.sleep(self._seconds / 7.5 * random.uniform(0.8, 1.2))
