"""The wheel, built once for all tests of packaging."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("broker", "operator", "sdk", "spark")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__", "*.db*")
        shutil.copytree(ROOT / part / "src", copy / part / "src", ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
            "--disable-pip-version-check", "--wheel-dir", str(copy / "out"), str(copy),
        ],
        check=True, timeout=100,
    )  # fmt: skip
    return next((copy / "out").glob("headrace-*.whl"))
