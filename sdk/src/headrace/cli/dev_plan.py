"""What a local cluster looks like: ports, folders, environment and command of each broker. Pure.

DATA_DIR/dev.json          {"brokers": [{"id", "url", "pid"}]}, for tests and scripts
DATA_DIR/dev.lock          held by the `headrace dev` that uses the folder
DATA_DIR/cluster.secret    what the brokers know each other by
DATA_DIR/cluster.sqlite    the cluster's store, shared by the brokers
DATA_DIR/broker-0/ ...     each broker's data
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

PORTS_PER_BROKER = 2
"""Broker i listens on port + 2i (clients, peers) and port + 2i + 1 (health, metrics)."""

PORT_MAX = 65_535

BROKERS_DEFAULT = 3
"""Of a new cluster: the fewest that survive the loss of one."""


class DevBroker(msgspec.Struct):
    """A broker in dev.json. `pid` is None between its death and its restart."""

    id: int
    url: str
    pid: int | None


class DevState(msgspec.Struct):
    """dev.json."""

    brokers: list[DevBroker]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """How one broker is started."""

    broker_id: int
    host: str
    port: int
    environment: dict[str, str]

    @property
    def health_port(self) -> int:
        """Where /readyz is."""
        return self.port + 1

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://{self.host}:{self.port}"

    @property
    def ready_url(self) -> str:
        """Answers 200 once the broker serves."""
        return f"http://{self.host}:{self.health_port}/readyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """A local cluster."""

    data_dir: Path
    brokers: tuple[BrokerPlan, ...]

    @property
    def state_path(self) -> Path:
        """dev.json."""
        return self.data_dir / "dev.json"

    @property
    def lock_path(self) -> Path:
        """Held while the folder is in use."""
        return self.data_dir / "dev.lock"

    @property
    def secret_path(self) -> Path:
        """The cluster secret."""
        return self.data_dir / "cluster.secret"

    @property
    def bootstrap(self) -> str:
        """The address to give to people; any broker's would do."""
        return self.brokers[0].url

    @property
    def addresses(self) -> str:
        """All brokers' addresses, as clients take them: whichever is up will answer."""
        return ",".join(broker.url for broker in self.brokers)


def broker_count(asked: int | None, *, present: int) -> int:
    """How many brokers to run over a folder with the data of `present` brokers.

    Raises:
        ValueError: fewer than have data, which would leave partitions without their replicas.
    """
    if asked is None:
        return present or BROKERS_DEFAULT
    if asked < present:
        raise ValueError(
            f"--brokers {asked}: the data folder is of {present} brokers; run as many, or choose"
            " another folder with --data-dir"
        )
    return asked


def plan_cluster(
    *, brokers: int, data_dir: Path, port: int, host: str = "127.0.0.1"
) -> ClusterPlan:
    """The plan of a cluster of `brokers` brokers on ports from `port` up.

    Raises:
        ValueError: the ports don't fit below 65536.
    """
    if port < 1 or port + PORTS_PER_BROKER * brokers - 1 > PORT_MAX:
        raise ValueError(f"ports from {port} up: {brokers} broker(s) don't fit into 1-{PORT_MAX}")
    plans = tuple(_plan_broker(index, brokers, data_dir, port, host) for index in range(brokers))
    return ClusterPlan(data_dir=data_dir, brokers=plans)


def _plan_broker(
    index: int, brokers: int, data_dir: Path, first_port: int, host: str
) -> BrokerPlan:
    port = first_port + PORTS_PER_BROKER * index
    environment = {
        "HEADRACE_BROKER_ID": str(index),
        "HEADRACE_BROKERS_EXPECTED": str(brokers),
        "HEADRACE_DATA_DIR": str(data_dir / f"broker-{index}"),
        "HEADRACE_HOST": host,
        "HEADRACE_PORT": str(port),
        "HEADRACE_HEALTH_PORT": str(port + 1),
        "HEADRACE_ADVERTISED_URL": f"http://{host}:{port}",
        "HEADRACE_STORE": f"sqlite:{data_dir / 'cluster.sqlite'}",
        "HEADRACE_CLUSTER_SECRET_FILE": str(data_dir / "cluster.secret"),
    }
    return BrokerPlan(broker_id=index, host=host, port=port, environment=environment)
