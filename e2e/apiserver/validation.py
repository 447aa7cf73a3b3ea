"""Checks that every object passes at a write, and those of a few built-in kinds. Pure.

Only what a program can come to lean on: names, labels, sizes, immutable fields. Custom resources
are checked by `schemas` besides.
"""

from __future__ import annotations

import base64
import binascii
import re

from apiserver.answers import Json, invalid
from apiserver.resources import Resource

Causes = list[tuple[str, str]]

CONFIGMAP_BYTES_MAX = 1 << 20
ANNOTATIONS_BYTES_MAX = 256 << 10
OBJECT_BYTES_MAX = 3 << 19
"""1.5 MiB: etcd's bound on a request."""

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
_LABEL_DNS = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_QUALIFIED = re.compile(r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_CONFIG_KEY = re.compile(r"^[-._a-zA-Z0-9]{1,253}$")
_IMMUTABLE_STATEFULSET = ("serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates")


def check(resource: Resource, value: Json, previous: Json | None) -> None:
    """Raises ApiError 422 with the paths of all that is wrong."""
    causes = _metadata(resource, value["metadata"])
    causes += _by_kind(resource, value, previous)
    if _size(value) > OBJECT_BYTES_MAX:
        causes.append(("", "etcdserver: request is too large"))
    if causes:
        raise invalid(resource.kind, str(value["metadata"].get("name", "")), causes)


def _size(value: object) -> int:
    """About the bytes in etcd: protobuf escapes nothing."""
    if isinstance(value, dict):
        return sum(len(key) + _size(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return len(value.encode()) if isinstance(value, str) else 8


def _metadata(resource: Resource, meta: Json) -> Causes:
    causes: Causes = []
    name = meta.get("name", "")
    strict = resource.plural in ("services", "namespaces")
    if resource.group != "rbac.authorization.k8s.io" and (
        len(name) > (63 if strict else 253)
        or not (_LABEL_DNS if resource.plural == "services" else _SUBDOMAIN).match(name)
    ):
        causes.append(("metadata.name", f'Invalid value: "{name}": must be an RFC 1123 subdomain'))
    for key, item in (meta.get("labels") or {}).items():
        if not _QUALIFIED.match(key):
            causes.append(("metadata.labels", f'Invalid value: "{key}": not a qualified name'))
        if not isinstance(item, str) or not _LABEL_VALUE.match(item):
            causes.append(("metadata.labels", f'Invalid value: "{item}": must be 63 characters'))
    annotations = meta.get("annotations") or {}
    for key, item in annotations.items():
        if not isinstance(item, str):
            causes.append((f"metadata.annotations.{key}", "must be a string"))
    if sum(len(k) + len(str(v).encode()) for k, v in annotations.items()) > ANNOTATIONS_BYTES_MAX:
        causes.append(("metadata.annotations", "Too long: may not be more than 262144 bytes"))
    return causes


def _by_kind(resource: Resource, value: Json, previous: Json | None) -> Causes:
    if resource.kind == "ConfigMap":
        return _config_map(value)
    if resource.kind == "StatefulSet" and previous is not None:
        return _stateful_set(value, previous)
    if resource.kind == "PersistentVolumeClaim" and previous is not None:
        return _claim(value, previous)
    return []


def _config_map(value: Json) -> Causes:
    data, binary = value.get("data") or {}, value.get("binaryData") or {}
    causes = [
        ("data", f"Invalid key {key}") for key in [*data, *binary] if not _CONFIG_KEY.match(key)
    ]
    causes += [
        (f"data[{key}]", "duplicate of a key in binaryData") for key in data if key in binary
    ]
    size = sum(len(text.encode()) for text in data.values())
    try:
        size += sum(len(base64.b64decode(text, validate=True)) for text in binary.values())
    except (binascii.Error, ValueError):
        causes.append(("binaryData", "illegal base64 data"))
    if size > CONFIGMAP_BYTES_MAX:
        causes.append(("", f"Too long: may not be more than {CONFIGMAP_BYTES_MAX} bytes"))
    return causes


def _stateful_set(value: Json, previous: Json) -> Causes:
    changed = [
        key for key in _IMMUTABLE_STATEFULSET if value["spec"].get(key) != previous["spec"].get(key)
    ]
    return [
        (
            "spec",
            "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals',"
            " 'template', 'updateStrategy', 'revisionHistoryLimit',"
            " 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        )
        for _ in changed[:1]
    ]


def _claim(value: Json, previous: Json) -> Causes:
    new = quantity(_requested(value))
    old = quantity(_requested(previous))
    if new < old and previous.get("status", {}).get("phase") == "Bound":
        return [("spec.resources.requests.storage", "Forbidden: field can not be less than status")]
    return []


def _requested(claim: Json) -> str:
    spec = claim.get("spec") or {}
    resources = spec.get("resources") or {}
    return str((resources.get("requests") or {}).get("storage", "0"))


_SUFFIXES = {
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "m": 1e-3, "": 1,
}  # fmt: skip


def quantity(text: str) -> float:
    """A quantity as a number; 0 if it is none."""
    found = re.match(r"^([0-9.]+)([A-Za-z]{0,2})$", text)
    if not found or found[2] not in _SUFFIXES:
        return 0.0
    return float(found[1]) * _SUFFIXES[found[2]]
