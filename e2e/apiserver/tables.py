"""What `kubectl get` shows: lists as a Table with the resource's printer columns. Pure."""

from __future__ import annotations

import datetime
import re
from typing import Any

from apiserver.answers import Json
from apiserver.resources import Resource


def table(resource: Resource, items: list[Json], revision: str, now: datetime.datetime) -> Json:
    """The Table of some objects."""
    columns = [{"name": "Name", "type": "string", "format": "name", "priority": 0}]
    columns += [
        {
            "name": each["name"],
            "type": each["type"],
            "format": each.get("format", ""),
            "description": each.get("description", ""),
            "priority": each.get("priority", 0),
        }
        for each in resource.columns
    ]
    if not resource.columns:
        columns.append({"name": "Age", "type": "string", "format": "", "priority": 0})
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": revision},
        "columnDefinitions": columns,
        "rows": [_row(resource, item, now) for item in items],
    }


def _row(resource: Resource, item: Json, now: datetime.datetime) -> Json:
    meta = item["metadata"]
    cells: list[Any] = [meta["name"]]
    cells += [_cell(each, item, now) for each in resource.columns]
    if not resource.columns:
        cells.append(age(meta["creationTimestamp"], now))
    part = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
    }
    return {"cells": cells, "object": part}


def _cell(column: Json, item: Json, now: datetime.datetime) -> Any:
    value = at_path(item, column["jsonPath"])
    if value is None:
        return ""
    if column["type"] == "date":
        return age(str(value), now)
    return value if column["type"] in ("integer", "number", "boolean") else str(value)


_STEP = re.compile(
    r"\.([\w-]+)|\[\?\(@\.(\w+)\s*==\s*['\"]([^'\"]*)['\"]\)\]|\[(\d+)\]|\['([^']+)'\]"
)


def at_path(value: Any, path: str) -> Any:
    """The value at a simple JSONPath: fields, indices, and one kind of filter."""
    for found in _STEP.finditer(path.replace("\\.", "\0")):
        name, key, wanted, index, quoted = found.groups()
        if name or quoted:
            field = (name or quoted).replace("\0", ".")
            value = value.get(field) if isinstance(value, dict) else None
        elif key:
            items = value if isinstance(value, list) else []
            value = next((item for item in items if item.get(key) == wanted), None)
        else:
            value = (
                value[int(index)] if isinstance(value, list) and len(value) > int(index) else None
            )
        if value is None:
            return None
    return value


def age(since: str, now: datetime.datetime) -> str:
    """How long ago, as kubectl says it."""
    try:
        seconds = int((now - datetime.datetime.fromisoformat(since)).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"
