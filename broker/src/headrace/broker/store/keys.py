"""The names of objects in the store; `base` says what each holds."""

from __future__ import annotations

CLUSTER = "cluster"
BROKERS = "brokers/"
TOPICS = "topics/"
PARTITIONS = "partitions/"
LEASES = "leases/"
CONTROLLER_LEASE = "leases/controller"
BROKER_LEASES = "leases/broker-"


def broker(broker_id: int) -> str:
    """A broker's registration."""
    return f"{BROKERS}{broker_id}"


def broker_lease(broker_id: int) -> str:
    """A broker's lease."""
    return f"{BROKER_LEASES}{broker_id}"


def topic(name: str) -> str:
    """A topic's object."""
    return f"{TOPICS}{name}"


def shards(name: str) -> str:
    """The prefix of a topic's partition records."""
    return f"{PARTITIONS}{name}/"


def shard(name: str, index: int) -> str:
    """One shard of a topic's partition records."""
    return f"{PARTITIONS}{name}/{index}"


def topic_of_shard(key: str) -> str:
    """The name of the topic whose records a shard's key names."""
    return key.removeprefix(PARTITIONS).rpartition("/")[0]


def is_watched(key: str, prefix: str) -> bool:
    """Whether a watch on `prefix` tells of `key`: leases, which change all the time, only to those
    who ask for leases."""
    return key.startswith(prefix) and (prefix.startswith(LEASES) or not key.startswith(LEASES))
