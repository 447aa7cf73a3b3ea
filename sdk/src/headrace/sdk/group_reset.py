"""Moving a group's committed offsets: first a plan, which can be looked at, then its commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.protocol.errors import GroupNotEmpty, GroupNotFound, InvalidRequest
from headrace.protocol.ids import TopicPartition
from headrace.protocol.models import GroupInfo


@dataclass(frozen=True, slots=True)
class Shift:
    """So many offsets forward, or (negative) back, from where the group is."""

    by: int


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """One partition: the committed offset now (None: none) and afterwards. `new` lies within the
    partition; `asked` is what was asked for where that lies outside."""

    topic: str
    partition: int
    old: int | None
    new: int
    asked: int


def within(
    where: TopicPartition, *, old: int | None, asked: int, earliest: int, latest: int
) -> PlannedReset:
    """The plan for one partition, moved into it."""
    return PlannedReset(*where, old, min(max(asked, earliest), latest), asked)


def shifted(where: TopicPartition, old: int | None, shift: Shift) -> int:
    """The offset that a shift means.

    Raises:
        InvalidRequest: the group has none to start from.
    """
    if old is None:
        raise InvalidRequest(
            f"{where.topic}/{where.partition} has no committed offset to shift from; choose a place"
        )
    return old + shift.by


def partitions_to_reset(
    info: GroupInfo | None, topics: Mapping[str, int], only: Iterable[int] | None
) -> list[TopicPartition]:
    """All partitions of the topics (name → partition count); none named: those that the group has
    offsets of.

    Raises:
        GroupNotFound: there are neither.
    """
    chosen = None if only is None else set(only)
    if topics:
        found = [TopicPartition(name, p) for name, count in topics.items() for p in range(count)]
    else:
        found = [
            TopicPartition(each.topic, each.partition)
            for each in ([] if info is None else info.offsets)
        ]
    found = [where for where in found if chosen is None or where.partition in chosen]
    if not found:
        raise GroupNotFound("the group has no committed offsets; name the topics to set them for")
    return sorted(found)


def require_empty(info: GroupInfo | None, *, force: bool) -> None:
    """Refuses a group with live members.

    Raises:
        GroupNotEmpty.
    """
    if info is not None and info.members and not force:
        raise GroupNotEmpty(
            f"group {info.group!r} has {len(info.members)} live members, which would go on where"
            " they are and commit that: stop them first (or force it, and restart them)"
        )
