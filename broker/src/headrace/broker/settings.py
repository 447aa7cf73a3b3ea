"""What can be set on one broker, where it comes from, and what is refused.

Order: command-line flag > environment (`HEADRACE_` + key in capitals, dots to `_`) > file >
default. All keys here are *static*: read once at start. What may change while running lies in the
cluster object and is changed through Admin; no key is both.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.protocol import limits, routes
from headrace.protocol.errors import InvalidConfig

MIB = 1 << 20
_STORE = re.compile(r"^(sqlite:.+|kubernetes:[a-z0-9-]*/[^/]+)$", re.DOTALL)


def _key(key: str, default: Any, doc: str) -> Any:
    return field(default=default, metadata={"key": key, "doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One broker's settings; `field.metadata` has each one's key and meaning."""

    data_dir: str = _key("data.dir", "headrace-data/broker-0", "Folder of logs and markers.")
    broker_id: int = _key(
        "broker.id", 0, "Number of this broker; in Kubernetes the ordinal in POD_NAME."
    )
    host: str = _key("host", "127.0.0.1", "Address to listen on for clients and peers.")
    port: int = _key("port", routes.DEFAULT_PORT, "Port for clients and peers.")
    health_host: str = _key("health.host", "", "Address for health and metrics; empty: as host.")
    health_port: int = _key(
        "health.port", routes.HEALTH_PORT, "Port of /livez, /readyz and /metrics (no data)."
    )
    advertised_url: str = _key(
        "advertised.url", "", "How clients reach this broker; empty: http://host:port."
    )
    store: str = _key(
        "store",
        "",
        "Cluster state: sqlite:PATH, kubernetes, or kubernetes:NAMESPACE/CLUSTER (docs/store.md);"
        " empty: sqlite in the data folder.",
    )
    store_rebuild: str = _key(
        "store.rebuild",
        "no",
        "yes: a store that is empty is taken for a lost one, and the cluster that the data folder"
        " belongs to is made in it anew, for `headrace cluster recover`; no: the broker refuses.",
    )
    cluster_name: str = _key(
        "cluster.name",
        "headrace",
        "With store=kubernetes: the name that the cluster's objects begin with.",
    )
    brokers_expected: int = _key(
        "brokers.expected",
        1,
        "Brokers that shall run before the system's topics are made, so that these are replicated"
        " from the start; after 30 s they are made with those that run.",
    )
    rack: str = _key("rack", "", "Rack or zone of this broker, for placement.")
    rack_file: str = _key(
        "rack.file",
        "",
        "File with the rack, for when it is told later: waited for up to 60 s at the start.",
    )
    cluster_secret_file: str = _key(
        "cluster.secret.file",
        "",
        "File with the secret that brokers show each other; empty: one is made in the data folder.",
    )
    log_format: str = _key("log.format", "text", "text for people, json for collectors.")
    log_level: str = _key("log.level", "INFO", "DEBUG, INFO, WARNING or ERROR.")
    request_bytes_max: int = _key(
        "request.bytes.max", limits.BATCH_BYTES_MAX + MIB, "Bytes of one request's body."
    )
    inflight_bytes_max: int = _key(
        "inflight.bytes.max",
        256 * MIB,
        "Bytes of all request bodies and answers in memory at once; above it 429.",
    )
    connections_max: int = _key(
        "connections.max", 10_000, "Open client connections; more are closed at once."
    )
    request_idle_timeout_ms: int = _key(
        "request.idle.timeout.ms", 30_000, "A request that sends nothing for so long is ended."
    )
    fetch_wait_ms_max: int = _key(
        "fetch.wait.ms.max", 60_000, "Longest wait of a long poll; more is cut to it."
    )
    fetch_bytes_max: int = _key(
        "fetch.bytes.max", 64 * MIB, "Bytes of one fetch's answer; more is cut to it."
    )
    disk_reserve_bytes: int = _key(
        "disk.reserve.bytes", 256 * MIB, "Writes are refused when less is free on the volume."
    )
    io_threads: int = _key("io.threads", 4, "Threads for reads that the page cache can't answer.")
    flush_threads: int = _key("flush.threads", 2, "Threads that wait for fdatasync.")
    files_max: int = _key("files.max", 4_096, "Open log files at once; the least used are closed.")
    retention_interval_ms: int = _key(
        "retention.interval.ms", 30_000, "Pause between two looks for segments to delete."
    )
    compaction_interval_ms: int = _key(
        "compaction.interval.ms", 15_000, "Pause between two looks for logs to clean."
    )
    compaction_memory_bytes: int = _key(
        "compaction.memory.bytes",
        128 * MIB,
        "Memory of the keys of one pass: 128 MiB hold 1.2 million; more keys take more passes.",
    )
    compaction_rate: int = _key(
        "compaction.bytes.per.second",
        -1,
        "Bytes a second that compaction reads and writes; -1: no bound but its low priority.",
    )
    checkpoint_interval_ms: int = _key(
        "checkpoint.interval.ms", 5_000, "Pause between two writes of the recovery checkpoint."
    )
    replica_lag_ms: int = _key(
        "replica.lag.time.max.ms",
        10_000,
        "A follower that hasn't caught up for so long leaves the in-sync replicas.",
    )
    offsets_retention_ms: int = _key(
        "offsets.retention.ms",
        604_800_000,
        "Committed offsets of a group without members are kept so long; 7 days.",
    )
    partitions_max: int = _key(
        "partitions.max", 20_000, "Partitions on this broker; topics that need more are refused."
    )
    client_produce_rate: int = _key(
        "client.producer.byte.rate", -1, "Bytes a second each client may send here; -1: no bound."
    )
    client_fetch_rate: int = _key(
        "client.consumer.byte.rate", -1, "Bytes a second each client may read here; -1: no bound."
    )
    drain_timeout_ms: int = _key(
        "drain.timeout.ms", 30_000, "How long a stop waits for requests that are under way."
    )

    @property
    def url(self) -> str:
        """The address clients are told."""
        return self.advertised_url or f"http://{self.host}:{self.port}"

    @property
    def store_url(self) -> str:
        """The store, with the default filled in."""
        if self.store == "kubernetes":
            return f"kubernetes:/{self.cluster_name}"
        if self.store:
            return self.store
        return f"sqlite:{Path(self.data_dir).absolute() / 'store.db'}"

    def validate(self) -> Settings:
        """Itself, if the settings can work together.

        Raises:
            InvalidConfig: names the settings in conflict.
        """
        if self.port and self.port == self.health_port:
            raise InvalidConfig(f"port and health.port are both {self.port}; give them two")
        for key, port in (("port", self.port), ("health.port", self.health_port)):
            if not 0 <= port <= 65_535:
                raise InvalidConfig(f"{key}: {port} is no port, use 0 to 65535")
        if self.broker_id < 0:
            raise InvalidConfig(f"broker.id: {self.broker_id} is negative")
        if self.log_format not in {"text", "json"}:
            raise InvalidConfig(f"log.format: {self.log_format!r} is neither text nor json")
        if self.log_level not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
            raise InvalidConfig(
                f"log.level: {self.log_level!r} is none of DEBUG, INFO, WARNING, ERROR"
            )
        if self.inflight_bytes_max < self.request_bytes_max:
            raise InvalidConfig(
                f"inflight.bytes.max ({self.inflight_bytes_max}) is below request.bytes.max"
                f" ({self.request_bytes_max}): the largest request could never be taken"
            )
        if self.store_rebuild not in {"yes", "no"}:
            raise InvalidConfig(f"store.rebuild: {self.store_rebuild!r} is neither yes nor no")
        if not _STORE.match(self.store_url):
            raise InvalidConfig(
                f"store: {self.store!r} is none of sqlite:PATH, kubernetes,"
                " kubernetes:NAMESPACE/CLUSTER"
            )
        if self.advertised_url and urlsplit(self.advertised_url).scheme not in {"http", "https"}:
            raise InvalidConfig(
                f"advertised.url: {self.advertised_url!r} doesn't start with http:// or https://"
            )
        for item in dataclasses.fields(self):
            if item.type == "int" and item.name not in _NOT_COUNTS and getattr(self, item.name) < 1:
                raise InvalidConfig(f"{item.metadata['key']}: must be at least 1")
        for key, rate in (
            ("client.producer.byte.rate", self.client_produce_rate),
            ("client.consumer.byte.rate", self.client_fetch_rate),
            ("compaction.bytes.per.second", self.compaction_rate),
        ):
            if rate != -1 and rate < 1:
                raise InvalidConfig(f"{key}: {rate} is neither -1 nor at least 1")
        return self


_NOT_COUNTS = frozenset(
    {
        "port",
        "health_port",
        "broker_id",
        "client_produce_rate",
        "client_fetch_rate",
        "compaction_rate",
    }  # fmt: skip
)

_BY_KEY = {item.metadata["key"]: item for item in dataclasses.fields(Settings)}


def static_keys() -> frozenset[str]:
    """The keys of all settings of a broker."""
    return frozenset(each.metadata["key"] for each in dataclasses.fields(Settings))


def load(
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings from their three sources, later ones weaker.

    Raises:
        InvalidConfig: an unknown key in the file or flags, a value of the wrong type, a conflict.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    if file is not None:
        values.update(_from_file(file))
    ordinal = re.search(r"-(\d+)$", environment.get("POD_NAME", ""))
    if ordinal:
        values["broker.id"] = ordinal[1]
    for key in _BY_KEY:
        name = "HEADRACE_" + key.upper().replace(".", "_")
        if environment.get(name):
            values[key] = environment[name]
    values.update(flags or {})
    unknown = sorted(values.keys() - _BY_KEY.keys())
    if unknown:
        raise InvalidConfig(f"unknown setting {unknown[0]!r}; there are {', '.join(_BY_KEY)}")
    converted: dict[str, Any] = {
        _BY_KEY[key].name: _convert(key, value) for key, value in values.items()
    }
    return Settings(**converted).validate()


def _from_file(file: Path) -> dict[str, object]:
    try:
        return _flatten(tomllib.loads(file.read_text()), "")
    except OSError as error:
        raise InvalidConfig(f"the settings file can't be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{file} is not TOML: {error}") from error


def _flatten(table: Mapping[str, object], prefix: str) -> dict[str, object]:
    """`[disk.reserve] bytes = 1` and `disk.reserve.bytes = 1` mean the same."""
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found.update(_flatten(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


def _convert(key: str, value: object) -> object:
    if _BY_KEY[key].type == "int":
        try:
            return int(str(value))
        except ValueError as error:
            raise InvalidConfig(f"{key}: {value!r} is not a whole number") from error
    return str(value)
