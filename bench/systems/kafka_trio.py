"""Three Kafka nodes, each broker and controller, for what replication costs there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from headrace.cli.bench.workload import chunks
from systems.base import VALUES, Missing
from systems.kafka_node import (
    JVM_OPTIONS,
    LISTS_OF,
    PRODUCER,
    PROPERTIES,
    Failures,
    Kafka,
    confluent_kafka,
    finish,
)
from systems.server import Server, free_port

if confluent_kafka is not None:
    from confluent_kafka.admin import AdminClient, NewTopic

HEAP = ("-Xms512m", "-Xmx512m")
"""Each node's: three of them with the 1 GB of the start scripts would crowd a small machine."""

MORE = """min.insync.replicas=2
default.replication.factor={nodes}
"""


class KafkaCluster(Kafka):
    """As many nodes as it is told; topics have a replica on each."""

    name = "Kafka cluster"

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._servers: list[Server] = []

    async def start(self, folder: Path) -> None:
        """Format and start all, wait until all are registered."""
        ports = [(free_port(), free_port()) for _ in range(self._nodes)]
        voters = ",".join(f"{n}@127.0.0.1:{ports[n - 1][1]}" for n in range(1, self._nodes + 1))
        self._bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in ports)
        options = [each for each in JVM_OPTIONS if not each.startswith("-Xm")]
        java = [self._java, *options, *HEAP, "-cp", f"{self._jars}/*"]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for number, (port, controller) in enumerate(ports, start=1):
            place = folder / f"node-{number}"
            place.mkdir(parents=True)
            text = PROPERTIES.format(port=port, controller=controller, folder=place)
            text = text.replace("node.id=1", f"node.id={number}")
            text = text.replace(f"voters=1@127.0.0.1:{controller}", f"voters={voters}")
            properties = place / "server.properties"
            properties.write_text(text + MORE.format(nodes=self._nodes))
            tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
            done = await asyncio.to_thread(
                subprocess.run, [*java, *tool], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise Missing(f"Kafka's storage can't be formatted: {done.stderr[-500:]}")
            command = [*java, "kafka.Kafka", str(properties)]
            self._servers.append(Server(command, log=place / "kafka.log", environment={}))
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        for server in self._servers:
            await server.until(self._answers)

    async def _answers(self) -> bool:
        try:
            found = await asyncio.to_thread(self._admin.list_topics, timeout=1.0)
        except confluent_kafka.KafkaException:
            return False
        return len(found.brokers) == self._nodes

    async def stop(self) -> None:
        """SIGTERM to all at once."""
        await asyncio.gather(*[server.stop() for server in self._servers])

    async def produce(self, records: int, acks: str) -> float:
        """`produce_batch` into a new topic of one partition; records a second."""
        topic = f"rate-{uuid.uuid4().hex[:8]}"
        new = NewTopic(topic, num_partitions=1, replication_factor=self._nodes)
        await asyncio.to_thread(self._admin.create_topics([new])[topic].result, 30)
        promise: dict[str, Any] = {"acks": "1"}
        if acks == "all":
            promise = {"acks": "all", "enable.idempotence": True}
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._bootstrap, **PRODUCER, **promise}
        )
        failures = Failures()
        send(producer, topic, 1_000, failures)
        began = time.perf_counter()
        send(producer, topic, records, failures)
        rate = records / (time.perf_counter() - began)
        await asyncio.to_thread(self._admin.delete_topics([topic])[topic].result, 30)
        return rate


def send(producer: Any, topic: str, records: int, failures: Failures) -> None:
    """Returns once all are acknowledged."""
    for piece in chunks(VALUES, records, LISTS_OF):
        messages = [{"value": value} for value in piece]
        while messages:
            producer.produce_batch(topic, messages, on_delivery=failures)
            messages = [{"value": m["value"]} for m in messages if "_error" in m]
            producer.poll(0.01 if messages else 0)
    finish(producer, failures)


@contextlib.asynccontextmanager
async def kafka_cluster(folder: Path, *, nodes: int) -> AsyncIterator[KafkaCluster]:
    """A running one; stopped afterwards.

    Raises:
        Missing: Kafka can't be had on this machine.
    """
    cluster = KafkaCluster(nodes)
    cluster.check()
    try:
        await cluster.start(folder)
        yield cluster
    finally:
        await cluster.stop()
