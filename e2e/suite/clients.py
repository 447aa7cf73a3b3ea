"""Clients at work: a pod in the namespace that writes, reads along and judges (`load_pod`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.kube import Json, Kube
from suite.load_pod import PORT
from suite.waiting import TIMEOUT_S, until

ROOT = Path(__file__).parents[2]
FOLDER = "/etc/headrace-load"
FILES = {
    "run.py": ROOT / "e2e" / "suite" / "load_pod.py",
    "testkit-history.py": ROOT / "tests" / "testkit" / "history.py",
    "testkit-load.py": ROOT / "tests" / "testkit" / "load.py",
}


@dataclass(slots=True)
class Clients:
    """A load on one topic: `start`, let things happen, `stop`."""

    kube: Kube
    namespace: str
    image: str
    bootstrap: str
    topic: str
    partitions: int
    name: str = "load"
    verdict: Json = field(default_factory=dict)

    def start(self) -> Clients:
        """Starts the pod and waits until records are acknowledged."""
        data = {key: path.read_text() for key, path in FILES.items()}
        self.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self.name, "namespace": self.namespace},
                "data": data,
            }
        )
        self.kube.call("POST", self.kube.path("Pod", self.namespace), self._pod())
        until("clients are at work", lambda: self.acknowledged > 0)
        return self

    def _pod(self) -> Json:
        items = [{"key": key, "path": key.replace("-", "/", 1)} for key in FILES]
        variables: dict[str, Any] = {
            "BOOTSTRAP": self.bootstrap,
            "TOPIC": self.topic,
            "PARTITIONS": str(self.partitions),
            "PYTHONPATH": FOLDER,
            "LISTEN": "0.0.0.0",
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "load",
                        "image": self.image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["python", f"{FOLDER}/run.py"],
                        "env": [{"name": k, "value": v} for k, v in variables.items()],
                        "ports": [{"containerPort": PORT}],
                        "volumeMounts": [{"name": "code", "mountPath": FOLDER}],
                    }
                ],
                "volumes": [{"name": "code", "configMap": {"name": self.name, "items": items}}],
            },
        }

    def _ask(self, method: str, path: str) -> Json:
        answer = self.kube.through(method, "Pod", self.namespace, f"{self.name}:{PORT}", path)
        return dict(answer.value) if answer.status == 200 else {}

    @property
    def acknowledged(self) -> int:
        """How many records the cluster has promised to keep."""
        found = self._ask("GET", "/")
        assert not found.get("errors"), found
        return int(found.get("acknowledged", 0))

    def go_on(self, records: int = 200, *, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until so many more are acknowledged: the cluster takes writes."""
        before = self.acknowledged
        until(
            f"{records} more records are acknowledged",
            lambda: self.acknowledged >= before + records,
            timeout_s=timeout_s,
        )

    def stop(self) -> Json:
        """Ends the load, reads all back; fails if anything that was promised isn't so."""
        self._ask("POST", "/stop")
        self.verdict = until(
            "all is read back", lambda: self._ask("GET", "/verdict"), timeout_s=120
        )
        self.kube.delete("Pod", self.namespace, self.name)
        assert self.verdict.get("anomalies") == [], self.verdict
        assert self.verdict["errors"] == [], self.verdict
        assert self.verdict["acknowledged"] > 0
        return self.verdict
