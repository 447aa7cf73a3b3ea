"""Where the scenarios run: a small Kubernetes of this machine's own, or a real one.

`HEADRACE_E2E_KUBECONFIG` and `HEADRACE_E2E_IMAGE` choose the real one; `make e2e` sets them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubelet.emulator import Emulator, why_not
from suite import install
from suite.cluster import Cluster
from suite.kube import Kube, kubeconfig_of_a_real_cluster
from suite.waiting import until

IMAGE = "headrace:dev"


@dataclass(slots=True)
class World:
    """The Kubernetes, with the operator in it. `emulator` is None in a real one."""

    kube: Kube
    image: str
    emulator: Emulator | None

    @property
    def is_emulated(self) -> bool:
        """Whether things can be broken that nobody can break in a real one."""
        return self.emulator is not None

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """A namespace of the scenario's own, removed behind it."""
        name = f"e2e-{secrets.token_hex(3)}"
        labels = {"pod-security.kubernetes.io/warn": "restricted"}
        self.kube.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        )
        try:
            yield name
        finally:
            self.tidy(name)

    def tidy(self, namespace: str) -> None:
        """Removes all of a scenario; what is left over is no reason to fail."""
        if self.emulator is not None:
            self.emulator.api.faults.clear()
            self.emulator.bring_back_nodes()
        for pod in self.kube.list("Pod", namespace):
            self.kube.delete("Pod", namespace, pod["metadata"]["name"], grace_s=0)
        self.kube.delete("Namespace", "", namespace)
        if self.emulator is not None:
            until(
                "the namespace is gone",
                lambda: self.kube.get("Namespace", "", namespace) is None,
                timeout_s=60,
            )

    def cluster(self, namespace: str, name: str = "main") -> Cluster:
        """A cluster that can be created there."""
        return Cluster(self.kube, namespace, self.image, name)

    def report(self, namespace: str) -> str:
        """What a person wants to know when a scenario failed."""
        lines = []
        for kind in ("BrokerCluster", "Topic", "ConsumerGroup"):
            for each in self.kube.list(kind, namespace):
                name = each["metadata"]["name"]
                lines.append(f"{kind} {name}: {each['spec']}\n   {each.get('status')}")
        for pod in self.kube.list("Pod", namespace):
            name, found = pod["metadata"]["name"], pod.get("status", {})
            lines.append(f"Pod {name}: {found.get('phase')} {found.get('containerStatuses')}")
            lines.append(self.kube.log(namespace, name, lines=12))
        for event in self.kube.list("Event", namespace):
            lines.append(
                f"Event {event.get('reason')}: {event.get('message') or event.get('note')}"
            )
        return "\n".join([*lines, install.log(self.kube)])


@contextmanager
def the_world(folder: Path) -> Iterator[World]:
    """A Kubernetes with the operator installed.

    Raises:
        RuntimeError: there is none and this machine can't have an emulated one.
    """
    with ExitStack() as kept:
        real = kubeconfig_of_a_real_cluster()
        image = os.environ.get("HEADRACE_E2E_IMAGE", IMAGE)
        emulator: Emulator | None = None
        if not real:
            if missing := why_not():
                raise RuntimeError(missing)
            emulator = kept.enter_context(Emulator(folder, images=(image, "headrace:*")))
        kube = Kube(real or str(emulator.kubeconfig if emulator else ""))
        kept.callback(kube.close)
        install.install(kube, image)
        yield World(kube, image, emulator)
