"""The whole small Kubernetes with real processes, through its API alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubelet.emulator import Emulator, why_not
from suite.kube import Kube, Refused
from suite.waiting import until

PROGRAM = """
import http.server, os, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die": os._exit(3)
        self.send_response(200); self.end_headers()
        seen = {"hosts": pathlib.Path("/etc/hosts").read_text(),
                "note": pathlib.Path("/etc/odd/place/note").read_text(),
                "token": pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token").read_text(),
                "data": sorted(os.listdir("/var/lib/odd")), "name": os.environ["NAME"]}
        import json; self.wfile.write(json.dumps(seen).encode())
    def log_message(self, *args): print("asked", self.path, flush=True)
open(f"/var/lib/odd/{os.getpid()}", "w").close()
http.server.HTTPServer((os.environ["LISTEN"], 8080), Handler).serve_forever()
"""  # noqa: E501


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    if missing := why_not():
        pytest.skip(missing)
    with Emulator(tmp_path_factory.mktemp("emulator"), images=("known",)) as found:
        yield found


@pytest.fixture
def kube(emulator: Emulator) -> Iterator[Kube]:
    client = Kube(str(emulator.kubeconfig))
    yield client
    client.close()


def stateful_set(name: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    container = {
        "name": "main",
        "image": "known",
        "command": ["python", "-c", PROGRAM],
        "env": [
            {"name": "LISTEN", "value": "0.0.0.0"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/odd"},
            {"name": "note", "mountPath": "/etc/odd/place"},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 2,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [container],
                    "volumes": [{"name": "note", "configMap": {"name": "note"}}],
                },
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "data"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Mi"}},
                    },
                }
            ],
            **spec,
        },
    }


def service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterIP": "None",
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 8080, "targetPort": "http"}],
        },
    }


def ask(kube: Kube, pod: str) -> dict[str, Any]:
    answer = kube.through("GET", "Pod", "default", f"{pod}:8080", "/")
    if answer.status != 200:
        raise Refused(answer.status, answer.text)
    return dict(json.loads(answer.text))


def ready(kube: Kube, name: str) -> int:
    found = kube.get("StatefulSet", "default", name) or {}
    return int(found.get("status", {}).get("readyReplicas", 0))


def test_pods_are_processes_with_volumes_names_and_a_token(kube: Kube) -> None:
    note = {"metadata": {"name": "note", "namespace": "default"}, "data": {"note": "hello"}}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", **note})
    kube.apply(service("odd"))
    kube.apply(stateful_set("odd"))
    until("both are ready", lambda: ready(kube, "odd") == 2)
    seen = ask(kube, "odd-1")
    assert seen["name"] == "odd-1"
    assert seen["note"] == "hello"
    assert seen["token"] == "sa:default:default"
    until("it knows the other", lambda: "odd-0.odd.default.svc" in ask(kube, "odd-1")["hosts"])
    assert not Path("/etc/odd").exists()
    assert not Path("/var/lib/odd").exists()

    # A container that dies starts again in its pod, with its files.
    kube.through("GET", "Pod", "default", "odd-1:8080", "/die")
    until("it runs again", lambda: len(ask(kube, "odd-1")["data"]) == 2)
    pod = kube.get("Pod", "default", "odd-1")
    assert pod is not None
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
    assert "asked /" in kube.log("default", "odd-1")

    # A pod that is deleted is another one in the same place.
    kube.delete("Pod", "default", "odd-1")
    until(
        "there is another",
        lambda: (
            (found := kube.get("Pod", "default", "odd-1"))
            and found["metadata"]["uid"] != pod["metadata"]["uid"]
        ),
    )
    until("it has its files", lambda: len(ask(kube, "odd-1")["data"]) == 3)

    # A budget that allows nothing keeps pods from being evicted.
    budget = {"minAvailable": 2, "selector": {"matchLabels": {"app": "odd"}}}
    meta = {"name": "odd", "namespace": "default"}
    kube.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta,
            "spec": budget,
        }
    )
    until("both are ready again", lambda: ready(kube, "odd") == 2)
    path = kube.path("Pod", "default", "odd-0", "eviction")
    with pytest.raises(Refused) as refused:
        kube.call("POST", path, {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": meta})
    assert refused.value.code == 429

    kube.apply(stateful_set("odd", replicas=0))
    until("nobody is left", lambda: not kube.list("Pod", "default", labelSelector="app=odd"))
    assert len(kube.list("PersistentVolumeClaim", "default")) == 2


def test_a_lost_nodes_pods_are_marked_and_return_with_it(emulator: Emulator, kube: Kube) -> None:
    note = {"metadata": {"name": "note", "namespace": "default"}, "data": {"note": "hello"}}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", **note})
    kube.apply(stateful_set("lone", replicas=1))
    until("it is ready", lambda: ready(kube, "lone") == 1)
    pod = kube.get("Pod", "default", "lone-0")
    assert pod is not None
    emulator.lose_node(pod["spec"]["nodeName"])
    until("it is not ready", lambda: ready(kube, "lone") == 0)
    emulator.bring_back_node(pod["spec"]["nodeName"])
    until("it is ready again", lambda: ready(kube, "lone") == 1)
    kube.apply(stateful_set("lone", replicas=0))
    until("it is gone", lambda: kube.get("Pod", "default", "lone-0") is None)


def test_an_image_that_is_nowhere_is_told(kube: Kube) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "nowhere", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "missing"}]},
    }
    kube.apply(pod)

    def reason() -> str:
        found = kube.get("Pod", "default", "nowhere") or {}
        statuses = found["status"]["containerStatuses"]
        return str(statuses[0]["state"]["waiting"]["reason"])

    until("it says so", lambda: reason() == "ImagePullBackOff")
    kube.delete("Pod", "default", "nowhere")
    until("it is gone", lambda: kube.get("Pod", "default", "nowhere") is None)
