"""The status of a pod from the state of its containers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from kubelet.client import Json


@dataclass(slots=True)
class ContainerState:
    """One container: `state` and `last` as the API shows them."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json = field(default_factory=dict)
    restarts: int = 0
    crashes: int = 0
    """Restarts that count for the back-off."""

    is_started: bool = False
    is_ready: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return "terminated" in self.state

    def status(self) -> Json:
        """As in `status.containerStatuses`."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"local://{self.image}",
            "ready": self.is_ready,
            "started": self.is_started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last,
        }


def phase(containers: list[ContainerState]) -> str:
    """Pending until one has run; then what became of them."""
    if all(each.is_over for each in containers):
        codes = [each.state["terminated"]["exitCode"] for each in containers]
        return "Failed" if any(codes) else "Succeeded"
    has_run = any(each.restarts or "waiting" not in each.state for each in containers)
    return "Running" if has_run else "Pending"


def conditions(pod: Json, containers: list[ContainerState], now: str) -> list[Json]:
    """The conditions; one that says what it said keeps its time."""
    before = {each["type"]: each for each in pod.get("status", {}).get("conditions") or ()}
    ready = all(each.is_ready for each in containers)
    lacking = [each.name for each in containers if not each.is_ready]
    why: Json = {
        "reason": "ContainersNotReady",
        "message": f"containers with unready status: [{' '.join(lacking)}]",
    }
    found = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Initialized", "status": "True"},
        {"type": "ContainersReady", "status": str(ready), **({} if ready else why)},
        {"type": "Ready", "status": str(ready), **({} if ready else why)},
    ]
    for each in found:
        old = before.get(each["type"], {})
        is_same = old.get("status") == each["status"]
        each["lastTransitionTime"] = old.get("lastTransitionTime", now) if is_same else now
    return found


def status(
    pod: Json, containers: list[ContainerState], *, address: str, host: str, now: str
) -> Json:
    """The whole status."""
    found: Json = {
        "phase": phase(containers),
        "conditions": conditions(pod, containers, now),
        "containerStatuses": [each.status() for each in containers],
        "hostIP": host,
        "startTime": pod.get("status", {}).get("startTime", now),
        "observedGeneration": pod["metadata"].get("generation", 1),
    }
    if address:
        found |= {"podIP": address, "podIPs": [{"ip": address}]}
    return found
