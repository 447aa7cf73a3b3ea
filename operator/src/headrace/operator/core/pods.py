"""What a pod or a claim says about itself."""

from __future__ import annotations

from headrace.operator import names
from headrace.operator.spec import JsonObject

STUCK = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of a waiting container that don't go away by waiting."""


def annotation(value: JsonObject, key: str) -> str | None:
    """An annotation's value."""
    found: str | None = (value["metadata"].get("annotations") or {}).get(key)
    return found


def is_set(value: JsonObject, key: str) -> bool:
    """Whether an annotation says true."""
    return (annotation(value, key) or "").lower() == "true"


def ordinal(name: str) -> int | None:
    """The number at the end of a pod's or claim's name."""
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else None


def is_terminating(value: JsonObject) -> bool:
    """Whether it is on its way out."""
    return bool(value["metadata"].get("deletionTimestamp"))


def is_ready(pod: JsonObject) -> bool:
    """Whether it is ready and stays."""
    return not is_terminating(pod) and _condition(pod, "Ready") == "True"


def revision(pod: JsonObject) -> str | None:
    """The template it was made from."""
    return annotation(pod, names.REVISION)


def stuck_reason(pod: JsonObject) -> str:
    """Why it will never run as it is, or nothing."""
    status = pod.get("status") or {}
    for each in status.get("containerStatuses") or ():
        reason: str = ((each.get("state") or {}).get("waiting") or {}).get("reason", "")
        if reason in STUCK:
            return reason
    for each in status.get("conditions") or ():
        if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable":
            return "Unschedulable"
    return "Failed" if status.get("phase") == "Failed" else ""


def needs_file_system_resize(claim: JsonObject) -> bool:
    """Whether its volume has grown and the file system waits for a restart of the pod."""
    return _condition(claim, "FileSystemResizePending") == "True"


def is_resizing(claim: JsonObject) -> bool:
    """Whether its volume is growing right now."""
    return _condition(claim, "Resizing") == "True"


def _condition(value: JsonObject, kind: str) -> str:
    for each in (value.get("status") or {}).get("conditions") or ():
        if each["type"] == kind:
            return str(each["status"])
    return ""
