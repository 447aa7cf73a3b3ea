"""One pass for a BrokerCluster:

    read it → look (Kubernetes) → ask (brokers) → plan (pure) → carry out → write status

and when to come again: at once while there is something to do, soon while something is under way,
else at the next resync.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from headrace.operator import spec
from headrace.operator.core.cluster_plan import plan_cluster
from headrace.operator.core.cluster_status import cluster_status, paused_status
from headrace.operator.core.conditions import Condition, rendered
from headrace.operator.core.observed import Cluster
from headrace.operator.core.part import not_ready
from headrace.operator.core.pods import is_set, is_terminating
from headrace.operator.kube import paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.events import Events
from headrace.operator.names import PAUSE
from headrace.operator.process.work_queue import Expected, Key
from headrace.operator.reconcile.ask_brokers import admin_of, ask_cluster
from headrace.operator.reconcile.carry_out import CarryOut
from headrace.operator.reconcile.look_at_cluster import look
from headrace.operator.reconcile.remove_cluster import remove
from headrace.operator.reconcile.write_status import (
    has_finalizer,
    now,
    set_finalizer,
    write_status,
)
from headrace.operator.spec import BrokerClusterSpec, JsonObject
from headrace.protocol.errors import HeadraceError, InvalidConfig

AGAIN_S = 0.2
"""Pause after a pass that did something; doubles while each pass finds something to do, so that a
quarrel over an object (somebody writes it back each time) isn't fought at full speed."""

AGAIN_MAX_S = 10.0


class Clusters:
    """Passes for BrokerClusters. `pass_over` is what the work queue calls."""

    def __init__(self, kube: KubeClient, events: Events, *, resync_s: float, poll_s: float) -> None:
        self._kube = kube
        self._events = events
        self._resync_s = resync_s
        self._poll_s = poll_s
        self._busy: dict[Key, int] = {}

    async def pass_over(self, key: Key) -> float | None:
        """One pass; in how many seconds the next.

        Raises:
            KubernetesError, Expected: something failed, and status says so where it can.
        """
        raw = await self._kube.get(paths.BROKER_CLUSTER, key.namespace, key.name)
        if raw is None:
            self._busy.pop(key, None)
            return None
        if is_terminating(raw):
            self._busy.pop(key, None)
            return await remove(self._kube, raw)
        if is_set(raw, PAUSE):
            await self._say_paused(raw)
            return self._resync()
        try:
            wanted = spec.read(BrokerClusterSpec, raw["spec"])
        except InvalidConfig as error:
            await self._say_invalid(raw, error)
            return self._resync()
        if has_finalizer(raw) != wanted.storage.delete_claim:
            raw = await set_finalizer(self._kube, raw, wanted=wanted.storage.delete_claim)
        return await self._reconcile(key, raw, wanted)

    async def _reconcile(self, key: Key, raw: JsonObject, wanted: BrokerClusterSpec) -> float:
        seen = await look(self._kube, raw, wanted)
        async with admin_of(seen.pods.values()) as admin:
            if admin is not None:
                seen = await ask_cluster(admin, seen)
            plan = plan_cluster(seen, new_secret=secrets.token_hex(32))
            done = CarryOut(self._kube, self._events, seen, raw, admin)
            trouble = None
            try:
                await done.all(plan.actions)
            except (KubernetesError, HeadraceError) as error:
                trouble = error
        conditions = list(plan.conditions)
        if trouble is not None:
            conditions.insert(0, condition_of(trouble))
        elif plan.actions:
            seen = _not_yet_observed(seen, conditions)
        await self._say(raw, seen, conditions)
        if trouble is not None:
            raise Expected(str(trouble)) from trouble
        return self._next(key, seen, conditions, acted=bool(plan.actions))

    def _next(
        self, key: Key, seen: Cluster, conditions: Iterable[Condition], *, acted: bool
    ) -> float:
        if acted:
            self._busy[key] = self._busy.get(key, -1) + 1
            return min(AGAIN_MAX_S, AGAIN_S * 2.0 ** min(self._busy[key] // 4, 8))
        self._busy.pop(key, None)
        is_settled = seen.admin is not None and not any(
            each.type in ("Ready", "Progressing", "RollingUpdateBlocked") for each in conditions
        )
        return self._resync() if is_settled and _is_well(seen) else self._poll_s

    def _resync(self) -> float:
        return self._resync_s * random.uniform(0.8, 1.2)

    async def _say(self, raw: JsonObject, seen: Cluster, conditions: list[Condition]) -> None:
        status = cluster_status(seen, conditions, now=now())
        await write_status(self._kube, self._events, raw, status)

    async def _say_paused(self, raw: JsonObject) -> None:
        generation = raw["metadata"].get("generation", 0)
        status = paused_status(raw.get("status") or {}, generation=generation, now=now())
        await write_status(self._kube, self._events, raw, status)

    async def _say_invalid(self, raw: JsonObject, error: InvalidConfig) -> None:
        before = raw.get("status") or {}
        generation = raw["metadata"].get("generation", 0)
        conditions = rendered(
            [not_ready("InvalidConfig", error.message)], before.get("conditions") or [],
            generation=generation, now=now(),
        )  # fmt: skip
        status = {**before, "observedGeneration": generation, "conditions": conditions}
        await write_status(self._kube, self._events, raw, status)


def _not_yet_observed(seen: Cluster, conditions: Iterable[Condition]) -> Cluster:
    """With the generation that was reconciled last, where status would say that all is well though
    something of the newest is still to be done: `observedGeneration` says what Ready is about."""
    before = seen.status.get("observedGeneration")
    if before is None or any(each.type == "Ready" for each in conditions):
        return seen
    return replace(seen, owner=msgspec.structs.replace(seen.owner, generation=before))


def _is_well(seen: Cluster) -> bool:
    admin = seen.admin
    is_whole = admin is not None and not (
        admin.offline or admin.under_replicated or admin.under_min_isr
    )
    return is_whole and len(seen.pods) >= seen.spec.replicas


def condition_of(error: KubernetesError | HeadraceError) -> Condition:
    """How a failed action shows in status."""
    if isinstance(error, KubernetesError):
        if error.is_refusal:
            return not_ready("KubernetesRefused", error.message)
        return not_ready("KubernetesUnavailable", f"{error.message}; trying again")
    if isinstance(error, InvalidConfig):
        return not_ready("InvalidConfig", error.message)
    if error.retriable:
        return not_ready("BrokerUnavailable", f"{error.message}; trying again")
    return not_ready("BrokerRefused", error.message)
