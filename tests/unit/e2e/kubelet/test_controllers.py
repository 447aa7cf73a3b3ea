"""What the controllers around the emulated API server decide, without any server."""

from __future__ import annotations

from typing import Any

from kubelet import budgets, scheduling, statefulsets
from kubelet.caches import Caches
from kubelet.claims import class_of, uses
from kubelet.client import Api

Json = dict[str, Any]


def stateful_set(**spec: Any) -> Json:
    return {
        "kind": "StatefulSet",
        "metadata": {"name": "main", "namespace": "default", "uid": "u", "generation": 3},
        "spec": {
            "replicas": 3,
            "serviceName": "brokers",
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {"app": "main"}},
            "template": {
                "metadata": {"labels": {"app": "main"}},
                "spec": {"containers": [{"name": "broker", "image": "one"}]},
            },
            "volumeClaimTemplates": [
                {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
            ],
            **spec,
        },
    }


def pod(of: Json, ordinal: int, *, ready: bool = True, phase: str = "Running", **meta: Any) -> Json:
    made = statefulsets.pod_for(of, ordinal)
    made["metadata"] |= {"uid": f"p{ordinal}", **meta}
    condition = {"type": "Ready", "status": str(ready)}
    made["status"] = {"phase": phase, "conditions": [condition]}
    return made


def names(values: list[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in values]


def with_image(of: Json, image: str) -> Json:
    changed = stateful_set(**of["spec"])
    container = {"name": "broker", "image": image}
    changed["spec"]["template"] = {**of["spec"]["template"], "spec": {"containers": [container]}}
    return changed


def test_all_pods_and_claims_are_made_at_once_if_they_may_be_parallel() -> None:
    todo = statefulsets.plan(stateful_set(), [], {"data-main-1"})
    assert names(todo.pods) == ["main-0", "main-1", "main-2"]
    assert names(todo.claims) == ["data-main-0", "data-main-2"]


def test_otherwise_each_waits_for_the_one_before() -> None:
    ordered = stateful_set(podManagementPolicy="OrderedReady")
    assert names(statefulsets.plan(ordered, [], set()).pods) == ["main-0"]
    waiting = statefulsets.plan(ordered, [pod(ordered, 0, ready=False)], {"data-main-0"})
    assert not waiting.pods
    assert names(statefulsets.plan(ordered, [pod(ordered, 0)], set()).pods) == ["main-1"]


def test_a_pod_says_who_it_is() -> None:
    made = statefulsets.pod_for(stateful_set(), 2)
    assert made["spec"]["hostname"] == "main-2"
    assert made["spec"]["subdomain"] == "brokers"
    assert made["metadata"]["labels"][statefulsets.POD_INDEX_LABEL] == "2"
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-main-2"}} in made["spec"][
        "volumes"
    ]


def test_surplus_pods_go_and_their_claims_stay() -> None:
    of = stateful_set(replicas=1)
    todo = statefulsets.plan(of, [pod(of, 0), pod(of, 1), pod(of, 2)], set())
    assert names(todo.deletions) == ["main-2", "main-1"]


def test_on_delete_an_outdated_pod_stays_until_somebody_deletes_it() -> None:
    old = stateful_set()
    new = with_image(old, "two")
    assert not statefulsets.plan(new, [pod(old, n) for n in range(3)], set()).deletions
    todo = statefulsets.plan(new, [pod(old, 0), pod(old, 2)], {"data-main-1"})
    assert todo.pods[0]["spec"]["containers"][0]["image"] == "two"


def test_a_rolling_update_takes_the_highest_first_and_waits_until_it_is_ready() -> None:
    old = stateful_set(updateStrategy={"type": "RollingUpdate"})
    new = with_image(old, "two")
    pods = [pod(old, 0), pod(old, 1), pod(old, 2)]
    assert names(statefulsets.plan(new, pods, set()).deletions) == ["main-2"]
    pods[2] = pod(new, 2, ready=False)
    assert not statefulsets.plan(new, pods, set()).deletions
    pods[2] = pod(new, 2)
    assert names(statefulsets.plan(new, pods, set()).deletions) == ["main-1"]


def test_a_failed_pod_is_replaced_and_an_ending_one_waited_for() -> None:
    of = stateful_set()
    pods = [pod(of, 0, phase="Failed"), pod(of, 1, deletionTimestamp="now"), pod(of, 2)]
    todo = statefulsets.plan(of, pods, set())
    assert names(todo.deletions) == ["main-0"]
    assert not todo.pods


def test_a_pending_pod_gets_the_claim_that_somebody_took_away() -> None:
    of = stateful_set(replicas=1)
    todo = statefulsets.plan(of, [pod(of, 0, ready=False, phase="Pending")], set())
    assert names(todo.claims) == ["data-main-0"]


def test_on_delete_the_current_revision_never_moves() -> None:
    old = stateful_set()
    first = statefulsets.status(old, [pod(old, n) for n in range(3)])
    new = {**with_image(old, "two"), "status": first}
    after = statefulsets.status(new, [pod(new, n) for n in range(3)])
    assert after["currentRevision"] == first["updateRevision"] != after["updateRevision"]
    assert after["updatedReplicas"] == 3
    assert after["currentReplicas"] == 0


def node(name: str, *, ready: str = "True", **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "labels": {"disk": "fast"} if name == "a" else {}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "2", "memory": "4Gi"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def asking(cpu: str = "500m", **spec: Any) -> Json:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    meta = {"name": "p", "labels": {"app.kubernetes.io/instance": "main"}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}}


def test_pods_are_spread_and_go_where_there_is_room() -> None:
    nodes = [node("a"), node("b")]
    assert scheduling.choose(asking(), nodes, [asking(nodeName="a")]) == "b"
    full = [asking("2", nodeName="b"), asking(nodeName="a"), asking(nodeName="a")]
    assert scheduling.choose(asking(), nodes, full) == "a"
    assert scheduling.choose(asking("3"), nodes, []) is None


def test_nodes_that_are_lost_cordoned_tainted_or_not_selected_get_nothing() -> None:
    taint = {"key": "gone", "effect": "NoSchedule"}
    nodes = [node("b", ready="Unknown"), node("c", unschedulable=True), node("d", taints=[taint])]
    assert scheduling.choose(asking(), nodes, []) is None
    tolerating = asking(tolerations=[{"key": "gone", "operator": "Exists"}])
    assert scheduling.choose(tolerating, nodes, []) == "d"
    selecting = asking(nodeSelector={"disk": "fast"})
    assert scheduling.choose(selecting, [node("a"), node("b")], [asking(nodeName="a")]) == "a"


def test_a_budget_counts_who_may_go() -> None:
    of = stateful_set()
    pods = [pod(of, 0), pod(of, 1), pod(of, 2, ready=False)]
    budget = {"metadata": {}, "spec": {"maxUnavailable": 1}}
    assert budgets.status(budget, pods)["disruptionsAllowed"] == 0
    assert budgets.status(budget, [pod(of, n) for n in range(3)])["disruptionsAllowed"] == 1
    half = {"metadata": {}, "spec": {"minAvailable": "50%"}}
    assert budgets.status(half, pods)["desiredHealthy"] == 2


def test_a_claim_takes_the_default_class_unless_it_names_one() -> None:
    note = {"storageclass.kubernetes.io/is-default-class": "true"}
    classes: list[Json] = [
        {"metadata": {"name": "slow"}},
        {"metadata": {"name": "std", "annotations": note}},
    ]
    assert class_of({"spec": {}}, classes) == classes[1]
    assert class_of({"spec": {"storageClassName": "slow"}}, classes) == classes[0]
    assert class_of({"spec": {"storageClassName": "none"}}, classes) is None


def test_only_a_placed_pod_keeps_a_claim_from_going() -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data-main-0"}}
    assert uses({"spec": {"nodeName": "a", "volumes": [volume]}}, "data-main-0")
    assert not uses({"spec": {"volumes": [volume]}}, "data-main-0")


async def test_a_cache_never_goes_back_to_an_older_state() -> None:
    api = Api("http://127.0.0.1:1")
    caches = Caches(api)

    def at(revision: int) -> Json:
        meta = {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": str(revision)}
        return {"metadata": meta}

    caches._take("Pod", at(5))
    caches._take("Pod", at(4))
    assert caches.all("Pod")[0]["metadata"]["resourceVersion"] == "5"
    caches._drop("Pod", at(6))
    caches._take("Pod", at(5))
    assert caches.all("Pod") == []
    await api.close()
