"""The Kubernetes API for scenarios: plain calls by kubeconfig, the same to any server."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from kubernetes import client, config

Json = dict[str, Any]

TIMEOUT_S = 40.0
MANAGER = "headrace-e2e"

PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/{}pods",
    "Service": "/api/v1/{}services",
    "ServiceAccount": "/api/v1/{}serviceaccounts",
    "ConfigMap": "/api/v1/{}configmaps",
    "Secret": "/api/v1/{}secrets",
    "Event": "/api/v1/{}events",
    "PersistentVolumeClaim": "/api/v1/{}persistentvolumeclaims",
    "StatefulSet": "/apis/apps/v1/{}statefulsets",
    "Deployment": "/apis/apps/v1/{}deployments",
    "PodDisruptionBudget": "/apis/policy/v1/{}poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/{}networkpolicies",
    "Lease": "/apis/coordination.k8s.io/v1/{}leases",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Role": "/apis/rbac.authorization.k8s.io/v1/{}roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/{}rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "BrokerCluster": "/apis/headrace.dev/v1alpha1/{}brokerclusters",
    "Topic": "/apis/headrace.dev/v1alpha1/{}topics",
    "ConsumerGroup": "/apis/headrace.dev/v1alpha1/{}consumergroups",
}


class Refused(Exception):
    """The API server said no."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body."""

    status: int
    text: str

    @property
    def value(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.text)


class Kube:
    """A client of one API server, by a kubeconfig's path."""

    def __init__(self, kubeconfig: str) -> None:
        self._found = client.Configuration()
        load: Any = config.load_kube_config
        load(config_file=kubeconfig, client_configuration=self._found)
        context = ssl.create_default_context(cafile=self._found.ssl_ca_cert)
        if self._found.cert_file:
            context.load_cert_chain(self._found.cert_file, self._found.key_file)
        if not self._found.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._pool = urllib3.PoolManager(ssl_context=context, retries=False, maxsize=8)

    @property
    def host(self) -> str:
        """The server's address."""
        return str(urlsplit(self._found.host).netloc)

    def close(self) -> None:
        """Ends all connections."""
        self._pool.clear()

    # --- requests ---

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        **query: str,
    ) -> Answer:
        """One request and whatever is answered."""
        headers = {"Content-Type": content_type}
        token = self._found.get_api_key_with_prefix("authorization")
        token = token or self._found.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token if " " in token else f"Bearer {token}"
        asked = f"?{urlencode(query)}" if query else ""
        response = self._pool.request(
            method,
            self._found.host + path + asked,
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
            timeout=TIMEOUT_S,
        )
        return Answer(response.status, response.data.decode(errors="replace"))

    def call(self, method: str, path: str, body: Any = None, **options: str) -> Json:
        """One request that is to succeed.

        Raises:
            Refused: it doesn't.
        """
        answer = self.send(method, path, body, **options)
        if answer.status >= 300:
            with contextlib.suppress(ValueError):
                raise Refused(answer.status, str(answer.value.get("message", answer.text)))
            raise Refused(answer.status, answer.text)
        return dict(answer.value)

    # --- objects ---

    def path(self, kind: str, namespace: str = "", name: str = "", more: str = "") -> str:
        """An object's path, or a collection's."""
        base = PATHS[kind].format(f"namespaces/{namespace}/" if namespace else "")
        return base + "".join(f"/{part}" for part in (name, more) if part)

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object, if it is there."""
        try:
            return self.call("GET", self.path(kind, namespace, name))
        except Refused as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, namespace: str = "", **query: str) -> list[Json]:
        """All objects of a kind."""
        found = self.call("GET", self.path(kind, namespace), **query)
        return [dict(item) for item in found["items"]]

    def apply(self, value: Json, namespace: str = "") -> Json:
        """Server-side apply, as `kubectl apply --server-side --force-conflicts`."""
        kind, meta = value["kind"], value["metadata"]
        where = meta.get("namespace", namespace)
        path = self.path(kind, where if "{}" in PATHS[kind] else "", meta["name"])
        return self.call(
            "PATCH", path, value, content_type="application/apply-patch+yaml",
            fieldManager=MANAGER, force="true",
        )  # fmt: skip

    def patch(self, kind: str, namespace: str, name: str, change: Json, more: str = "") -> Json:
        """A merge patch."""
        path = self.path(kind, namespace, name, more)
        return self.call("PATCH", path, change, content_type="application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str, *, grace_s: int | None = None) -> None:
        """DELETE; what is gone already is fine."""
        body = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self.call("DELETE", self.path(kind, namespace, name), body)
        except Refused as error:
            if error.code != 404:
                raise

    # --- through the API server ---

    def through(
        self, method: str, kind: str, namespace: str, name: str, path: str, body: Any = None
    ) -> Answer:
        """A request to a pod or a service (`name:port`) by way of the API server."""
        base = self.path(kind, namespace, name, "proxy")
        route, _, asked = path.partition("?")
        query = dict(pair.split("=", 1) for pair in asked.split("&") if pair)
        return self.send(method, base + route, body, **query)

    def log(self, namespace: str, pod: str, *, lines: int = 60) -> str:
        """The end of a pod's log, or why there is none."""
        path = self.path("Pod", namespace, pod, "log")
        return self.send("GET", path, tailLines=str(lines)).text


def documents(text: str) -> Iterator[Json]:
    """The objects of a manifest."""
    import yaml

    for each in yaml.safe_load_all(text):
        if each:
            yield each


def kubeconfig_of_a_real_cluster() -> str:
    """Its path, if the scenarios are to run in one: then `HEADRACE_E2E_KUBECONFIG` is set
    (`make e2e KUBECONFIG=...`). A KUBECONFIG that lies around is not enough."""
    return os.environ.get("HEADRACE_E2E_KUBECONFIG", "")
