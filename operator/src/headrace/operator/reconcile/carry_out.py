"""Carries a cluster's plan out, action by action. Each can be repeated and lost without harm; what
somebody else did first is looked at in the next pass."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.operator.core import actions
from headrace.operator.core.actions import Action
from headrace.operator.core.observed import Cluster
from headrace.operator.kube import paths
from headrace.operator.kube.client import KubeClient
from headrace.operator.kube.errors import KubernetesError
from headrace.operator.kube.events import Events
from headrace.operator.spec import JsonObject
from headrace.sdk import Admin


class CarryOut:
    """For one pass over one cluster. `admin` is None where no broker could be asked: then no plan
    has an action that needs one."""

    def __init__(
        self, kube: KubeClient, events: Events, seen: Cluster, raw: JsonObject, admin: Admin | None
    ) -> None:
        self._kube = kube
        self._events = events
        self._namespace = seen.owner.namespace
        self._raw = raw
        self._admin = admin

    async def all(self, planned: Sequence[Action]) -> None:
        """In order; the first that fails ends it.

        Raises:
            KubernetesError, HeadraceError.
        """
        for each in planned:
            await self.one(each)

    async def one(self, action: Action) -> None:
        """One action."""
        match action:
            case actions.Create() | actions.Replace():
                await self._write(action)
            case actions.DeletePod() | actions.DeleteClaim():
                await self._delete(action)
            case actions.AnnotatePod(name, annotations):
                patch = {"metadata": {"annotations": dict(annotations)}}
                await self._kube.patch(paths.POD, self._namespace, name, patch)
            case actions.Emit(kind, reason, message):
                self._events.tell(self._raw, kind, reason, message)
            case _:
                await self._ask(action)

    async def _write(self, action: actions.Create | actions.Replace) -> None:
        """That it is there already, or has changed, is seen in the next pass."""
        write = self._kube.create if isinstance(action, actions.Create) else self._kube.replace
        try:
            await write(action.object)
        except KubernetesError as error:
            if not error.is_conflict:
                what = f"{action.object['kind']} {action.object['metadata']['name']}"
                said = f"{what}: {error.message}"
                raise KubernetesError(error.status, error.reason, said) from error

    async def _delete(self, action: actions.DeletePod | actions.DeleteClaim) -> None:
        is_pod = isinstance(action, actions.DeletePod)
        kind = paths.POD if is_pod else paths.CLAIM
        reason = action.reason if isinstance(action, actions.DeletePod) else "ClaimDeleted"
        await self._kube.delete(kind, self._namespace, action.name, uid=action.uid)
        self._events.tell(self._raw, "Normal", reason, action.message)

    async def _ask(self, action: Action) -> None:
        admin = self._admin
        assert admin is not None, f"planned without brokers: {action}"
        match action:
            case actions.SetLiveConfig(config):
                await admin.alter_cluster_config(config)
            case actions.Cordon(broker_id):
                await admin.cordon(broker_id)
            case actions.Uncordon(broker_id):
                await admin.uncordon(broker_id)
            case actions.Drain(broker_ids):
                for broker_id in broker_ids:
                    await admin.drain(broker_id)
                self._tell("Draining", f"brokers {_listed(broker_ids)} are emptied before they go")
            case actions.Rebalance():
                await admin.reassign()
                self._tell("Rebalancing", "replicas are spread evenly over all brokers")
            case actions.CancelMoves():
                await admin.cancel_reassignment()
                self._tell("ReassignmentCancelled", "what was being moved stays where it was")
            case _:
                raise AssertionError(f"nobody carries out {action}")

    def _tell(self, reason: str, message: str) -> None:
        self._events.tell(self._raw, "Normal", reason, message)


def _listed(broker_ids: Sequence[int]) -> str:
    return ", ".join(str(each) for each in broker_ids)
