"""The traps of a namespace package spread over several roots (CONTRIBUTING.md tells why)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = sorted(ROOT.glob("*/src"))
SUBPACKAGES = sorted(
    path for root in SOURCE_ROOTS for path in (root / "headrace").iterdir() if path.is_dir()
)


def _run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_python_starts_at_the_root_of_the_checkout() -> None:
    """Without -S an installation's .pth files may have imported what our folders would hide."""
    done = _run("-S", "-c", "import collections, operator, json, http, queue, select, types")
    assert done.returncode == 0, done.stderr


def test_no_folder_at_the_root_is_a_package() -> None:
    for folder in (path for path in ROOT.iterdir() if path.is_dir()):
        if folder.name in {"tests", "docs", "bench", "charts", "examples"} or folder.name[0] == ".":
            continue
        assert list(folder.glob("*.py")) == [], f"{folder.name}/ must hold no Python file itself"


def test_headrace_is_a_namespace_package_everywhere() -> None:
    assert SOURCE_ROOTS
    for root in SOURCE_ROOTS:
        assert [path.name for path in root.iterdir() if path.suffix == ".py"] == []
        assert [path.name for path in (root / "headrace").iterdir() if path.is_file()] == []


def test_every_part_says_that_it_is_typed() -> None:
    for part in SUBPACKAGES:
        if part.name != "__pycache__":
            assert (part / "py.typed").is_file(), f"{part} has no py.typed"


def test_every_folder_of_modules_is_a_package_with_a_docstring_only() -> None:
    for root in SOURCE_ROOTS:
        for file in (root / "headrace").rglob("*.py"):
            if file.parent.name == "headrace":
                continue
            package = file.parent / "__init__.py"
            assert package.is_file(), f"{file.parent} has modules but no __init__.py"
            name = package.relative_to(root).as_posix()
            if not name.startswith("headrace/sdk/") or "/core/" in name:  # those export names
                text = package.read_text().strip()
                assert text.startswith('"""'), f"{name} has no docstring"
                assert text.endswith('"""'), f"{name} holds more than its docstring"


def test_no_test_folder_is_a_package_but_testkit() -> None:
    found = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("__init__.py")}
    assert found == {"testkit"}


def test_the_version_is_the_distributions() -> None:
    """`headrace` is a namespace: it can't have a `__version__`, importlib.metadata has it."""
    code = (
        "import headrace, importlib.metadata\n"
        "assert not hasattr(headrace, '__version__')\n"
        "assert headrace.__file__ is None\n"
        "print(importlib.metadata.version('headrace'))"
    )
    done = _run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(".") == 2
