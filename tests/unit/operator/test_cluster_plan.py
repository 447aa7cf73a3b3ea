"""Plans for a BrokerCluster, carried out on a small world of values.

`World` does what the API server, the StatefulSet controller, a kubelet and the brokers would do
with a plan's actions, one at a time and in any order of progress.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operator import names, spec
from headrace.operator.core import actions, pods, roll, scale
from headrace.operator.core.cluster_plan import Plan, plan_cluster
from headrace.operator.core.cluster_status import cluster_status, paused_status
from headrace.operator.core.conditions import status_patch
from headrace.operator.core.observed import Admin, Broker, Check, Cluster, Moving
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner

NOW = "2026-01-01T00:00:00Z"


class World:
    """A Kubernetes namespace and the brokers in it; a topic of 12 partitions, 3 replicas each."""

    def __init__(self, **wanted: Any) -> None:
        self.raw: JsonObject = {
            "replicas": 3, "image": "headrace:1", "storage": {"size": "1Gi"}, **wanted
        }  # fmt: skip
        self.annotations: dict[str, str] = {}
        self.status: JsonObject = {}
        self.generation = 1
        self.objects: dict[tuple[str, str], JsonObject] = {}
        self.pods: dict[int, JsonObject] = {}
        self.claims: dict[int, JsonObject] = {}
        self.expandable = True
        self.config: dict[str, Any] = {}
        self.cordoned: set[int] = set()
        self.replicas: dict[int, int] = {}
        self.moves: list[tuple[int, int]] = []
        self.controller = 0
        self.broken: dict[int, str] = {}
        self.out_of_sync: set[int] = set()
        self.serial = 0
        self.log: list[Any] = []
        self.factor = 3

    def edit(self, **wanted: Any) -> None:
        self.raw = {**self.raw, **wanted}
        self.generation += 1

    @property
    def spec(self) -> BrokerClusterSpec:
        return spec.read(BrokerClusterSpec, self.raw)

    def see(self) -> Cluster:
        seen = Cluster(
            owner=Owner(namespace="q", name="main", uid="u-1", generation=self.generation),
            spec=self.spec,
            annotations=dict(self.annotations),
            status=deepcopy(self.status),
            objects=deepcopy(self.objects),
            pods=deepcopy(self.pods),
            claims=deepcopy(self.claims),
            expandable={"standard": self.expandable},
            admin=self._admin(),
        )
        if seen.admin is None:
            return seen
        checks = {
            (broker_id, phase): self._check(broker_id, phase)
            for broker_id, phase in roll.questions(seen)
        }
        refusals = {}
        if scale.to_drain(seen) and self.spec.replicas < self.factor:
            refusals = {"orders": f"needs {self.factor} brokers"}
        admin = Admin(**{**_fields(seen.admin), "checks": checks, "refusals": refusals})
        return Cluster(**{**_fields(seen), "admin": admin})

    def _up(self) -> set[int]:
        return {each for each, pod in self.pods.items() if pods.is_ready(pod)}

    def _admin(self) -> Admin | None:
        if not self._up():
            return None
        brokers = {
            each: Broker(
                id=each,
                state="running" if each in self._up() else "dead",
                replicas=self.replicas.get(each, 0),
                cordoned=each in self.cordoned,
            )
            for each in self.replicas
        }
        moving = None
        if self.moves:
            onto = frozenset(to for _, to in self.moves)
            moving = Moving(total=len(self.moves), done=0, onto=onto)
        return Admin(
            cluster_id="c", controller_id=self.controller, brokers=brokers,
            config=dict(self.config), moving=moving,
        )  # fmt: skip

    def _check(self, broker_id: int, phase: str) -> Check:
        if phase == "before":
            down = (set(self.pods) - self._up()) | self.out_of_sync
            bad = bool(down - {broker_id})
            return Check(not bad, int(bad), 0, "orders-0 would go below its minimum")
        whole = broker_id in self._up() and broker_id not in self.out_of_sync
        return Check(whole, int(not whole), 0, "orders-0 isn't in sync")

    # --- what others do ---

    def kubernetes(self) -> None:
        """The StatefulSet's controller and a kubelet."""
        found = self.objects.get(("StatefulSet", "main"))
        if found is None:
            return
        found["status"] = {"observedGeneration": found["metadata"]["generation"]}
        for each in [each for each in self.pods if each >= found["spec"]["replicas"]]:
            assert self.replicas.get(each, 0) == 0, "a broker with data was removed"
            del self.pods[each]
        for each in range(found["spec"]["replicas"]):
            if each not in self.claims:
                [template] = found["spec"]["volumeClaimTemplates"]
                claim = {
                    "kind": "PersistentVolumeClaim",
                    "metadata": self._meta(f"data-main-{each}"),
                }
                claim["spec"] = {**deepcopy(template["spec"]), "storageClassName": "standard"}
                self.claims[each] = claim
            if each not in self.pods:
                self._start(each, found["spec"]["template"])
            elif each not in self.broken:
                self.pods[each]["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
                self.pods[each]["status"]["containerStatuses"] = []
                self.replicas.setdefault(each, 12 if each < 3 and len(self.replicas) < 3 else 0)

    def _start(self, broker_id: int, template: JsonObject) -> None:
        meta = {**self._meta(f"main-{broker_id}"), **deepcopy(template["metadata"])}
        status: JsonObject = {"phase": "Pending", "conditions": []}
        image = template["spec"]["containers"][0]["image"]
        self.broken.pop(broker_id, None)
        if image == "bad":
            self.broken[broker_id] = "ImagePullBackOff"
            status["containerStatuses"] = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
        self.pods[broker_id] = {"kind": "Pod", "metadata": meta, "status": status}
        claim = self.claims[broker_id]
        claim.pop("status", None)

    def _meta(self, name: str) -> JsonObject:
        self.serial += 1
        return {"name": name, "uid": f"u{self.serial}", "generation": 1}

    def brokers(self) -> None:
        """A move is done."""
        if self.moves:
            origin, target = self.moves.pop()
            self.replicas[origin] -= 1
            self.replicas[target] += 1

    # --- actions ---

    def do(self, action: actions.Action) -> None:
        self.log.append(action)
        match action:
            case actions.Create(value):
                made = deepcopy(value)
                made["metadata"] |= {"uid": "o", "generation": 1}
                key = (made["kind"], made["metadata"]["name"])
                assert key not in self.objects
                self.objects[key] = made
            case actions.Replace(value):
                made = deepcopy(value)
                if made["kind"] == "PersistentVolumeClaim":
                    waiting = {"type": "FileSystemResizePending", "status": "True"}
                    made["status"] = {"conditions": [waiting]}
                    self.claims[int(made["metadata"]["name"].rpartition("-")[2])] = made
                    return
                made["metadata"]["generation"] += 1
                self.objects[(made["kind"], made["metadata"]["name"])] = made
            case actions.DeletePod(name=name, uid=uid):
                broker_id = int(name.rpartition("-")[2])
                assert self.pods[broker_id]["metadata"]["uid"] == uid
                del self.pods[broker_id]
                if self.controller == broker_id and self._up():
                    self.controller = min(self._up())
            case actions.DeleteClaim(name=name):
                del self.claims[int(name.rpartition("-")[2])]
            case actions.SetLiveConfig(config):
                self.config |= config
                self.config = {k: v for k, v in self.config.items() if v is not None}
            case actions.Cordon(broker_id):
                self.cordoned.add(broker_id)
            case actions.Uncordon(broker_id):
                self.cordoned.discard(broker_id)
            case actions.Drain(leaving):
                assert not self.moves
                stay = sorted(set(self.replicas) - self.cordoned)
                for each in leaving:
                    assert each in self.cordoned
                    count = self.replicas[each]
                    self.moves += [(each, stay[i % len(stay)]) for i in range(count)]
            case actions.Rebalance():
                self._rebalance()
            case actions.CancelMoves():
                self.moves = []

    def _rebalance(self) -> None:
        left = dict(self.replicas)
        usable = [each for each in left if each not in self.cordoned]
        while True:
            low, high = min(usable, key=left.__getitem__), max(usable, key=left.__getitem__)
            if left[high] - left[low] < 2:
                return
            left[high] -= 1
            left[low] += 1
            self.moves.append((high, low))

    def plan(self) -> Plan:
        seen = self.see()
        plan = plan_cluster(seen, new_secret="hush")
        status = cluster_status(seen, plan.conditions, now=NOW)
        patch = status_patch(self.status, status)
        self.status = {k: v for k, v in {**self.status, **patch}.items() if v is not None}
        return plan

    def settle(self, chance: random.Random | None = None, passes: int = 400) -> None:
        """Reconciles until nothing is left to do. With `chance`, the operator is killed after any
        action, and others are slower or quicker than it."""
        idle = 0
        for _ in range(passes):
            plan = self.plan()
            steps = plan.actions
            if chance is not None:
                steps = steps[: chance.randrange(len(steps) + 2)]
            for action in steps:
                self.do(action)
            if chance is None or chance.random() < 0.7:
                self.kubernetes()
            if chance is None or chance.random() < 0.7:
                self.brokers()
            idle = 0 if plan.actions or self.moves else idle + 1
            if idle > 12:
                return
        raise AssertionError(f"it never ends: {self.log[-12:]}")

    def condition(self, kind: str) -> JsonObject | None:
        return next((each for each in self.status["conditions"] if each["type"] == kind), None)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@pytest.fixture
def world() -> World:
    found = World()
    found.settle()
    return found


def test_an_applied_cluster_becomes_ready_and_then_nothing_is_done_or_written(world: World) -> None:
    assert world.condition("Ready")["status"] == "True"  # type: ignore[index]
    before = deepcopy(world.status)
    assert world.plan().actions == ()
    assert status_patch(before, world.status) == {}


def test_scaling_out_gives_the_new_brokers_data(world: World) -> None:
    world.edit(replicas=5)
    world.settle()
    assert len(world.pods) == 5
    assert max(world.replicas.values()) - min(world.replicas.values()) <= 1


def test_scaling_out_moves_nothing_unless_it_is_automatic(world: World) -> None:
    world.edit(replicas=5, rebalance={"auto": False})
    world.settle()
    assert world.replicas == {0: 12, 1: 12, 2: 12, 3: 0, 4: 0}


def test_scaling_in_empties_brokers_first_and_forgets_no_cordon(world: World) -> None:
    world.edit(replicas=5)
    world.settle()
    world.edit(replicas=3)
    world.settle()
    assert sorted(world.pods) == [0, 1, 2]
    assert world.replicas[3] == world.replicas[4] == 0
    world.edit(replicas=5)
    world.settle()
    assert world.cordoned == set()
    assert min(world.replicas.values()) > 0


def test_scaling_in_below_the_replication_is_refused_and_said(world: World) -> None:
    world.edit(replicas=2)
    for _ in range(30):
        for action in world.plan().actions:
            world.do(action)
        world.kubernetes()
    assert sorted(world.pods) == [0, 1, 2]
    blocked = world.condition("ScaleDownBlocked")
    assert blocked is not None
    assert "orders: needs 3 brokers" in blocked["message"]
    world.edit(replicas=3)
    world.settle()
    assert world.cordoned == set()
    assert world.condition("ScaleDownBlocked") is None


def test_scaling_in_is_called_off_by_editing_back(world: World) -> None:
    world.edit(replicas=5)
    world.settle()
    world.edit(replicas=3)
    while not any(isinstance(each, actions.Drain) for each in world.log):
        for action in world.plan().actions:
            world.do(action)
        world.kubernetes()
    world.edit(replicas=5)
    world.settle()
    assert sorted(world.pods) == [0, 1, 2, 3, 4]
    assert world.cordoned == set()


def test_a_broker_that_a_person_cordoned_is_left_so(world: World) -> None:
    world.cordoned = {1}
    world.settle()
    assert world.cordoned == {1}


def restarts(world: World) -> list[str]:
    return [each.name for each in world.log if isinstance(each, actions.DeletePod)]


def test_a_roll_restarts_one_pod_at_a_time_with_the_controller_last(world: World) -> None:
    world.edit(image="headrace:2")
    world.settle()
    assert restarts(world) == ["main-1", "main-2", "main-0"]


def test_a_roll_waits_for_replicas_and_names_the_partition(world: World) -> None:
    world.out_of_sync = {2}
    world.edit(image="headrace:2")
    for _ in range(10):
        for action in world.plan().actions:
            world.do(action)
        world.kubernetes()
    assert restarts(world) in ([], ["main-2"])
    blocked = world.condition("RollingUpdateBlocked")
    assert blocked is not None
    assert "orders-0" in blocked["message"]


def test_a_bad_image_stops_the_roll_at_the_first_pod_and_a_good_one_repairs_it(
    world: World,
) -> None:
    world.edit(image="bad")
    for _ in range(20):
        for action in world.plan().actions:
            world.do(action)
        world.kubernetes()
    assert len(restarts(world)) == 1
    assert "ImagePullBackOff" in world.condition("RollingUpdateBlocked")["message"]  # type: ignore[index]
    world.edit(image="headrace:3")
    world.settle()
    assert world.condition("Ready")["status"] == "True"  # type: ignore[index]


def test_an_annotation_restarts_every_broker_once(world: World) -> None:
    world.annotations[names.ROLL] = "today"
    world.settle()
    assert len(restarts(world)) == 3
    assert world.status["rolledFor"] == "today"
    del world.annotations[names.ROLL]
    world.settle()
    assert len(restarts(world)) == 3


def test_live_settings_change_without_a_restart_and_go_back(world: World) -> None:
    world.config["retention.ms"] = 5
    world.edit(config={"min.insync.replicas": 2})
    world.settle()
    assert world.config["min.insync.replicas"] == 2
    world.edit(config={})
    world.settle()
    assert "min.insync.replicas" not in world.config
    assert world.config["retention.ms"] == 5
    assert restarts(world) == []


def test_claims_grow_and_their_pods_are_restarted_for_the_file_system(world: World) -> None:
    world.edit(storage={"size": "2Gi"})
    world.settle()
    assert {each["spec"]["resources"]["requests"]["storage"] for each in world.claims.values()} == {
        "2Gi"
    }
    assert len(restarts(world)) == 3


@pytest.mark.parametrize(
    ("size", "expandable", "reason"),
    [("512Mi", True, "PvcShrinkIgnored"), ("2Gi", False, "PvcNotExpandable")],
)
def test_claims_that_cannot_follow_are_left_with_a_warning(
    world: World, size: str, expandable: bool, reason: str
) -> None:
    world.expandable = expandable
    world.edit(storage={"size": size})
    world.settle()
    assert {each["spec"]["resources"]["requests"]["storage"] for each in world.claims.values()} == {
        "1Gi"
    }
    assert world.condition("Warning")["reason"] == reason  # type: ignore[index]


def test_a_lost_disk_is_given_up_when_a_person_says_so(world: World) -> None:
    before = world.claims[1]["metadata"]["uid"]
    world.pods[1]["metadata"]["annotations"][names.DELETE_POD_AND_PVC] = "true"
    world.settle()
    assert world.claims[1]["metadata"]["uid"] != before
    assert restarts(world) == ["main-1"]


def test_an_object_of_somebody_else_is_never_taken_over() -> None:
    world = World()
    world.objects[("Service", "main")] = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "main", "namespace": "q"}
    }  # fmt: skip
    assert world.plan().actions == ()
    assert world.condition("Ready")["reason"] == "ResourceConflict"  # type: ignore[index]


def test_an_object_that_was_deleted_or_changed_by_hand_is_put_right(world: World) -> None:
    del world.objects[("ConfigMap", "main-config")]
    world.objects[("Service", "main")]["spec"]["ports"] = []
    world.objects[("Service", "main")]["spec"]["clusterIP"] = "10.0.0.1"
    world.settle()
    assert ("ConfigMap", "main-config") in world.objects
    service = world.objects[("Service", "main")]["spec"]
    assert len(service["ports"]) == 1
    assert service["clusterIP"] == "10.0.0.1"


edits = st.lists(
    st.sampled_from(
        [
            {"replicas": 3}, {"replicas": 4}, {"replicas": 5}, {"image": "headrace:2"},
            {"image": "headrace:3"}, {"storage": {"size": "2Gi"}}, {"config": {"io.threads": 8}},
            {"config": {"min.insync.replicas": 2}}, {"resources": {"limits": {"cpu": "1000m"}}},
        ]
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(edits, st.integers(0, 2**32), st.integers(0, 25))
def test_every_plan_reaches_its_target_from_every_state_on_the_way(
    changes: list[dict[str, Any]], seed: int, passes: int
) -> None:
    chance = random.Random(seed)
    world = World()
    for change in changes:
        world.edit(**change)
        for _ in range(passes):
            steps = world.plan().actions
            for action in steps[: chance.randrange(len(steps) + 2)]:
                world.do(action)
            if chance.random() < 0.7:
                world.kubernetes()
            if chance.random() < 0.7:
                world.brokers()
    world.settle(chance)
    world.settle()
    assert world.plan().actions == ()
    assert world.condition("Ready")["status"] == "True"  # type: ignore[index]
    assert sorted(world.pods) == list(range(world.spec.replicas))
    revisions = {pods.revision(pod) for pod in world.pods.values()}
    assert revisions == {roll.wanted_revision(world.see())}
    assert world.cordoned <= set(range(world.spec.replicas, 5))


def test_what_is_said_of_a_paused_cluster_is_not_said_of_its_newer_spec() -> None:
    ready = {"type": "Ready", "status": "True", "reason": "AllIsWell", "observedGeneration": 1}
    paused = paused_status({"conditions": [ready]}, generation=2, now=NOW)
    assert paused["conditions"][0] == ready
    assert paused["conditions"][1]["observedGeneration"] == 2
    assert paused_status(paused, generation=2, now="later") == paused


def test_a_spread_that_would_move_nothing_is_not_begun_again_and_again(world: World) -> None:
    world.replicas = {0: 12, 1: 12, 2: 0}
    seen = world.see()
    assert actions.Rebalance() in plan_cluster(seen, new_secret="hush").actions
    assert seen.admin is not None
    asked = Admin(**{**_fields(seen.admin), "spread_moves": 0})
    seen = Cluster(**{**_fields(seen), "admin": asked})
    assert plan_cluster(seen, new_secret="hush").actions == ()
