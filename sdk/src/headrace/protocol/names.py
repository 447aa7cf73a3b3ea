"""What topics and groups may be called: Kafka's alphabet, so that names move over unchanged."""

from __future__ import annotations

import re

from headrace.protocol.errors import InvalidName

NAME_PATTERN = r"[A-Za-z0-9._-]{1,249}"
"""What a whole name matches."""

_NAME = re.compile(NAME_PATTERN)

OFFSETS_TOPIC = "__offsets"
"""The internal topic that holds committed offsets."""

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC})


def check_name(name: str, *, kind: str) -> str:
    """`name` itself if a `kind` ("topic", "group") may be called so.

    Raises:
        InvalidName: another alphabet, an empty or a too long name, `.` or `..`.
    """
    if name in {".", ".."} or _NAME.fullmatch(name) is None:
        shown = name if len(name) <= 80 else name[:77] + "..."
        raise InvalidName(
            f"{kind} name {shown!r} is not allowed: use 1 to 249 of the characters"
            " A-Z a-z 0-9 . _ - (and not just '.' or '..')"
        )
    return name


def is_internal(topic: str) -> bool:
    """Whether the topic is the system's own: clients may read it, not write or change it."""
    return topic.startswith("__")


def check_user_topic(name: str) -> str:
    """`name` itself if a user may create a topic of that name.

    Raises:
        InvalidName: as `check_name`, or the name starts with `__`.
    """
    check_name(name, kind="topic")
    if is_internal(name):
        raise InvalidName(
            f"topic name {name!r} is not allowed: names that start with '__' are the system's own"
        )
    return name
