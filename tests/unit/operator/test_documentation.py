"""docs/operator.md names what there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from headrace.operator import names
from headrace.operator.core.conditions import ALARMS, SERIOUS
from headrace.operator.settings import PREFIX, Settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operator.md").read_text()
SOURCES = [path.read_text() for path in (ROOT / "operator" / "src").rglob("*.py")]


def test_every_setting_is_named_with_its_default() -> None:
    for each in fields(Settings):
        suffix = each.name.upper()
        assert PREFIX + suffix in PAGE or f"`_{suffix}`" in PAGE, each.name
        default = str(each.default).lower() if isinstance(each.default, bool) else each.default
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        assert not shown or f"`{shown}`" in PAGE, (each.name, shown)


def test_every_reason_that_is_said_of_ready_is_explained() -> None:
    said = {
        reason for text in SOURCES for reason in re.findall(r'not_ready\(\s*"([A-Za-z]+)"', text)
    }
    assert said
    unexplained = sorted(reason for reason in said | SERIOUS if f"`{reason}`" not in PAGE)
    assert unexplained == []


def test_every_condition_and_annotation_is_explained() -> None:
    annotations = (names.PAUSE, names.ROLL, names.DELETE_POD_AND_PVC, names.SKIP_SCALE_DOWN_CHECK)
    for each in [*ALARMS, *(name.partition("/")[2] for name in annotations)]:
        assert f"`{each}" in PAGE, each
