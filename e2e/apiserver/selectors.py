"""Label and field selectors, as in a query string. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from apiserver.answers import Json, bad_request

Test = Callable[[Json], bool]
_SETS = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^)]*)\)$")


def labels_test(selector: str) -> Test:
    """A test on an object's labels.

    Raises:
        ApiError: 400, it isn't a selector.
    """
    tests = [_label_requirement(part) for part in _split(selector)]
    return lambda value: all(
        test((value.get("metadata") or {}).get("labels") or {}) for test in tests
    )


def fields_test(selector: str) -> Test:
    """A test on an object's fields by dotted path.

    Raises:
        ApiError: 400, it isn't a selector.
    """
    tests = [_field_requirement(part) for part in _split(selector)]
    return lambda value: all(test(value) for test in tests)


def matches_labels(selector: Json, labels: Json) -> bool:
    """Whether labels fit a LabelSelector object."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(
        _matches_expression(expression, labels)
        for expression in selector.get("matchExpressions") or []
    )


def _matches_expression(expression: Json, labels: Json) -> bool:
    has, value = expression["key"] in labels, labels.get(expression["key"])
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return has and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return has
        case _:
            return not has


def _split(selector: str) -> list[str]:
    """At commas outside parentheses."""
    parts = re.split(r",(?![^(]*\))", selector)
    return [part.strip() for part in parts if part.strip()]


def _label_requirement(part: str) -> Callable[[Json], bool]:
    if found := _SETS.match(part):
        key, verb = found[1], found[2]
        values = {value.strip() for value in found[3].split(",")}
        if verb == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := re.match(r"^(\S+?)\s*(==|!=|=)\s*(\S*)$", part):
        key, operator, wanted = found[1], found[2], found[3]
        if operator == "!=":
            return lambda labels: labels.get(key) != wanted
        return lambda labels: labels.get(key) == wanted
    if re.match(r"^![\w./-]+$", part):
        return lambda labels: part[1:] not in labels
    if re.match(r"^[\w./-]+$", part):
        return lambda labels: part in labels
    raise bad_request(f'unable to parse requirement: "{part}"')


def _field_requirement(part: str) -> Test:
    found = re.match(r"^([\w.]+)\s*(==|!=|=)\s*(.*)$", part)
    if not found:
        raise bad_request(f'invalid field selector: "{part}"')
    path, operator, wanted = found[1].split("."), found[2], found[3]

    def test(value: Json) -> bool:
        at: object = value
        for step in path:
            at = at.get(step) if isinstance(at, dict) else None
        text = "" if at is None else str(at)
        return (text != wanted) if operator == "!=" else (text == wanted)

    return test
