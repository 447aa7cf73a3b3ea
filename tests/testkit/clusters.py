"""Several real brokers on one store: a cluster of processes for tests that break it."""

from __future__ import annotations

import re
import secrets
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testkit.brokers import BrokerProcess


class ClusterProcesses:
    """Brokers 0 to n-1, each a process with a folder of its own; store and secret are shared."""

    def __init__(self, folder: Path, *, count: int = 3, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.store_path = folder / "cluster.sqlite"
        secret = folder / "cluster.secret"
        secret.write_text(secrets.token_hex(16))
        secret.chmod(0o600)
        shared = {
            "HEADRACE_STORE": f"sqlite:{self.store_path}",
            "HEADRACE_CLUSTER_SECRET_FILE": str(secret),
            "HEADRACE_BROKERS_EXPECTED": str(count),
            **environment,
        }
        self.brokers = [
            BrokerProcess(folder / f"b{index}", HEADRACE_BROKER_ID=str(index), **shared)
            for index in range(count)
        ]

    @property
    def bootstrap(self) -> str:
        """All addresses, as clients take them."""
        return ",".join(broker.advertised_url for broker in self.brokers)

    @property
    def log_tails(self) -> str:
        """The end of every broker's log."""
        return "\n".join(
            f"--- broker {index}\n{broker.log_text[-3000:]}"
            for index, broker in enumerate(self.brokers)
        )

    def start(self) -> ClusterProcesses:
        """Starts all at once and waits until they serve."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready()
        self.wait_known()
        return self

    def wait_known(self, timeout_s: float = 30.0) -> None:
        """Waits until every broker takes all for live: a topic needs as many as it has replicas."""
        deadline = time.monotonic() + timeout_s
        for broker in self.brokers:
            while True:
                with urllib.request.urlopen(broker.health_url + "/metrics", timeout=10) as answer:
                    found = re.search(rb"^headrace_live_brokers (\S+)", answer.read(), re.M)
                if found and float(found[1]) >= len(self.brokers):
                    break
                assert time.monotonic() < deadline, "not all are taken for live"
                time.sleep(0.05)

    def stop(self) -> list[int]:
        """SIGTERM to all at once; the exit codes."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            return list(pool.map(BrokerProcess.stop, self.brokers))

    def kill(self) -> None:
        """SIGKILL to all."""
        for broker in self.brokers:
            broker.kill()
