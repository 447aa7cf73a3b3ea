"""Which columns a sink takes, and how rows are grouped by where they go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.protocol.errors import InvalidConfig, InvalidRequest

SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Name → types (Spark's simple strings). Other columns are left alone, as by the Kafka sink."""


def check_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Refuses a frame that can't be written.

    Raises:
        InvalidConfig: no value, nowhere to send it, or a column of a wrong type.
    """
    if "value" not in columns:
        raise InvalidConfig(
            "a column value (string or binary) is needed; make one, for example with"
            " to_json(struct('*')) AS value"
        )
    for name, types in SINK_COLUMNS.items():
        if name in columns and columns[name] not in types:
            raise InvalidConfig(
                f"column {name} is {' or '.join(types)}, not {columns[name]}; cast it"
            )
    if topic is None and "topic" not in columns:
        raise InvalidConfig("where to? Give the option topic, or a column topic")


Target = tuple[str, int | None]
"""A topic, and the partition if the row says which."""


def group_rows(
    topics: Sequence[str | None] | str, partitions: Sequence[int | None] | None, count: int
) -> dict[Target, list[int] | None]:
    """Target → the indexes of its rows, in order; None for all rows.

    Raises:
        InvalidRequest: a row has no topic.
    """
    if isinstance(topics, str) and partitions is None:
        return {(topics, None): None} if count else {}
    names = [topics] * count if isinstance(topics, str) else topics
    numbers: Sequence[int | None] = [None] * count if partitions is None else partitions
    found: dict[Target, list[int] | None] = {}
    for index, (topic, number) in enumerate(zip(names, numbers, strict=True)):
        if topic is None:
            raise InvalidRequest("a row's topic is null, and the option topic isn't given")
        indexes = found.setdefault((topic, number), [])
        assert indexes is not None
        indexes.append(index)
    return found


def chosen(column: Sequence[Any] | None, indexes: list[int] | None) -> Sequence[Any] | None:
    """A column's rows at the indexes."""
    if column is None or indexes is None:
        return column
    return [column[index] for index in indexes]


def by_key(
    keys: Sequence[bytes | None], indexes: Sequence[int], partition_of: Mapping[bytes, int]
) -> dict[int | None, list[int]]:
    """Partition → the rows that their keys send there, in order; None for those without a key."""
    found: dict[int | None, list[int]] = {}
    for index in indexes:
        key = keys[index]
        where = None if key is None else partition_of[key]
        rows = found.get(where)
        if rows is None:
            rows = found[where] = []
        rows.append(index)
    return found
