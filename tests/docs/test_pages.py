"""Pages fit the code: generated ones are fresh, links lead somewhere, promised names exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from headrace.protocol.errors import BY_CODE

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/*.md")})


def test_generated_pages_are_fresh() -> None:
    assert runpy.run_path(str(ROOT / "docs" / "generate.py"))["stale"]() == [], "run `make docs`"


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    for code, cls in BY_CODE.items():
        assert f"| `{code}` | `{cls.__name__}` |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("## Which file holds what") : text.index("Paths are below")]
    named = re.findall(r"`([a-z/_]+(?:\.py|/))`", table)
    assert len(named) > 20
    roots = [
        ROOT / "broker/src/headrace",
        ROOT / "sdk/src/headrace",
        ROOT / "broker/src/headrace/broker",
        ROOT / "operator/src/headrace",
        ROOT / "spark/src/headrace",
        ROOT,
    ]
    for name in named:
        assert any((root / name).exists() for root in roots), f"architecture.md names {name}"


@pytest.mark.parametrize("folder", ["broker", "sdk", "tests"])
def test_docstrings_name_pages_that_exist(folder: str) -> None:
    for file in (ROOT / folder).rglob("*.py"):
        for name in re.findall(r"\bdocs/[a-z-]+\.md", file.read_text()):
            assert (ROOT / name).is_file(), f"{file.relative_to(ROOT)} names {name}"


def test_the_makefile_has_the_promised_verbs_with_help() -> None:
    text = (ROOT / "Makefile").read_text()
    for verb in ("setup", "check", "test", "demo", "bench", "simulate", "soak", "help"):
        assert re.search(rf"^{verb}:.*## \S", text, re.MULTILINE), verb
