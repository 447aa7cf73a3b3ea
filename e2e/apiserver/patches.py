"""The four ways to patch: JSON merge, JSON patch, strategic merge, server-side apply. Pure.

Strategic merge knows the merge keys of the lists that people patch (containers, env, volumes,
ports, conditions, owner references); other lists are replaced. Server-side apply is small: fields
are owned by path, lists with a merge key are merged by it and never shortened, and there are no
conflicts, as with `force`.
"""

from __future__ import annotations

import copy
from typing import Any

from apiserver.answers import ApiError, Json

MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "conditions": "type",
    "ownerReferences": "uid",
    "tolerations": "",
}


def merge(value: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), change)
    return result


def strategic(value: Any, patch: Any) -> Any:
    """Strategic merge patch with `$patch: delete|replace` and the known merge keys."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: change for key, change in patch.items() if key != "$patch"}
    result = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if key.startswith("$"):
            continue
        if change is None:
            result.pop(key, None)
        elif isinstance(change, list):
            result[key] = _merge_list(key, result.get(key), change)
        else:
            result[key] = strategic(result.get(key), change)
    return result


def _merge_list(name: str, value: Any, patch: list[Any]) -> list[Any]:
    if name == "finalizers":
        return [*(value or []), *(item for item in patch if item not in (value or []))]
    key = MERGE_KEYS.get(name)
    if name == "ports" and patch and "containerPort" not in patch[0]:
        key = "port"
    if not key or not all(isinstance(item, dict) and key in item for item in patch):
        return copy.deepcopy(patch)
    result = list(value or [])
    for change in patch:
        at = next((i for i, item in enumerate(result) if item.get(key) == change[key]), None)
        if change.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(strategic({}, change))
        else:
            result[at] = strategic(result[at], change)
    return result


def json_patch(value: Json, operations: list[Json]) -> Json:
    """JSON patch (RFC 6902).

    Raises:
        ApiError: 422, a path that isn't there or a `test` that fails.
    """
    document: Any = copy.deepcopy(value)
    for operation in operations:
        document = _operate(document, operation)
    result: Json = document
    return result


def _operate(document: Any, operation: Json) -> Any:
    verb, path = operation.get("op"), _pointer(operation.get("path", ""))
    if verb == "test":
        if _read(document, path) != operation.get("value"):
            raise _refused(f"testing path {operation['path']} failed")
        return document
    if verb in ("move", "copy"):
        source = _pointer(operation["from"])
        moved = copy.deepcopy(_read(document, source))
        if verb == "move":
            document = _remove(document, source)
        return _add(document, path, moved)
    if verb == "remove":
        return _remove(document, path)
    if verb == "replace":
        _read(document, path)
        return _add(_remove(document, path) if path else document, path, operation.get("value"))
    if verb == "add":
        return _add(document, path, operation.get("value"))
    raise _refused(f"unknown operation {verb!r}")


def _refused(message: str) -> ApiError:
    """422, as of the real server; kopf takes it for a conflict and reads again."""
    return ApiError(422, "Invalid", f"the server rejected our request: {message}")


def _pointer(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _read(document: Any, path: list[str]) -> Any:
    try:
        for step in path:
            document = document[int(step)] if isinstance(document, list) else document[step]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise _refused(f"the path /{'/'.join(path)} doesn't exist") from error
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _read(document, path[:-1])
    if isinstance(parent, list):
        at = len(parent) if path[-1] == "-" else int(path[-1])
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise _refused(f"nothing can be added at /{'/'.join(path)}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    _read(document, path)
    parent = _read(document, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return document


# --- server-side apply ---


def owned_fields(value: Any) -> Json:
    """The fields that an applied object names, in the form of `fieldsV1`; lists are leaves."""
    if not isinstance(value, dict):
        return {}
    return {f"f:{key}": owned_fields(item) for key, item in value.items()}


def without_fields(value: Any, gone: Json, still: Json) -> Any:
    """The value without the fields in `gone`, unless in `still`."""
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, inner in gone.items():
        key = name[2:]
        if key not in result:
            continue
        if name not in still and not _any_leaf_kept(inner, still.get(name)):
            result.pop(key)
        elif inner:
            result[key] = without_fields(result[key], inner, still.get(name, {}))
    return result


def _any_leaf_kept(inner: Json, still: Json | None) -> bool:
    return bool(inner) and still is not None
