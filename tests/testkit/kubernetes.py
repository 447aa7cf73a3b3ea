"""The Kubernetes API for tests: the emulator, and times short enough to test with."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from apiserver.server import ApiServer
from headrace.broker.store.kubernetes import KubernetesStore
from headrace.broker.store.kubernetes_api import KubernetesApi, Timing

QUICK = Timing(
    request_timeout_s=1.0,
    connect_timeout_s=1.0,
    throttled_s=1.0,
    watch_s=(1.0, 2.0),
    silence_s=0.5,
    relist_s=1.5,
    backoff_s=(0.01, 0.1),
)


def real_kubeconfig() -> str:
    """The path of a real cluster's kubeconfig, if there is one to test against."""
    return os.environ.get("HEADRACE_TEST_KUBECONFIG") or os.environ.get("KUBECONFIG", "")


@asynccontextmanager
async def real_namespace() -> AsyncIterator[tuple[str, str]]:
    """A namespace of the test's own in the real cluster: (kubeconfig, namespace)."""
    kubeconfig = real_kubeconfig()
    api = await KubernetesApi.open(timing=Timing(), kubeconfig=kubeconfig)
    name = f"headrace-test-{secrets.token_hex(4)}"
    try:
        made = await api.send(
            "POST", "/api/v1/namespaces",
            body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        )  # fmt: skip
        assert made.status == 201, made
        yield kubeconfig, name
        await api.send("DELETE", f"/api/v1/namespaces/{name}")
    finally:
        await api.close()


async def open_store(
    api: ApiServer,
    folder: Path,
    *,
    cluster: str = "mill",
    token: str = "admin",
    timing: Timing = QUICK,
) -> KubernetesStore:
    """A store over an emulated API server; the kubeconfig lies in `folder`."""
    file = api.write_kubeconfig(folder / "kubeconfig", token=token)
    return await KubernetesStore.open(cluster=cluster, kubeconfig=str(file), timing=timing)
