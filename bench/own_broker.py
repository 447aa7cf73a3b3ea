"""Brokers for the bench scripts: started in a temporary folder, watched through /proc."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.cli import tables
from headrace.cli.dev_cluster import DevCluster, free_port_pair
from headrace.cli.dev_plan import plan_cluster
from headrace.cli.output import print_tables

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """What a process holds and has used so far."""

    rss_bytes: int
    cpu_s: float
    fds: int


def usage_of(pid: int) -> Usage:
    """Read from /proc, so Linux only."""
    proc = Path(f"/proc/{pid}")
    # The name, in parentheses, may hold spaces: what is counted begins after it.
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    return Usage(
        rss_bytes=int((proc / "statm").read_text().split()[1]) * PAGE_BYTES,
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        fds=len(os.listdir(proc / "fd")),
    )


@contextlib.contextmanager
def data_folder(parent: str | None = None):
    """A temporary folder, removed afterwards; `parent` for another disk."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=parent) as folder:
        yield Path(folder)


@contextlib.asynccontextmanager
async def own_broker(
    folder: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[DevCluster]:
    """A broker on free ports over `folder`; stopped cleanly afterwards."""
    async with own_cluster(folder, brokers=1, environment=environment) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def own_cluster(
    folder: Path, *, brokers: int, environment: Mapping[str, str] | None = None
) -> AsyncIterator[DevCluster]:
    """Brokers on free ports over `folder`; stopped cleanly afterwards. Who dies is started again
    after a second."""
    port = free_port_pair(brokers=brokers)
    plan = plan_cluster(brokers=brokers, data_dir=folder / "data", port=port)
    cluster = DevCluster(plan, environment=environment, log_path=folder / "broker.log", quiet=True)
    async with cluster:
        yield cluster


def broker_usage(cluster: DevCluster) -> Usage:
    """What the one broker holds now."""
    pid = cluster.pid(0)
    assert pid is not None, "the broker is not running"
    return usage_of(pid)


def show(name: str, figures: Mapping[str, float | int | str], *, as_json: bool) -> None:
    """Figures as a table or as JSON, with where they were measured."""
    environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
    }
    if as_json:
        json.dump({"bench": name, "environment": environment, "figures": figures}, sys.stdout)
        print()
        return
    where = ", ".join(f"{key} {value}" for key, value in environment.items())
    rows = [
        (key, f"{value:,}" if isinstance(value, int) else value) for key, value in figures.items()
    ]
    print_tables(f"{name}: {where}", tables.table(("figure", ">value"), rows))
