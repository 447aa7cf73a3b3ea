"""A BrokerCluster and what belongs to it, in the words of scenarios."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from suite.clients import Clients
from suite.kube import Answer, Json, Kube, Refused
from suite.waiting import TIMEOUT_S, until

READY_S = 240.0
API_VERSION = "headrace.dev/v1alpha1"


@dataclass(slots=True)
class Cluster:
    """One cluster in a namespace. Every verb goes to the Kubernetes API."""

    kube: Kube
    namespace: str
    image: str
    name: str = "main"

    # --- resources ---

    def create(self, *, replicas: int = 3, **spec: Any) -> Cluster:
        """Applies the BrokerCluster."""
        whole = {
            "replicas": replicas,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "storage": {"size": "1Gi"},
            **spec,
        }
        self.put("BrokerCluster", self.name, whole)
        return self

    def put(self, kind: str, name: str, spec: Json, **metadata: Any) -> Json:
        """Applies a resource."""
        return self.kube.apply(
            {
                "apiVersion": API_VERSION,
                "kind": kind,
                "metadata": {"name": name, "namespace": self.namespace, **metadata},
                "spec": spec,
            }
        )

    def topic(self, name: str, **spec: Any) -> Json:
        """Applies a Topic of this cluster."""
        return self.put("Topic", name, {"clusterRef": {"name": self.name}, **spec})

    def group(self, name: str, **spec: Any) -> Json:
        """Applies a ConsumerGroup of this cluster."""
        return self.put("ConsumerGroup", name, {"clusterRef": {"name": self.name}, **spec})

    def get(self, kind: str = "BrokerCluster", name: str = "") -> Json:
        """A resource as it is."""
        found = self.kube.get(kind, self.namespace, name or self.name)
        assert found is not None, f"there is no {kind} {name or self.name}"
        return found

    def change(self, change: Json, kind: str = "BrokerCluster", name: str = "") -> Json:
        """Merges into a resource's spec."""
        return self.kube.patch(kind, self.namespace, name or self.name, {"spec": change})

    def annotate(self, key: str, value: str | None, kind: str = "BrokerCluster") -> None:
        """Sets one of our annotations, or takes it away."""
        notes = {"metadata": {"annotations": {f"headrace.dev/{key}": value}}}
        self.kube.patch(kind, self.namespace, self.name, notes)

    def scale(self, replicas: int) -> None:
        """`kubectl scale`."""
        scale = {"spec": {"replicas": replicas}}
        self.kube.patch("BrokerCluster", self.namespace, self.name, scale, "scale")

    # --- what is said about it ---

    def condition(self, kind: str, name: str = "", type: str = "Ready") -> Json:
        """A condition; empty if there is none."""
        conditions = self.get(kind, name).get("status", {}).get("conditions") or []
        return next((each for each in conditions if each["type"] == type), {})

    def is_ready(self, kind: str = "BrokerCluster", name: str = "") -> bool:
        """Whether a resource is Ready as it was last written."""
        found = self.get(kind, name)
        ready = self.condition(kind, name)
        return (
            ready.get("status") == "True"
            and ready.get("observedGeneration") == found["metadata"]["generation"]
        )

    def until_ready(
        self, kind: str = "BrokerCluster", name: str = "", *, timeout_s: float = READY_S
    ) -> None:
        """Waits until a resource is Ready as it was last written."""
        try:
            until(f"{kind} {name} is Ready", lambda: self.is_ready(kind, name), timeout_s=timeout_s)
        except AssertionError as error:
            state = self.get(kind, name).get("status")
            raise AssertionError(f"{error}\n{state}") from error

    def until_said(
        self, reason: str, kind: str = "BrokerCluster", name: str = "", *,
        type: str = "Ready", timeout_s: float = TIMEOUT_S,
    ) -> Json:  # fmt: skip
        """Waits until a condition has a reason."""
        return (
            until(
                f"{type} of {kind} {name} says {reason}",
                lambda: (
                    found
                    if (found := self.condition(kind, name, type)).get("reason") == reason
                    else None
                ),
                timeout_s=timeout_s,
            )
            or {}
        )

    def events(self) -> list[str]:
        """Reasons of the events in the namespace."""
        return [each.get("reason", "") for each in self.kube.list("Event", self.namespace)]

    # --- its pods ---

    def pods(self) -> dict[str, Json]:
        """Its brokers' pods by name."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=broker"
        found = self.kube.list("Pod", self.namespace, labelSelector=selector)
        return {pod["metadata"]["name"]: pod for pod in found}

    def uid_of(self, broker: int) -> str:
        """Which pod is a broker now."""
        return str(self.pods()[f"{self.name}-{broker}"]["metadata"]["uid"])

    def claims(self) -> dict[str, Json]:
        """Its volume claims by name."""
        found = self.kube.list("PersistentVolumeClaim", self.namespace)
        return {
            claim["metadata"]["name"]: claim
            for claim in found
            if claim["metadata"]["name"].startswith(f"data-{self.name}-")
        }

    # --- its brokers ---

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request to the brokers through the client Service.

        Raises:
            Refused: they say no, or nobody is there.
        """
        answer = until("a broker is ready", lambda: self._reach(method, path, body))
        if answer.status >= 300:
            raise Refused(answer.status, answer.text)
        return answer.value

    def _reach(self, method: str, path: str, body: Any) -> Answer | None:
        """None while the Service leads to nobody."""
        service = f"{self.name}:http"
        answer = self.kube.through(method, "Service", self.namespace, service, path, body)
        is_nobody = answer.status == 503 and "no endpoints available" in answer.text
        return None if is_nobody else answer

    def brokers(self) -> list[int]:
        """The brokers that run."""
        found = self.ask("GET", "/v1/cluster")["brokers"]
        return sorted(each["id"] for each in found if each["state"] == "running")

    def describe(self, topic: str) -> Json:
        """A topic as the brokers describe it."""
        return copy.deepcopy(dict(self.ask("GET", f"/v1/topics/{topic}")))

    def settings_of(self, topic: str) -> dict[str, Any]:
        """A topic's settings that somebody has made."""
        found = self.describe(topic)["config"]
        return {key: entry["value"] for key, entry in found.items() if entry["source"] == "topic"}

    def carrying(self) -> set[int]:
        """The brokers that hold a replica of anything."""
        topics = self.ask("GET", "/v1/topics?internal=true")["topics"]
        return {
            broker
            for each in topics
            for partition in self.describe(each["name"])["partitions"]
            for broker in partition["replicas"]
        }

    def send(self, topic: str, *values: str) -> None:
        """Sends records."""
        records = {"records": [{"value": value} for value in values]}
        self.ask("POST", f"/v1/topics/{topic}/records", records)

    def read(self, topic: str, partition: int = 0) -> list[str]:
        """The records of a partition."""
        path = f"/v1/topics/{topic}/partitions/{partition}/records?offset=0"
        return [record["value"] for record in self.ask("GET", path)["records"]]

    def load(self, topic: str, partitions: int) -> Clients:
        """Clients at work on a topic, from now on."""
        return Clients(
            self.kube, self.namespace, self.image,
            f"http://{self.name}.{self.namespace}.svc:9420", topic, partitions,
        ).start()  # fmt: skip
