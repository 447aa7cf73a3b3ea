"""The store's objects in the Kubernetes API: names, labels, contents, revisions. Pure.

A key is one object: a ConfigMap, or a Lease for what lies under `leases/`. Names are made so that
any topic name fits and no two collide (replication.md H8b); the real key lies in the object and is
compared at each read. A revision is `<uid>/<resourceVersion>`: the uid tells an object from one
that was made again under its name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.broker.store import keys
from headrace.broker.store.base import Item
from headrace.protocol.errors import InvalidConfig, InvalidRequest

Json = dict[str, Any]

CONFIGMAPS = "configmaps"
LEASES = "leases"

VALUE_BYTES_MAX = 900_000
"""Bytes of a value. The API takes 1 MiB of data in a ConfigMap; the rest is for the key and for
what a person may add."""

LEASE_BYTES_MAX = 100_000
"""Bytes of a lease's content, which lies in annotations (at most 256 KiB together)."""

CLUSTER_LABEL = "headrace.dev/cluster"
KIND_LABEL = "headrace.dev/kind"
TOPIC_LABEL = "headrace.dev/topic-hash"
WRITER = "headrace.dev/writer"
_KEY = "headrace.dev/key"
_TEXT = "headrace.dev/value"
_BASE64 = "headrace.dev/value-base64"

_KINDS = ("cluster", "brokers", "topics", "partitions")
_OTHER = "other"
_HASH_LENGTH = 26
CLUSTER_LENGTH_MAX = 40
_CLUSTER = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_NUMBER = re.compile(r"^(0|[1-9][0-9]{0,9})$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key's object lies."""

    resource: str
    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where all objects of a prefix lie: a resource, and a label selector that finds at least
    them."""

    resource: str
    selector: str


def check_cluster(name: str) -> str:
    """The name itself, if objects can be named after it.

    Raises:
        InvalidConfig: it can't.
    """
    if len(name) > CLUSTER_LENGTH_MAX or not _CLUSTER.match(name):
        raise InvalidConfig(
            f"cluster.name: {name!r} can't be part of an object's name: use at most"
            f" {CLUSTER_LENGTH_MAX} lower-case letters, digits and -, no - at the ends"
        )
    return name


def place(cluster: str, key: str) -> Place:
    """The object of a key."""
    kind, _, rest = key.partition("/")
    labels = {CLUSTER_LABEL: cluster, KIND_LABEL: kind if kind in _KINDS else _OTHER}
    if kind == "leases" and rest:
        labels[KIND_LABEL] = "lease"
        name = rest if re.match(r"^[a-z0-9-]{1,80}$", rest) else f"k-{_hash(key)}"
        return Place(LEASES, f"{cluster}-l-{name}".rstrip("-"), labels)
    if key == keys.CLUSTER:
        return Place(CONFIGMAPS, f"{cluster}-cluster", labels)
    if kind == "brokers" and _NUMBER.match(rest):
        return Place(CONFIGMAPS, f"{cluster}-b-{rest}", labels)
    if kind == "topics" and rest:
        labels[TOPIC_LABEL] = _hash(rest)
        return Place(CONFIGMAPS, f"{cluster}-t-{_hash(rest)}", labels)
    topic, _, shard = rest.rpartition("/")
    if kind == "partitions" and topic and _NUMBER.match(shard):
        labels[TOPIC_LABEL] = _hash(topic)
        return Place(CONFIGMAPS, f"{cluster}-t-{_hash(topic)}-{shard}", labels)
    return Place(CONFIGMAPS, f"{cluster}-k-{_hash(key)}", labels)


def scopes(cluster: str, prefix: str, *, with_leases: bool) -> list[Scope]:
    """Where to look for the keys of a prefix."""
    found = []
    if not prefix.startswith(keys.LEASES):
        found.append(Scope(CONFIGMAPS, _selector(cluster, prefix)))
    if prefix.startswith(keys.LEASES) or (with_leases and keys.LEASES.startswith(prefix)):
        found.append(Scope(LEASES, f"{CLUSTER_LABEL}={cluster}"))
    return found


def _selector(cluster: str, prefix: str) -> str:
    selector = f"{CLUSTER_LABEL}={cluster}"
    kind, slash, rest = prefix.partition("/")
    if slash and kind in _KINDS:
        selector += f",{KIND_LABEL}={kind}"
    if kind == "partitions" and rest.count("/") == 1:
        # One topic's shards: keys.shards(name) ends with a slash.
        selector += f",{TOPIC_LABEL}={_hash(rest.partition('/')[0])}"
    return selector


def _hash(text: str) -> str:
    digest = base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()
    return digest[:_HASH_LENGTH]


# --- writing ---


def manifest(at: Place, key: str, value: bytes, *, writer: str, now: str) -> Json:
    """The object to send, without what ties it to a revision.

    `writer` is another one for each write: a PUT that changes nothing would keep its
    resourceVersion, and after a conflict it tells whether the object is one's own.

    Raises:
        InvalidRequest: the value is too large.
    """
    _check_size(at, key, value)
    # The label keeps backups from bringing old state back (replication.md H10).
    labels = {**at.labels, "velero.io/exclude-from-backup": "true"}
    metadata: Json = {"name": at.name, "labels": labels, "annotations": {WRITER: writer}}
    text = _as_text(value)
    if at.resource == LEASES:
        encoded = {_BASE64: base64.b64encode(value).decode()} if text is None else {_TEXT: text}
        metadata["annotations"] |= {_KEY: key, **encoded}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            # For people; nothing here reads it (replication.md H13).
            "spec": {"holderIdentity": writer.partition("/")[0], "renewTime": now},
        }
    found: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    if text is None:
        found |= {"data": {"key": key}, "binaryData": {"value": base64.b64encode(value).decode()}}
    else:
        found["data"] = {"key": key, "value": text}
    return found


def _check_size(at: Place, key: str, value: bytes) -> None:
    most = LEASE_BYTES_MAX if at.resource == LEASES else VALUE_BYTES_MAX
    if len(value) > most:
        raise InvalidRequest(
            f"{key} would have {len(value)} bytes, an object in Kubernetes holds {most} here:"
            " use fewer partitions, or fewer tombstones and settings in the cluster object"
        )


def _as_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


# --- reading ---


def revision(found: Json) -> str:
    """The revision of an object as read."""
    meta = found["metadata"]
    return f"{meta['uid']}/{meta['resourceVersion']}"


def split_revision(text: str) -> tuple[str, str] | None:
    """(uid, resourceVersion), or None for what never was a revision of an object here. Neither is
    ever empty: without them a PUT would overwrite whatever is there (replication.md H8c)."""
    uid, slash, version = text.partition("/")
    return (uid, version) if uid and slash and version else None


def writer_of(found: Json) -> str:
    """Who wrote an object last."""
    annotations = found["metadata"].get("annotations") or {}
    return str(annotations.get(WRITER, ""))


def read(cluster: str, found: Json) -> Item | None:
    """The item in an object; None if it isn't what lies under its key: copied, renamed or made by
    somebody else. A value that can't be read is empty: its reader says what that means."""
    annotations = found["metadata"].get("annotations") or {}
    if found.get("kind") == "Lease" or "spec" in found:
        key, text, encoded = (annotations.get(name) for name in (_KEY, _TEXT, _BASE64))
    else:
        data = found.get("data") or {}
        key, text = data.get("key"), data.get("value")
        encoded = (found.get("binaryData") or {}).get("value")
    if not isinstance(key, str) or place(cluster, key).name != found["metadata"]["name"]:
        return None
    return Item(key, _value(text, encoded), revision(found))


def _value(text: str | None, encoded: str | None) -> bytes:
    if text is not None:
        return text.encode()
    try:
        return base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError):
        return b""
