"""How far a query is: offsets by topic and partition, with each topic's id, and their JSON.

    {"flights": {"id": "9f…", "0": 82, "1": 85}}

That is the Kafka source's form plus the topic's id, so that a topic deleted and made again is found
out. Spark compares the texts, so topics and partitions are always in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.protocol.errors import InvalidConfig

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Position:
    """Offsets in one topic: the next to read, by partition."""

    topic_id: str
    offsets: Mapping[int, int]


Positions = Mapping[str, Position]
"""Topic → offsets."""


def to_json(positions: Positions) -> dict[str, dict[str, Any]]:
    """What Spark stores; ordered."""
    return {
        topic: {
            "id": found.topic_id,
            **{str(number): found.offsets[number] for number in sorted(found.offsets)},
        }
        for topic, found in sorted(positions.items())
    }


def from_json(stored: Mapping[str, Any]) -> dict[str, Position]:
    """What Spark stored, read back.

    Raises:
        InvalidConfig: it isn't of that form (a checkpoint of another source).
    """
    found: dict[str, Position] = {}
    for topic, inner in stored.items():
        if not isinstance(inner, dict) or not isinstance(inner.get("id"), str):
            raise InvalidConfig(
                f"the checkpoint's offsets for topic {topic!r} are not Headrace's: they have no"
                " topic id. To take over a Kafka job, start with an empty checkpoint and give the"
                " offsets as startingOffsets"
            )
        numbers = {name: value for name, value in inner.items() if name != "id"}
        if not all(name.isdecimal() and isinstance(value, int) for name, value in numbers.items()):
            raise InvalidConfig(f"the checkpoint's offsets for topic {topic!r} are damaged")
        offsets = {int(name): value for name, value in numbers.items()}
        found[topic] = Position(inner["id"], offsets)
    return found


def flat(positions: Positions) -> dict[Partition, int]:
    """Offsets by topic and partition, without ids."""
    return {
        (topic, number): offset
        for topic, found in positions.items()
        for number, offset in found.offsets.items()
    }


def with_offsets(positions: Positions, offsets: Mapping[Partition, int]) -> dict[str, Position]:
    """The same topics and partitions at other offsets."""
    return {
        topic: Position(
            found.topic_id, {number: offsets[topic, number] for number in found.offsets}
        )
        for topic, found in positions.items()
    }
