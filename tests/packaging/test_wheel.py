"""The wheel holds every module of every root, and works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("broker", "operator", "sdk", "spark")


def _sources() -> set[str]:
    return {
        file.relative_to(ROOT / part / "src").as_posix()
        for part in PARTS
        for file in (ROOT / part / "src").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_wheel_holds_every_file_of_every_root(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert _sources() <= names
    assert {name for name in names if name.endswith("py.typed")} >= {
        f"headrace/{part}/py.typed"
        for part in ("broker", "cli", "demo", "operator", "protocol", "sdk")
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("entry_points.txt") for name in names)


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    for name in zipfile.ZipFile(wheel).namelist():
        assert name.startswith(("headrace/", "headrace-", "pyspark_headrace/")), name
        assert name not in {"headrace/__init__.py"}


def test_every_module_imports_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """In a child whose path starts with the unpacked wheel; started at the checkout's root, where
    the folders of the same names must do no harm."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in _sources()
        if name.endswith(".py") and not name.endswith("__main__.py")
    )
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[2:]:\n"
        "    module = importlib.import_module(name)\n"
        "    assert module.__file__.startswith(sys.argv[1]), (name, module.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), *modules],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
