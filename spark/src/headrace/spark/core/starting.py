"""Where a read begins and ends: options and what the cluster answered, made into offsets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headrace.protocol.errors import InvalidConfig, OffsetOutOfRange, TopicNotFound
from headrace.spark.core.offsets import Partition, Position, Positions, flat, with_offsets
from headrace.spark.core.options import EARLIEST, LATEST, Place


def times_of(place: Place, partitions: Positions) -> dict[Partition, int]:
    """The times (ms) to look up; none if the place isn't one in time.

    Raises:
        InvalidConfig: times are given for other partitions than are read.
    """
    if place.kind == "time":
        return dict.fromkeys(flat(partitions), place.time_ms)
    if place.kind != "times":
        return {}
    _check_named(place, partitions, "OffsetsByTimestamp")
    return dict(place.by_partition)


def resolve(
    place: Place,
    *,
    earliest: Positions,
    latest: Positions,
    at_times: Mapping[Partition, int | None],
    late: Literal["error", "latest"] = "latest",
) -> dict[str, Position]:
    """The offsets of a place in every partition that is read. `at_times` answers `times_of`.

    Raises:
        InvalidConfig: offsets are given for other partitions than are read.
        OffsetOutOfRange: no record is as late as asked for (and `late` is error).
        TopicNotFound: a given topic id isn't the topic's.
    """
    if place.kind == "earliest":
        return dict(earliest)
    if place.kind == "latest":
        return dict(latest)
    heads = flat(latest)
    if place.kind == "offsets":
        _check_named(place, latest, "Offsets")
        _check_ids(place, latest)
        firsts = flat(earliest)
        ends = {EARLIEST: firsts, LATEST: heads}
        chosen = {
            where: ends[offset][where] if offset in ends else offset
            for where, offset in place.by_partition.items()
        }
        return with_offsets(latest, chosen)
    if late == "error":
        _check_times(at_times, times_of(place, latest))
    chosen = {
        where: heads[where] if offset is None else offset for where, offset in at_times.items()
    }
    return with_offsets(latest, chosen)


def _check_named(place: Place, partitions: Positions, what: str) -> None:
    """Every partition must be named: one that is forgotten would silently begin elsewhere."""
    named, there = place.by_partition.keys(), flat(partitions).keys()
    missing, unknown = sorted(there - named), sorted(named - there)
    if missing or unknown:
        raise InvalidConfig(
            f"starting/ending{what} must name exactly the partitions that are read;"
            + (f" missing: {_text(missing)}" if missing else "")
            + (f" not among them: {_text(unknown)}" if unknown else "")
        )


def _check_ids(place: Place, partitions: Positions) -> None:
    for topic, topic_id in place.ids.items():
        found = partitions.get(topic)
        if found is not None and found.topic_id != topic_id:
            raise TopicNotFound(
                f"startingOffsets are of topic {topic!r} with id {topic_id}, but it was created"
                f" again and has id {found.topic_id}; its offsets mean other records now"
            )


def _check_times(at_times: Mapping[Partition, int | None], times: Mapping[Partition, int]) -> None:
    late = sorted(where for where, offset in at_times.items() if offset is None)
    if late:
        raise OffsetOutOfRange(
            f"no record at or after {times[late[0]]} ms in {_text(late)}; choose an earlier time,"
            " or startingOffsetsByTimestampStrategy=latest to begin at the end there"
        )


def _text(partitions: list[Partition]) -> str:
    shown = ", ".join(f"{topic}/{number}" for topic, number in partitions[:5])
    return shown + (f" and {len(partitions) - 5} more" if len(partitions) > 5 else "")
