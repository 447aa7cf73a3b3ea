"""What can be chosen about the nodes and controllers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`folder`: for all files. `url`: the API server. `authority`: file with its certificate.
    `network`: the two first parts of the addresses of pods and services, such as 127.83.

    `images`: patterns of the images that can be pulled. `path`: where their programs are; `entry`:
    what they run when a pod names no command. `keep`: folders that the programs need, seen by
    every pod.

    `probe_factor`: probes come so many times as often as they are asked for. `backoff_s`: pause
    before the second restart of a container, doubled each time, and its bound (a real kubelet: 10
    and 300). `node_lost_s`: a node that is silent for so long is not ready (a real one: 40).
    """

    folder: Path
    url: str
    authority: Path
    network: str
    images: tuple[str, ...] = ("headrace:*",)
    path: str = "/usr/bin:/bin"
    entry: tuple[str, ...] = ("headrace",)
    keep: tuple[str, ...] = ()
    probe_factor: float = 5.0
    backoff_s: tuple[float, float] = (0.5, 10.0)
    node_lost_s: float = 2.0
    nodes: int = 3
    node_room: dict[str, str] = field(default_factory=lambda: {"cpu": "64", "memory": "64Gi"})
