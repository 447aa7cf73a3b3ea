"""CEL rules of custom resources (`x-kubernetes-validations`), evaluated by cel-python. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from apiserver.answers import Json
from apiserver.schemas import ALWAYS, join


def broken(schema: Json, value: Any, previous: Any, path: str) -> Iterator[tuple[str, str]]:
    """The rules that a value breaks, by path; `previous` is None where there is no old value. What
    hasn't changed isn't judged again (as since Kubernetes 1.33)."""
    if previous is not None and value == previous:
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        if message := _broken(rule, value, previous):
            yield (path + rule.get("fieldPath", "")).lstrip("."), message
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        old = previous if isinstance(previous, dict) else {}
        for key, item in value.items():
            inner = properties.get(key, extra)
            if isinstance(inner, dict) and (path or key not in ALWAYS):
                yield from broken(inner, item, old.get(key), join(path, key))
    if isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys") or []
        for number, item in enumerate(value):
            old_item = _counterpart(item, previous, keys)
            at = f"{path}[{number}]"
            yield from broken(schema.get("items") or {}, item, old_item, at)


def _counterpart(item: Any, previous: Any, keys: list[str]) -> Any:
    """The old item of a list map; other lists have none, as in the real server."""
    if not keys or not isinstance(previous, list):
        return None
    return next(
        (old for old in previous if all(old.get(key) == item.get(key) for key in keys)), None
    )


def _broken(rule: Json, value: Any, previous: Any) -> str | None:
    text = rule["rule"]
    names: dict[str, Any] = {"self": json_to_cel(value)}
    if re.search(r"\boldSelf\b", text):
        if previous is None:
            return None
        names["oldSelf"] = json_to_cel(previous)
    try:
        if bool(_program(text).evaluate(names)):
            return None
        message = rule.get("message")
        if "messageExpression" in rule:
            message = str(_program(rule["messageExpression"]).evaluate(names))
        return f"Invalid value: {message or 'failed rule: ' + text}"
    except CELEvalError as error:
        return f"Invalid value: rule evaluation error: {error}"


@functools.lru_cache(maxsize=1_000)
def _program(text: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(text))
