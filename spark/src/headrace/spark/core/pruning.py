"""Filters on topic, partition and offset made into fewer and shorter spans. Pure.

Only ever leaves out what certainly doesn't match; Spark evaluates every filter again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from headrace.spark.core.planning import Span

Operator = Literal["=", ">", ">=", "<", "<=", "in"]


class Predicate(NamedTuple):
    """A column, an operator and a value (for `in`: a tuple of them)."""

    column: str
    operator: Operator
    value: Any


def prune(spans: Sequence[Span], predicates: Sequence[Predicate]) -> list[Span]:
    """What is left of the spans when all predicates must hold."""
    for predicate in predicates:
        spans = [cut for span in spans for cut in [_cut(span, predicate)] if cut.start < cut.until]
    return list(spans)


def _cut(span: Span, predicate: Predicate) -> Span:
    column, operator, value = predicate
    if column == "offset":
        return _cut_offsets(span, operator, value)
    found = {"topic": span.topic, "partition": span.partition}.get(column)
    if found is None or _holds(found, operator, value):
        return span
    return span._replace(until=span.start)


def _holds(found: Any, operator: Operator, value: Any) -> bool:
    if operator == "=":
        return bool(found == value)
    if operator == "in":
        return found in value
    if operator == ">":
        return bool(found > value)
    if operator == ">=":
        return bool(found >= value)
    return bool(found < value) if operator == "<" else bool(found <= value)


def _cut_offsets(span: Span, operator: Operator, value: Any) -> Span:
    lowest, beyond = span.start, span.until
    if operator == "in":
        if not value:
            return span._replace(until=span.start)
        lowest, beyond = min(value), max(value) + 1
    elif operator == "=":
        lowest, beyond = value, value + 1
    elif operator == ">":
        lowest = value + 1
    elif operator == ">=":
        lowest = value
    elif operator == "<":
        beyond = value
    else:
        beyond = value + 1
    return span._replace(start=max(span.start, lowest), until=min(span.until, beyond))
