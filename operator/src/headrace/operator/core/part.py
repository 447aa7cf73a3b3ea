"""What one planner contributes: actions and what is to be said about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.operator.core.actions import Action
from headrace.operator.core.conditions import Condition


@dataclass(frozen=True, slots=True)
class Part:
    """`holds`: what comes later in the plan waits until these actions are done and seen."""

    actions: tuple[Action, ...] = ()
    conditions: tuple[Condition, ...] = field(default=())
    holds: bool = False


def progressing(reason: str, message: str) -> Condition:
    """Something is under way."""
    return Condition("Progressing", "True", reason, message)


def warning(reason: str, message: str) -> Condition:
    """Something that a person should look at; nothing is broken."""
    return Condition("Warning", "True", reason, message)


def not_ready(reason: str, message: str) -> Condition:
    """Not all is well."""
    return Condition("Ready", "False", reason, message)
