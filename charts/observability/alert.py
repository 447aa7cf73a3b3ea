"""What an alert is.

A number made of the samples of one metric is compared with a bound. That is all of PromQL that is
needed here, and little enough for the tests to judge the samples of real brokers by the same values
that the PromQL text is made from (tests/observability).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RUNBOOK = "https://github.com/headrace/headrace/blob/main/docs/alerts.md#"

Severity = Literal["critical", "warning"]
Over = Literal["", "increase", "rate", "changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert: `combine by (by) (over(metric{where}[window])) compare bound`, for so long."""

    name: str
    severity: Severity
    metric: str
    compare: Literal[">", "<", "!="]
    bound: float | str
    """A number, or a metric of the same process, `FACTOR * METRIC`."""
    for_minutes: int
    summary: str
    """What is wrong, in a sentence; `{{ $labels.x }}` and `{{ $value }}` are Prometheus'."""
    meaning: str
    """What it means for users."""
    todo: str
    """What to look at and do, in Markdown."""
    where: Mapping[str, str] | None = None
    """Labels by regular expression."""
    combine: Literal["sum", "max", "min"] = "sum"
    by: tuple[str, ...] = ("namespace", "cluster")
    over: Over = ""
    window: str = ""
    age: bool = False
    """The metric is a time; what counts is how long ago it is, in seconds."""

    @property
    def expression(self) -> str:
        """As PromQL."""
        wanted = ",".join(f'{label}=~"{value}"' for label, value in (self.where or {}).items())
        inner = self.metric + (f"{{{wanted}}}" if wanted else "")
        if self.over:
            inner = f"{self.over}({inner}[{self.window}])"
        if self.age:
            inner = f"(time() - {inner})"
        left = f"{self.combine} by ({', '.join(self.by)}) ({inner})"
        if isinstance(self.bound, str):
            factor, _, other = self.bound.partition(" * ")
            right = f"{factor} * {self.combine} by ({', '.join(self.by)}) ({other})"
        else:
            right = f"{self.bound:g}"
        return f"{left} {self.compare} {right}"

    @property
    def anchor(self) -> str:
        """Its part of the runbook page."""
        return self.name.lower()

    @property
    def rule(self) -> dict[str, object]:
        """As a rule of Prometheus."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": f"{self.for_minutes}m",
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": f"{self.meaning} {_first_sentence(self.todo)}",
                "runbook_url": RUNBOOK + self.anchor,
            },
        }


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:]) |\n", text, maxsplit=1)[0].rstrip(":").replace("`", "")
