"""Structural schemas of custom resources: pruning, defaulting, validation, and CEL rules. Pure.

In the real server's order: unknown fields are pruned, defaults filled in, values checked, then
`x-kubernetes-validations` evaluated where something has changed (those with `oldSelf` only at
updates). Ratcheting of types and bounds isn't done: what is wrong is refused even if it was so
before.
"""

from __future__ import annotations

import base64
import copy
import datetime
import re
from collections.abc import Iterator
from typing import Any

from apiserver.answers import Json, invalid
from apiserver.resources import Resource

Causes = list[tuple[str, str]]
ALWAYS = frozenset({"apiVersion", "kind", "metadata"})
"""What every object has beside its schema."""


def admit(resource: Resource, value: Json, previous: Json | None) -> Json:
    """The object as it is stored.

    Raises:
        ApiError: 422 with the paths of what is wrong.
    """
    schema = resource.schema
    if schema is None:
        return value
    metadata = value["metadata"]
    pruned = prune(schema, value, root=True)
    pruned["metadata"] = metadata
    admitted: Json = default(schema, pruned)
    causes = list(problems(schema, admitted, ""))
    if not causes:
        from apiserver import rules  # half a second, and few tests need it

        causes = list(rules.broken(schema, admitted, previous, ""))
    if causes:
        raise invalid(resource.kind, metadata.get("name", ""), causes)
    return admitted


def prune(schema: Json, value: Any, *, root: bool = False) -> Any:
    """Without fields that the schema doesn't name."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [prune(items, item) for item in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    result = {}
    for key, item in value.items():
        if root and key in ALWAYS:
            result[key] = item
        elif key in properties:
            result[key] = prune(properties[key], item)
        elif isinstance(extra, dict):
            result[key] = prune(extra, item)
        elif extra or schema.get("x-kubernetes-embedded-resource") and key in ALWAYS:
            result[key] = item
    return result


def default(schema: Json, value: Any) -> Any:
    """With defaults where fields are missing."""
    if isinstance(value, list):
        return [default(schema.get("items") or {}, item) for item in value]
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for key, inner in (schema.get("properties") or {}).items():
        if key not in result and "default" in inner:
            result[key] = copy.deepcopy(inner["default"])
        if key in result:
            if result[key] is None and not inner.get("nullable") and "default" in inner:
                result[key] = copy.deepcopy(inner["default"])
            result[key] = default(inner, result[key])
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        named = schema.get("properties") or {}
        result = {k: v if k in named else default(extra, v) for k, v in result.items()}
    return result


# --- validation ---

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def problems(schema: Json, value: Any, path: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a value, by path."""
    if value is None and schema.get("nullable"):
        return
    wanted = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield path, f"Invalid value: {value!r}: must be an integer or a string"
            return
    elif wanted and not _is_type(value, wanted):
        yield path, f'Invalid value: "{_type_name(value)}": must be of type {wanted}'
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{item}"' for item in schema["enum"])
        yield path, f'Unsupported value: "{value}": supported values: {supported}'
    if isinstance(value, str):
        yield from _string(schema, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number(schema, value, path)
    elif isinstance(value, list):
        yield from _array(schema, value, path)
    elif isinstance(value, dict):
        yield from _object(schema, value, path)
    yield from _junctors(schema, value, path)


def _is_type(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[wanted])


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, kinds in _TYPES.items() if isinstance(value, kinds)), "null")


def _string(schema: Json, value: str, path: str) -> Iterator[tuple[str, str]]:
    if len(value) > schema.get("maxLength", len(value)):
        yield path, f"Too long: may not be more than {schema['maxLength']} bytes"
    if len(value) < schema.get("minLength", 0):
        yield path, f'Invalid value: "{value}": should be at least {schema["minLength"]} chars long'
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield path, f"Invalid value: \"{value}\": should match '{schema['pattern']}'"
    if schema.get("format") == "date-time" and not _is_time(value):
        yield path, f'Invalid value: "{value}": must be of type date-time'


def _is_time(value: str) -> bool:
    try:
        return datetime.datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _number(schema: Json, value: float, path: str) -> Iterator[tuple[str, str]]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value < low or schema.get("exclusiveMinimum") and value == low):
        yield path, f"Invalid value: {value}: should be greater than or equal to {low}"
    if high is not None and (value > high or schema.get("exclusiveMaximum") and value == high):
        yield path, f"Invalid value: {value}: should be less than or equal to {high}"
    bits = {"int32": 31, "int64": 63}.get(schema.get("format", ""))
    if bits and not -(1 << bits) <= value < 1 << bits:
        yield path, f"Invalid value: {value}: must be of format {schema['format']}"


def _array(schema: Json, value: list[Any], path: str) -> Iterator[tuple[str, str]]:
    if len(value) > schema.get("maxItems", len(value)):
        yield path, f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
    if len(value) < schema.get("minItems", 0):
        yield path, f"Invalid value: should have at least {schema['minItems']} items"
    keys = schema.get("x-kubernetes-list-map-keys")
    seen: list[Any] = []
    for number, item in enumerate(value):
        mark = tuple(item.get(k) for k in keys) if keys and isinstance(item, dict) else item
        if (keys or schema.get("x-kubernetes-list-type") == "set") and mark in seen:
            yield f"{path}[{number}]", f"Duplicate value: {mark!r}"
        seen.append(mark)
        yield from problems(schema.get("items") or {}, item, f"{path}[{number}]")


def _object(schema: Json, value: Json, path: str) -> Iterator[tuple[str, str]]:
    if len(value) > schema.get("maxProperties", len(value)):
        yield path, f"Too many: must have at most {schema['maxProperties']} properties"
    if len(value) < schema.get("minProperties", 0):
        yield path, f"Invalid value: should have at least {schema['minProperties']} properties"
    for key in schema.get("required", ()):
        if key not in value:
            yield join(path, key), "Required value"
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, item in value.items():
        if not path and key in ALWAYS:
            continue
        inner = properties.get(key, extra)
        if isinstance(inner, dict):
            yield from problems(inner, item, join(path, key))


def _junctors(schema: Json, value: Any, path: str) -> Iterator[tuple[str, str]]:
    for each in schema.get("allOf", ()):
        yield from problems(each, value, path)
    for name in ("anyOf", "oneOf"):
        if name in schema:
            count = sum(not list(problems(each, value, path)) for each in schema[name])
            if count != 1 if name == "oneOf" else count < 1:
                yield path, f"Invalid value: must validate {name} of the schemas"
    if "not" in schema and not list(problems(schema["not"], value, path)):
        yield path, "Invalid value: must not validate the schema (not)"


def join(path: str, key: str) -> str:
    """A field path, one step longer."""
    return f"{path}.{key}" if path else key


# --- built-in kinds with a little of this ---


def encode_string_data(secret: Json) -> None:
    """Moves a Secret's `stringData` to `data`."""
    data = secret.setdefault("data", {})
    for key, text in secret.pop("stringData").items():
        data[key] = base64.b64encode(text.encode()).decode()


def established(definition: Json, now: str) -> Json:
    """The status of a definition that is served."""
    names = definition["spec"]["names"]
    return {
        "acceptedNames": {"listKind": names["kind"] + "List", **names},
        "storedVersions": [
            each["name"] for each in definition["spec"]["versions"] if each.get("storage")
        ],
        "conditions": [
            {
                "type": name,
                "status": "True",
                "lastTransitionTime": now,
                "reason": reason,
                "message": message,
            }
            for name, reason, message in (
                ("NamesAccepted", "NoConflicts", "no conflicts found"),
                ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            )
        ],
    }
