"""Which pod is restarted next, if any: one at a time, and never at the cost of a partition.

Why a pod is to be restarted: it was made from another template, a person asked for it, or its file
system waits for a restart to grow. Order: those that don't run anyway, then ready ones by ordinal,
the controller last. A ready pod goes only if every other broker is whole (restart check "after")
and every partition can do without it (restart check "before"); partitions that have too few
replicas for any restart don't count. A broker that recovers its logs is left in peace. A pod that
is stuck though it is up to date stops the roll: the next one would be lost, too.
"""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.core import pods
from headrace.operator.core.actions import DeleteClaim, DeletePod
from headrace.operator.core.conditions import Condition
from headrace.operator.core.observed import Admin, Cluster, Phase
from headrace.operator.core.part import Part, not_ready, progressing

NEW_REVISION = "PodHasOldRevision"
MANUAL = "ManualRollingUpdate"
RESIZE = "FileSystemResizeNeeded"
LOST_DISK = "PodAndClaimDeleted"


def restart_reason(seen: Cluster, broker_id: int) -> str:
    """Why a pod is to be restarted, or nothing."""
    pod, claim = seen.pods[broker_id], seen.claims.get(broker_id)
    if pods.is_set(pod, names.DELETE_POD_AND_PVC):
        return LOST_DISK
    if pods.revision(pod) != wanted_revision(seen):
        return NEW_REVISION
    if pods.is_set(pod, names.ROLL):
        return MANUAL
    if claim is not None and pods.needs_file_system_resize(claim):
        return RESIZE
    return ""


def wanted_revision(seen: Cluster) -> str | None:
    """The revision of the template in the StatefulSet. What a person asked for on the BrokerCluster
    is in it, too (`cluster_plan.rolled_for`)."""
    found = seen.stateful_set
    return None if found is None else pods.revision(found["spec"]["template"])


def due(seen: Cluster) -> list[int]:
    """Brokers to restart, the first first."""
    admin = seen.admin
    controller = None if admin is None else admin.controller_id
    found = [each for each in seen.pods if each < (seen.replicas or 0)]
    found = [each for each in found if restart_reason(seen, each)]
    return sorted(found, key=lambda each: (_is_up(seen, each), each == controller, each))


def _is_up(seen: Cluster, broker_id: int) -> bool:
    return pods.is_ready(seen.pods[broker_id])


def questions(seen: Cluster) -> list[tuple[int, Phase]]:
    """The restart checks that `plan_roll` wants to have answered."""
    candidates = due(seen)
    if not candidates:
        return []
    others: list[tuple[int, Phase]] = [(each, "after") for each in sorted(seen.pods)]
    return [*((each, "before") for each in candidates), *others]


def plan_roll(seen: Cluster) -> Part:
    """At most one pod is deleted."""
    candidates = due(seen)
    if not candidates:
        return Part()
    reasons = sorted({restart_reason(seen, each) for each in candidates})
    told = f"{len(candidates)} of {seen.replicas} brokers to restart: {', '.join(reasons)}"
    under_way = (progressing("RollingUpdate", told), not_ready("RollingUpdate", told))
    if any(pods.is_terminating(pod) for pod in seen.pods.values()) or not _is_settled(seen):
        return Part(conditions=under_way)
    for each in candidates:
        if pods.stuck_reason(seen.pods[each]):
            return Part(_restart(seen, each), under_way)
    blocker = _pod_in_the_way(seen, candidates)
    if blocker:
        return Part(conditions=(_blocked(blocker), *under_way))
    return _plan_checked(seen, candidates, under_way)


def _is_settled(seen: Cluster) -> bool:
    """Whether all pods exist and the StatefulSet's controller has read the template: before, a
    deleted pod might come back as it was."""
    found = seen.stateful_set
    if found is None or len(seen.pods) < (seen.replicas or 0):
        return False
    observed = (found.get("status") or {}).get("observedGeneration", 0)
    return bool(observed >= found["metadata"].get("generation", 0))


def _pod_in_the_way(seen: Cluster, candidates: list[int]) -> str:
    """Why nobody may be restarted now: a pod that isn't to be restarted and doesn't run."""
    for each in sorted(set(seen.pods) - set(candidates)):
        pod = seen.pods[each]
        if pods.is_ready(pod):
            continue
        name, stuck = pod["metadata"]["name"], pods.stuck_reason(pod)
        if stuck:
            return f"pod {name} is stuck ({stuck}) though it is up to date; repair it first"
        return f"pod {name} isn't ready yet{_recovering(seen.admin, each)}"
    return ""


def _recovering(admin: Admin | None, broker_id: int) -> str:
    broker = None if admin is None else admin.brokers.get(broker_id)
    if broker is None or broker.state != "recovering":
        return ""
    return f": it recovers its logs, {broker.recovering or 0} partitions left"


def _plan_checked(seen: Cluster, candidates: list[int], under_way: tuple[Condition, ...]) -> Part:
    admin = seen.admin
    if admin is None:
        told = "no broker answers, so nobody knows which of them may be restarted"
        return Part(conditions=(_blocked(told), *under_way))
    first, blockers = candidates, []
    if len(candidates) > 1 and _is_up(seen, candidates[-1]):
        first = [each for each in candidates if each != admin.controller_id]
    for each in first:
        blocker = _blocker(seen, admin, each)
        if not blocker:
            return Part(_restart(seen, each), under_way)
        blockers.append(blocker)
    return Part(conditions=(_blocked(blockers[0]), *under_way))


def _blocker(seen: Cluster, admin: Admin, broker_id: int) -> str:
    """Why this broker can't be restarted now."""
    broker = admin.brokers.get(broker_id)
    if broker is not None and broker.state == "recovering":
        return f"broker {broker_id} isn't interrupted{_recovering(admin, broker_id)}"
    for each in _to_be_whole(seen, broker_id):
        check = admin.checks.get((each, "after"))
        if not (check is not None and check.ok):
            first = "no answer" if check is None else check.first
            return f"broker {each} isn't whole: {first}"
    check = admin.checks.get((broker_id, "before"))
    if check is None:
        return f"broker {broker_id} can't be judged: no answer"
    return "" if check.allows else f"broker {broker_id} can't be spared: {check.first}"


def _to_be_whole(seen: Cluster, broker_id: int) -> list[int]:
    """All other brokers; for one that is down anyway only those that are up: two that are down
    would wait for each other."""
    is_up = _is_up(seen, broker_id)
    return [each for each in sorted(seen.pods) if each != broker_id if is_up or _is_up(seen, each)]


def _blocked(message: str) -> Condition:
    return Condition("RollingUpdateBlocked", "True", "Waiting", message)


def _restart(seen: Cluster, broker_id: int) -> tuple[DeleteClaim | DeletePod, ...]:
    meta, reason = seen.pods[broker_id]["metadata"], restart_reason(seen, broker_id)
    restart = DeletePod(meta["name"], meta["uid"], reason, f"restarting pod {meta['name']}")
    claim = seen.claims.get(broker_id)
    if reason != LOST_DISK or claim is None or pods.is_terminating(claim):
        return (restart,)
    name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
    return (DeleteClaim(name, uid, f"giving up {name} with all it holds, as asked"), restart)
