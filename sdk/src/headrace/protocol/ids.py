"""Types for the numbers and names that must not be mixed up.

`offset` is a record's number in its partition, `position` a byte in a file, `index` a place in a
list, `count` how many, `size_bytes` how large. Five different things, never one variable.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""The number of a record in its partition; 0 is the first ever written there."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""How often the partition got a leader; orders leaders, fences old ones."""

BrokerId = NewType("BrokerId", int)
"""The number of a broker, 0 and up; in Kubernetes the pod's ordinal."""

TopicId = NewType("TopicId", bytes)
"""16 random bytes, new for each topic created: a topic made again is another topic."""

TOPIC_ID_BYTES = 16


class TopicPartition(NamedTuple):
    """A partition as people name it."""

    topic: str
    partition: int


class TopicIdPartition(NamedTuple):
    """A partition as machines name it: directories, offsets and caches are keyed by this."""

    topic_id: TopicId
    partition: int


def new_topic_id() -> TopicId:
    """A fresh random topic id."""
    return TopicId(secrets.token_bytes(TOPIC_ID_BYTES))


def parse_topic_id(text: str) -> TopicId:
    """The id written as 32 hexadecimal digits.

    Raises:
        ValueError: not 32 hexadecimal digits.
    """
    raw = bytes.fromhex(text)  # which also takes spaces, so the text's length counts as well
    if len(raw) != TOPIC_ID_BYTES or len(text) != TOPIC_ID_BYTES * 2:
        raise ValueError(f"a topic id is {TOPIC_ID_BYTES * 2} hexadecimal digits, got {text!r}")
    return TopicId(raw)
