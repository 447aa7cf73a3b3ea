"""Kafka 4: one node in KRaft mode, from Maven Central, and confluent-kafka."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from headrace.cli.bench.workload import chunks
from systems.base import (
    CONSUMING,
    PRODUCING,
    STALLED_S,
    VALUES,
    Level,
    Missing,
    OnValue,
    Over,
    Send,
    SendOne,
    Stalled,
    System,
    Work,
)
from systems.server import Server, find_program, free_port

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic
except ImportError:
    confluent_kafka = None

KAFKA_VERSION = "4.2.0"
SLF4J_VERSION = "1.7.36"

LISTS_OF = 10_000
POLL_EVERY = 1_000
"""Records produced between two calls of poll, which serves callbacks."""

JVM_OPTIONS = [
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]
"""As bin/kafka-server-start.sh and kafka-run-class.sh of Kafka's own distribution set them."""

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>bench-peers</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{kafka}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>{slf4j}</version></dependency>
  </dependencies>
</project>
"""

PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/logs
num.network.threads=3
num.io.threads=8
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""

PRODUCER: dict[str, Any] = {
    "log_level": 2,
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "delivery.report.only.error": True,
    "queue.buffering.max.messages": 1_000_000,
}
"""`only.error`: failures are reported record by record, successes cost no callback."""

CONSUMER: dict[str, Any] = {
    "log_level": 2,
    "group.id": "bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 10,
}
"""Partitions are assigned, no group is joined: joining takes seconds. Prefetching so far ahead was
faster than the defaults: 990,000 records/s in lists against 212,000."""

ALL = Level(
    acks="all, idempotent",
    flush="none",
    works=PRODUCING | CONSUMING,
    settings="linger 5 ms, 1 MiB batches",
)
LEADER = Level(acks="1", flush="none", works=PRODUCING, settings="linger 5 ms, 1 MiB batches")
AT_ONCE = Level(acks="all, idempotent, linger 0", flush="none", works=frozenset({Work.LATENCY}))
LINGERING = Level(
    acks="all, idempotent, linger 5 ms", flush="none", works=frozenset({Work.LATENCY})
)


class Kafka(System):
    """One broker that is its own controller."""

    name = "Kafka"
    levels = (ALL, LEADER, AT_ONCE, LINGERING)
    records = {
        Work.BULK: 500_000,
        Work.EACH: 300_000,
        Work.LISTS: 500_000,
        Work.ITERATE: 300_000,
    }

    def check(self) -> None:
        """Client, Java, and the jars, which are fetched once into the cache folder."""
        if confluent_kafka is None:
            raise Missing("confluent-kafka is not installed (bench/requirements.txt)")
        self._java = find_program("java", package="default-jre-headless")
        self._jars = fetch_jars()

    async def start(self, folder: Path) -> None:
        """Format the storage, start the node, wait until it answers."""
        port, controller = free_port(), free_port()
        self._bootstrap = f"127.0.0.1:{port}"
        properties = folder / "server.properties"
        properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
        java = [self._java, *JVM_OPTIONS, "-cp", f"{self._jars}/*"]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
        done = await asyncio.to_thread(
            subprocess.run, [*java, *tool], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Missing(f"Kafka's storage can't be formatted: {done.stderr[-500:]}")
        self._server = Server(
            [*java, "kafka.Kafka", str(properties)], log=folder / "kafka.log", environment={}
        )
        # librdkafka says on stderr that nobody listens yet; log_level 0 keeps that to itself.
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        await self._server.until(self._answers)

    async def _answers(self) -> bool:
        try:
            await asyncio.to_thread(self._admin.list_topics, timeout=1.0)
        except confluent_kafka.KafkaException:
            return False
        return True

    async def stop(self) -> None:
        """SIGTERM is a clean stop."""
        await self._server.stop()

    def versions(self) -> str:
        """Server, binding, C library."""
        binding, native = confluent_kafka.__version__, confluent_kafka.libversion()[0]
        return f"{KAFKA_VERSION}, confluent-kafka {binding} (librdkafka {native})"

    def server_pid(self) -> int:
        """The JVM's."""
        return self._server.pid

    async def new_stream(self, name: str, level: Level) -> None:
        """A topic of one partition and one replica."""
        topic = NewTopic(name, num_partitions=1, replication_factor=1)
        await asyncio.to_thread(self._admin.create_topics([topic])[name].result, 30)

    async def drop_stream(self, name: str) -> None:
        """Delete it; Kafka removes the files a minute later."""
        await asyncio.to_thread(self._admin.delete_topics([name])[name].result, 30)

    async def stored(self, name: str) -> int:
        """By the offsets at both ends."""
        consumer = confluent_kafka.Consumer({**CONSUMER, "bootstrap.servers": self._bootstrap})
        try:
            low, high = consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(name, 0), timeout=10
            )
        finally:
            consumer.close()
        return int(high - low)

    def _producer(self, level: Level, **settings: Any) -> Any:
        promise = {"acks": "1"} if level is LEADER else {"acks": "all", "enable.idempotence": True}
        return confluent_kafka.Producer(
            {"bootstrap.servers": self._bootstrap, **PRODUCER, **promise, **settings}
        )

    @contextlib.asynccontextmanager
    async def producer(self, stream: str, level: Level, work: Work) -> AsyncIterator[Send]:
        """`produce_batch`, or `produce` and `poll`; then `flush`."""
        producer = self._producer(level)
        failures = Failures()

        async def bulk(records: int) -> None:
            for piece in chunks(VALUES, records, LISTS_OF):
                messages = [{"value": value} for value in piece]
                while True:
                    taken = producer.produce_batch(stream, messages, on_delivery=failures)
                    if taken == len(messages):
                        break
                    messages = [{"value": m["value"]} for m in messages if "_error" in m]
                    producer.poll(0.01)
                producer.poll(0)
            finish(producer, failures)

        async def each(records: int) -> None:
            produce = producer.produce
            for piece in chunks(VALUES, records, POLL_EVERY):
                for value in piece:
                    try:
                        produce(stream, value, on_delivery=failures)
                    except BufferError:
                        producer.poll(0.01)
                        produce(stream, value, on_delivery=failures)
                producer.poll(0)
            finish(producer, failures)

        yield bulk if work is Work.BULK else each

    async def consume(self, stream: str, records: int, work: Work, over: Over) -> int:
        """`consume` in lists, or `poll`."""
        consumer = confluent_kafka.Consumer({**CONSUMER, "bootstrap.servers": self._bootstrap})
        try:
            consumer.assign([confluent_kafka.TopicPartition(stream, 0, 0)])
            read = read_lists if work is Work.LISTS else read_one_by_one
            size = read(consumer, records)
            over()
            return size
        finally:
            consumer.close()

    @contextlib.asynccontextmanager
    async def live(self, stream: str, level: Level, on_value: OnValue) -> AsyncIterator[SendOne]:
        """`produce` on the loop, `poll` in a thread."""
        linger = {} if level is LINGERING else {"linger.ms": 0}
        producer = self._producer(level, **linger)
        failures = Failures()
        consumer = confluent_kafka.Consumer({**CONSUMER, "bootstrap.servers": self._bootstrap})
        consumer.assign([confluent_kafka.TopicPartition(stream, 0, 0)])
        stopping = threading.Event()

        def receive() -> None:
            while not stopping.is_set():
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    on_value(message.value())

        def send(value: bytes) -> None:
            producer.produce(stream, value, on_delivery=failures)
            producer.poll(0)

        receiver = threading.Thread(target=receive, name="kafka-receiver")
        receiver.start()
        try:
            yield send
        finally:
            stopping.set()
            await asyncio.to_thread(receiver.join)
            consumer.close()
        finish(producer, failures)


class Failures:
    """Delivery reports; with `only.error` they come for failures alone."""

    def __init__(self) -> None:
        self.first: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None and self.first is None:
            self.first = error


def finish(producer: Any, failures: Failures) -> None:
    """Wait for every acknowledgement."""
    left = producer.flush(STALLED_S)
    if left or failures.first:
        raise Stalled(f"Kafka: {left:,} records unacknowledged, first failure {failures.first}")


def read_lists(consumer: Any, records: int) -> int:
    """`consume` waits until it has as many as asked for, so no more than are left."""
    size = count = 0
    while count < records:
        got = consumer.consume(min(LISTS_OF, records - count), timeout=STALLED_S)
        if not got:
            raise Stalled(f"Kafka gave {count:,} of {records:,} records")
        size += sum([len(message.value()) for message in got])
        count += len(got)
    return size


def read_one_by_one(consumer: Any, records: int) -> int:
    """`poll`, one message a call."""
    size = 0
    poll = consumer.poll
    for count in range(records):
        message = poll(STALLED_S)
        if message is None or message.error() is not None:
            raise Stalled(f"Kafka gave {count:,} of {records:,} records")
        size += len(message.value())
    return size


def fetch_jars() -> Path:
    """The folder of Kafka's jars; resolved from Maven Central the first time.

    Raises:
        Missing: no mvn, or no access.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-bench"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    mvn = find_program("mvn", package="maven")
    building = cache / f"kafka-{KAFKA_VERSION}.{os.getpid()}"
    building.mkdir(parents=True)
    try:
        pom = building / "pom.xml"
        pom.write_text(POM.format(kafka=KAFKA_VERSION, slf4j=SLF4J_VERSION))
        command = [mvn, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        options = [f"-DoutputDirectory={building / 'jars'}", "-DincludeScope=runtime"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"mvn could not resolve Kafka's jars: {done.stdout[-500:]}")
        with contextlib.suppress(OSError):  # another run was quicker
            (building / "jars").rename(jars)
    finally:
        shutil.rmtree(building)
    return jars
